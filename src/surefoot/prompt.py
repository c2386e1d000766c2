"""A prompt: the exact tokens and media spans a model will see, and the grid they are cut by.

The grid is a pure function of the prompt: blocks end at absolute multiples of ``block_tokens``.
Where a model attends in both directions inside an image, an end that falls strictly inside a span
moves to the span's end, never to its start: an end then depends only on tokens before it, so two
prompts that share a prefix share its grid (I5).
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

TokenId = NewType("TokenId", int)
MediaName = NewType("MediaName", bytes)

TOKEN_BYTES = 4  # an unsigned 32-bit little-endian integer per token


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Placeholder tokens ``[start, start + length)`` that stand for one media item."""

    start: int
    length: int
    media: MediaName

    def __post_init__(self) -> None:
        assert self.start >= 0, self
        assert self.length > 0, self

    @property
    def end(self) -> int:
        """The first token after the span."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class MediaItem:
    """What a vision tower consumes of one media item, as host bytes.

    ``data`` is C-order, little-endian; ``grid`` is what the family derives positions from: for the
    Qwen families (temporal, height, width) in patches, for Gemma (height, width). ``tokens`` is how
    many placeholder tokens stand for the item. The name commits to all of it.
    """

    name: MediaName
    kind: str
    tokens: int
    dtype: str
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        assert self.tokens > 0, self.tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids in order, and the media that some of them stand for.

    ``ids`` holds the tokens as packed little-endian uint32, so that naming never walks tokens in
    Python. Spans are sorted, disjoint and inside the prompt.
    """

    ids: bytes
    media: tuple[MediaSpan, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.ids) % TOKEN_BYTES == 0, len(self.ids)
        end = 0
        for span in self.media:
            assert span.start >= end, self.media
            end = span.end
        assert end <= len(self), (end, len(self))

    @classmethod
    def of(cls, tokens: Iterable[int], media: tuple[MediaSpan, ...] = ()) -> "Prompt":
        """Pack ``tokens``; a token outside uint32 raises ``OverflowError``."""
        return cls(pack_tokens(tokens), media)

    def __len__(self) -> int:
        return len(self.ids) // TOKEN_BYTES

    def upto(self, end: int) -> "Prompt":
        """Return the prompt's first ``end`` tokens, with what stands there of its media."""
        media = tuple(
            MediaSpan(span.start, min(span.end, end) - span.start, span.media)
            for span in self.media
            if span.start < end
        )
        return Prompt(self.ids[: end * TOKEN_BYTES], media)

    def tokens(self, start: int = 0, end: int | None = None) -> list[int]:
        """Return the token ids in ``[start, end)``; the whole prompt by default."""
        stop = len(self) if end is None else end
        return unpack_tokens(self.ids[start * TOKEN_BYTES : stop * TOKEN_BYTES])


def grid(prompt: Prompt, block_tokens: int, *, atomic: bool = False) -> tuple[int, ...]:
    """Return the ends of the prompt's whole blocks, in tokens, ascending.

    What is left after the last end is the tail (possibly empty), which is never stored.

    Args:
        prompt: tokens and media spans.
        block_tokens: the grid's step, > 0.
        atomic: keep every media span inside one block by moving an end to the span's end.
    """
    assert block_tokens > 0, block_tokens
    if not atomic:
        return tuple(range(block_tokens, len(prompt) + 1, block_tokens))
    starts = [span.start for span in prompt.media]
    ends: list[int] = []
    end = block_tokens
    while end <= len(prompt):
        begun = bisect_left(starts, end)
        if begun:
            end = max(end, prompt.media[begun - 1].end)
        ends.append(end)
        end = (end // block_tokens + 1) * block_tokens
    return tuple(ends)


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Return token ids as packed little-endian uint32."""
    # A list, because array reads bytes as memory and not as the integers they are.
    return _little_endian(array("I", list(tokens))).tobytes()


def unpack_tokens(ids: bytes) -> list[int]:
    """Return the token ids that ``pack_tokens`` packed."""
    return _little_endian(array("I", ids)).tolist()


def _little_endian(tokens: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
