"""The four state laws."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Law(Protocol):
    """One layer group's answer to: which blocks' parts must be in hand at a boundary?"""

    def needs(self, ends: Sequence[int], n: int) -> range:
        """Return the run of block indices needed at boundary ``n >= 1``; it ends at ``n``.

        Args:
            ends: block ends in tokens, ascending; at least ``n`` of them.
            n: the boundary, in blocks.
        """
        ...

    def rows(self, start: int, end: int) -> int:
        """Return how many rows the part of the block ``[start, end)`` holds."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Full attention: every past token's row is read by every later token."""

    def needs(self, ends: Sequence[int], n: int) -> range:
        """Return all blocks before the boundary."""
        assert 1 <= n <= len(ends), n
        return range(n)

    def rows(self, start: int, end: int) -> int:
        """Return one row per token."""
        return end - start


@dataclass(frozen=True, slots=True)
class PooledRows:
    """Compressed attention: one row per ``stride`` tokens, kept for ever.

    Every block end must be a multiple of ``stride``, so that no half-pooled row crosses a
    boundary; the engine refuses a grid for which that is not so.
    """

    stride: int

    def __post_init__(self) -> None:
        assert self.stride > 0, self

    def needs(self, ends: Sequence[int], n: int) -> range:
        """Return all blocks before the boundary."""
        assert 1 <= n <= len(ends), n
        return range(n)

    def rows(self, start: int, end: int) -> int:
        """Return one row per whole stride."""
        assert start % self.stride == end % self.stride == 0, (self, start, end)
        return (end - start) // self.stride


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Windowed attention: the next token reads at most the last ``keep`` tokens.

    For a window of ``w`` tokens that counts the query itself, ``keep`` is ``w - 1``.
    """

    keep: int

    def __post_init__(self) -> None:
        assert self.keep > 0, self

    def needs(self, ends: Sequence[int], n: int) -> range:
        """Return the fewest last blocks that cover ``min(ends[n - 1], keep)`` tokens."""
        assert 1 <= n <= len(ends), n
        return range(bisect_right(ends, ends[n - 1] - self.keep), n)

    def rows(self, start: int, end: int) -> int:
        """Return the block's last rows, at most ``keep``: older ones no boundary can need."""
        return min(end - start, self.keep)


@dataclass(frozen=True, slots=True)
class RecurrentSnapshot:
    """Recurrent or convolutional state: one snapshot, valid only where it was taken."""

    def needs(self, ends: Sequence[int], n: int) -> range:
        """Return the snapshot taken at the end of the last block."""
        assert 1 <= n <= len(ends), n
        return range(n - 1, n)

    def rows(self, start: int, end: int) -> int:
        """Return 0: a snapshot has no rows."""
        return 0
