"""What a turn leaves behind besides its receipt: which records it stood on, and which it made.

Values only. ``journal`` keeps them, ``capture`` makes a file of them that can be shared. Tokens are
in here until the journal has digested them on the write lane, and are never written.
"""

import platform
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from surefoot import __version__
from surefoot.identity import BlockName, FeatureName
from surefoot.prompt import MediaName

PACKAGES = ("torch", "transformers", "blake3")  # whose versions decide what a capture can mean
_FIXED_BYTES = 4096  # about what an entry takes besides its tokens and digests


class BlockSpan(NamedTuple):
    """A whole block of the prompt, in order; the one before it, or the root, is its parent."""

    name: BlockName
    start: int
    end: int


class RestoredFrom(NamedTuple):
    """A part that the turn stood on: its group, its block by index, tier and content digest."""

    group: str
    block: int
    tier: str
    content: bytes


class Failure(NamedTuple):
    """A part that was asked for and not restored, and the kind of fault."""

    group: str
    block: int
    fault: str


class Committed(NamedTuple):
    """A part that the turn computed and stored."""

    group: str
    block: int
    content: bytes


class Item(NamedTuple):
    """A media item of the prompt; ``feature`` is None if the turn never named its features."""

    name: MediaName
    feature: FeatureName | None
    start: int  # of its tokens
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one turn touched; blocks, media and parts in the prompt's order."""

    root: BlockName | None  # parent of the first block; None for a prompt without a whole block
    fence: int  # the last quarantine fence that the turn's plan knew
    blocks: tuple[BlockSpan, ...]
    restored: tuple[RestoredFrom, ...]
    failed: tuple[Failure, ...]
    committed: tuple[Committed, ...]
    media: tuple[Item, ...]
    ids: bytes  # all tokens of the prompt; digested before anything is written

    @property
    def nbytes(self) -> int:
        """About how much memory it holds while it waits to be written."""
        touched = len(self.blocks) + len(self.restored) + len(self.committed) + len(self.media)
        return _FIXED_BYTES + len(self.ids) + 256 * touched

    def names(self) -> Iterator[bytes]:
        """Yield every name that a fence could be put up on: the root, blocks and features."""
        if self.root is not None:
            yield self.root
        yield from (block.name for block in self.blocks)
        yield from (item.feature for item in self.media if item.feature is not None)

    def to_json(self) -> dict[str, Any]:
        """Return all but the tokens; names and digests are hex."""
        return {
            "fence": self.fence,
            "root": self.root.hex() if self.root is not None else None,
            "blocks": [_shown(one) for one in self.blocks],
            "restored": [_shown(one) for one in self.restored],
            "failed": [_shown(one) for one in self.failed],
            "committed": [_shown(one) for one in self.committed],
            "media": [_shown(one) for one in self.media],
        }


def versions() -> dict[str, str]:
    """Return the versions of what this process runs on."""
    return dict(_versions())


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    found = {
        "surefoot": __version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "sqlite": sqlite3.sqlite_version,
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    return tuple(found.items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _shown(one: NamedTuple) -> dict[str, Any]:
    fields = one._asdict()
    return {
        key: value.hex() if isinstance(value, bytes) else value for key, value in fields.items()
    }
