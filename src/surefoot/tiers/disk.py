"""The disk operations that the SSD tier is allowed to use, so that a test can stand in for a disk.

Writes, renames, removals and new folders may be lost by a crash until the file, or the folder that
holds the name, is forced down.
"""

import errno
import fcntl
import os
import stat
import sys
from pathlib import Path
from typing import NamedTuple, Protocol

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own
_COMPRESSION_MOST = 16  # what a compressing file system may save; more than that is a hole
_SLACK_BYTES = 1 << 20


class Entry(NamedTuple):
    """A name in a folder, and the bytes that it takes up on the medium."""

    name: str
    nbytes: int


class Disk(Protocol):
    """Files and folders; every operation raises ``OSError`` where the medium fails."""

    def make_folder(self, path: Path) -> bool:
        """Create one folder, for its owner alone; return false if the name was taken."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Create a file, for its owner alone; ``FileExistsError`` if the name is taken."""
        ...

    def sync_file(self, path: Path) -> None:
        """Return once the file's bytes are on the medium."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Move ``source`` over ``target`` in one step."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; ``FileNotFoundError`` if there is none."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Return once the folder's names are on the medium."""
        ...

    def read(self, path: Path, nbytes: int | None = None) -> bytes:
        """Return a file's bytes, at most the first ``nbytes``."""
        ...

    def used(self, path: Path) -> int:
        """Return the bytes that a file takes up on the medium."""
        ...

    def entries(self, path: Path) -> list[Entry]:
        """Return what a folder holds; names that vanish meanwhile are left out."""
        ...


class RealDisk:
    """The operating system's files."""

    def make_folder(self, path: Path) -> bool:
        """Create one folder, mode 0700."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return False
        return True

    def write_new(self, path: Path, data: bytes) -> None:
        """Create a file, mode 0600."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]

    def sync_file(self, path: Path) -> None:
        """Force the file's bytes down."""
        _force(path, os.O_RDWR)

    def rename(self, source: Path, target: Path) -> None:
        """Move ``source`` over ``target`` in one step."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def sync_folder(self, path: Path) -> None:
        """Force the folder's names down."""
        _force(path, os.O_RDONLY)

    def read(self, path: Path, nbytes: int | None = None) -> bytes:
        """Return a regular file's bytes, at most the first ``nbytes``.

        A pipe, a device or a link under that name is no file of ours: it counts as absent, at
        once, since opening it could wait for ever, and the next write replaces it. A file that
        claims far more than it takes up on the medium was not written by us; its first bytes are
        returned, and not the memory that the rest would need.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise FileNotFoundError(errno.ENOENT, "a link, no file", str(path)) from error
            raise
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.ENOENT
            raise OSError(number, "not a regular file", str(path))
        credible = found.st_blocks * _BLOCK_BYTES * _COMPRESSION_MOST + _SLACK_BYTES
        most = min(found.st_size, credible)
        with open(descriptor, "rb") as file:
            return file.read(most if nbytes is None else min(nbytes, most))

    def used(self, path: Path) -> int:
        """Return the file's allocated bytes; certain once it was forced down."""
        return os.stat(path).st_blocks * _BLOCK_BYTES

    def entries(self, path: Path) -> list[Entry]:
        """Return what a folder holds."""
        found = []
        with os.scandir(path) as scan:
            for entry in scan:
                try:
                    blocks = entry.stat(follow_symlinks=False).st_blocks
                except FileNotFoundError:
                    continue
                found.append(Entry(entry.name, blocks * _BLOCK_BYTES))
        return found


def _force(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        if sys.platform == "darwin":
            # There, fsync stops at the drive's own cache (fsync(2) of macOS).
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
