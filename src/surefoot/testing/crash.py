"""A disk in memory that loses power after any operation, and every state it could come back in.

Pessimistic, one name and one file at a time, in no order:

    bytes not forced down         whole, half or gone
    names not forced down         each is anything it was since its folder was last forced down:
                                  a creation, rename or removal is kept or lost
    a folder whose name is lost   is gone with everything in it, forced down or not

A rename's two ends are independent here, so a lost file may also be one that a real disk would have
kept; what holds under this model holds under a kinder one. An operation that was cut half way needs
no model of its own: it left what it would leave, unforced, or what was there before.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TypeAlias

from surefoot.tiers.disk import Entry

_BLOCK_BYTES = 512


class PowerCut(BaseException):
    """The machine stopped. Nothing may catch this but a test."""


@dataclass(eq=False)
class _File:
    states: list[bytes]  # what the bytes may be after a cut; the last is what a reader sees


@dataclass(eq=False)
class _Folder:
    names: dict[str, list["_Node | None"]] = field(default_factory=dict)  # likewise


_Node: TypeAlias = _File | _Folder


class CrashDisk:
    """Keeps the ``Disk`` contract until ``budget`` changes are spent (None: for ever).

    The change after the last one raises ``PowerCut`` and does nothing, and so does every later one.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = budget
        self.log: list[str] = []  # the changes made, as a reader would tell them
        self._root = _Folder()

    @property
    def spent(self) -> int:
        """The number of changes made."""
        return len(self.log)

    def make_folder(self, path: Path) -> bool:
        """Create a folder whose name is not down yet."""
        self._spend("make_folder", path)
        if self._find(path) is not None:
            return False
        self._set(path, _Folder())
        return True

    def write_new(self, path: Path, data: bytes) -> None:
        """Create a file of which neither name nor bytes are down yet."""
        self._spend("write_new", path)
        if self._find(path) is not None:
            raise FileExistsError(path)
        self._set(path, _File([b"", data[: len(data) // 2], data]))

    def sync_file(self, path: Path) -> None:
        """Make the bytes certain, not the name."""
        self._spend("sync_file", path)
        file = self._file(path)
        del file.states[:-1]

    def rename(self, source: Path, target: Path) -> None:
        """Give the file another name; the cut may keep either, both or none."""
        self._spend("rename", target)
        file = self._file(source)
        self._set(source, None)
        self._set(target, file)

    def remove(self, path: Path) -> None:
        """Drop the name; the cut may bring it back."""
        self._spend("remove", path)
        self._file(path)
        self._set(path, None)

    def sync_folder(self, path: Path) -> None:
        """Make the folder's names certain, not the folder's own."""
        self._spend("sync_folder", path)
        for states in self._folder(path).names.values():
            del states[:-1]

    def read(self, path: Path, nbytes: int | None = None) -> bytes:
        """Return what a reader sees before any cut."""
        return self._file(path).states[-1][:nbytes]

    def used(self, path: Path) -> int:
        """Return the length in whole disk blocks."""
        return -(-len(self._file(path).states[-1]) // _BLOCK_BYTES) * _BLOCK_BYTES

    def entries(self, path: Path) -> list[Entry]:
        """Return the names a reader sees before any cut."""
        found = []
        for name, states in self._folder(path).names.items():
            if states[-1] is not None:
                found.append(Entry(name, self._nbytes(path / name)))
        return found

    def files(self) -> list[Path]:
        """Return the files that a reader sees before any cut."""
        return [path for path, _ in self.told()]

    def told(self) -> tuple[tuple[Path, bytes], ...]:
        """Return the files that a reader sees with their bytes: equal for equal disks."""
        return tuple(sorted(_told(Path("/"), self._root)))

    def after_cut(self) -> Iterator["CrashDisk"]:
        """Yield every disk that this one may be once power returns."""
        for root in _survivors(self._root):
            disk = CrashDisk()
            disk._root = root
            yield disk

    def _spend(self, change: str, path: Path) -> None:
        if self.budget is not None and self.spent >= self.budget:
            raise PowerCut
        self.log.append(f"{change} {path}")

    def _nbytes(self, path: Path) -> int:
        return self.used(path) if isinstance(self._find(path), _File) else 0

    def _find(self, path: Path) -> _Node | None:
        states = self._folder(path.parent).names.get(path.name, [None])
        return states[-1]

    def _set(self, path: Path, node: _Node | None) -> None:
        self._folder(path.parent).names.setdefault(path.name, [None]).append(node)

    def _file(self, path: Path) -> _File:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(path)
        if isinstance(node, _Folder):
            raise IsADirectoryError(path)
        return node

    def _folder(self, path: Path) -> _Folder:
        if path == path.parent:
            return self._root
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(path)
        if isinstance(node, _File):
            raise NotADirectoryError(path)
        return node


def _survivors(node: _Folder) -> Iterator[_Folder]:
    choices = [
        [(name, kept) for state in states for kept in _kept(state)]
        for name, states in node.names.items()
    ]
    for combination in product(*choices):
        yield _Folder({name: [deepcopy(kept)] for name, kept in combination if kept is not None})


def _kept(node: _Node | None) -> Iterator[_Node | None]:
    if node is None:
        yield None
    elif isinstance(node, _File):
        yield from (_File([state]) for state in node.states)
    else:
        yield from _survivors(node)


def _told(path: Path, node: _Folder) -> Iterator[tuple[Path, bytes]]:
    for name, states in node.names.items():
        kept = states[-1]
        if isinstance(kept, _File):
            yield path / name, kept.states[-1]
        elif kept is not None:
            yield from _told(path / name, kept)
