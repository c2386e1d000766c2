"""The SSD tier: one file per key, whole or absent, whatever the moment of a crash (I3).

    root/ab/abcdef.rec                      a value
    root/ab/abcdef.7.staged.<writer>        a value being written, or left by a writer that died

A value is written aside, forced down, renamed, and its name forced down; a folder that is new to
this process has its own name forced down first. Two threads, or two processes, that put one key do
not meet: each writes under a name of its own, and the last rename wins.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Lock

from surefoot.errors import TierError
from surefoot.tiers import KEY
from surefoot.tiers.disk import Disk, Entry

_RECORD = ".rec"
_STAGED = ".staged."
_WRITER = re.compile(r"(?!rec$)[0-9A-Za-z_-]+")  # a staged file must not end as a value does


class SsdTier:
    """Files under ``root``, fanned out by the first two characters of the key.

    Args:
        root: the tier's own folder, created when first needed.
        disk: what touches the medium.
        writer: names this process's unfinished files; no two living tiers of a root share one.
    """

    name = "ssd"
    durable = True

    def __init__(self, root: Path, disk: Disk, writer: str) -> None:
        assert _WRITER.fullmatch(writer), writer
        self._root = root
        self._disk = disk
        self._suffix = _suffix(writer)
        self._serial = count()
        self._forced: set[Path] = (
            set()
        )  # folders that this process has forced down, parents included
        self._doubtful: set[Path] = set()  # folders that it may have made and not forced down
        self._folders = Lock()

    def put(self, key: str, data: bytes) -> int:
        """Store ``data`` under ``key``; on return it survives a crash (I3)."""
        target = self._path(key)
        staged = target.with_name(f"{key}.{next(self._serial)}{self._suffix}")
        with _faults("store", key):
            try:
                self._make_folders(target.parent)
                self._disk.write_new(staged, data)
                # The order is the point: bytes down, then the name, then the name down.
                self._disk.sync_file(staged)
                used = self._disk.used(staged)
                self._disk.rename(staged, target)
                self._disk.sync_folder(target.parent)
            except OSError:
                self._forced.clear()  # whatever failed, look again next time
                with suppress(OSError):
                    self._disk.remove(staged)
                raise
        return used

    def get(self, key: str) -> bytes | None:
        """Return the whole value, or None if the key is absent."""
        return self._read(key, None)

    def head(self, key: str, nbytes: int) -> bytes | None:
        """Return the value's first ``nbytes``, fewer if it is shorter, None if it is absent.

        Raises:
            TierError: the medium failed.
        """
        return self._read(key, nbytes)

    def delete(self, key: str) -> None:
        """Remove the key; on return it stays removed after a crash."""
        path = self._path(key)
        with _faults("delete", key), suppress(FileNotFoundError):
            # An absent key is forced down as well: a removal before it may have failed half way.
            with suppress(FileNotFoundError):
                self._disk.remove(path)
            self._disk.sync_folder(path.parent)

    def list(self) -> Iterator[tuple[str, int]]:
        """Yield every key with the bytes its file takes up on the medium."""
        for folder, entry in self._files():
            key = entry.name.removesuffix(_RECORD)
            if key != entry.name and KEY.fullmatch(key) and key[:2] == folder.name:
                yield key, entry.nbytes

    def sweep(self, living: Collection[str]) -> int:
        """Remove what writers that are dead left unfinished; return how many files.

        Raises:
            TierError: the medium failed, perhaps after some removals.
        """
        swept = 0
        for folder, entry in self._files():
            _, staged, writer = entry.name.rpartition(_STAGED)
            if staged and _WRITER.fullmatch(writer) and writer not in living:
                with _faults("sweep", entry.name), suppress(FileNotFoundError):
                    self._disk.remove(folder / entry.name)
                    swept += 1
        return swept

    def _path(self, key: str) -> Path:
        assert KEY.fullmatch(key), key
        return self._root / f"{key[:2]}/{key}{_RECORD}"

    def _make_folders(self, folder: Path) -> None:
        # A folder that another process has just made may not be down yet, so finding it in place is
        # not enough: each process forces its name down once.
        if folder in self._forced:
            return
        with self._folders:
            for path in (*sorted(self._doubtful), self._root, folder):
                self._make_folder(path)
            self._forced.add(folder)

    def _make_folder(self, path: Path) -> None:
        self._doubtful.add(path)
        try:
            made = self._disk.make_folder(path)
        except FileNotFoundError:
            self._make_folder(path.parent)
            made = self._disk.make_folder(path)
        try:
            self._disk.sync_folder(path.parent)
        except PermissionError:
            # A store may lie in a folder that others own; then its own name is theirs to keep.
            if made:
                raise
        self._doubtful.discard(path)

    def _read(self, key: str, nbytes: int | None) -> bytes | None:
        with _faults("read", key):
            try:
                return self._disk.read(self._path(key), nbytes)
            except FileNotFoundError:
                return None

    def _files(self) -> Iterator[tuple[Path, Entry]]:
        for shard in self._entries(self._root):
            folder = self._root / shard.name
            for entry in self._entries(folder):
                yield folder, entry

    def _entries(self, folder: Path) -> Iterable[Entry]:
        with _faults("list", folder.name):
            try:
                return self._disk.entries(folder)
            except (FileNotFoundError, NotADirectoryError):
                return []


def _suffix(writer: str) -> str:
    return f"{_STAGED}{writer}"


@contextmanager
def _faults(verb: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TierError(f"the SSD tier could not {verb} {what}: {error}") from error
