"""The store's folder: who may read it, who has it open, who evicts, and its secret.

    store/              0700
      records/          one file per record (the SSD tier)
      fences/           one file per quarantine fence
      quarantine/       records that a fence bars, kept aside within the quota
      inventory.sqlite  the index, rebuilt when lost
      journal.sqlite    the last receipts, begun anew when lost
      models/           what each model's name was made of
      owners/W.lock     held (flock) by the process whose writer id is W, free once it is dead
      owners/evict      held by whoever evicts
      owners/open       held by whoever opens, so that nobody mistakes a newcomer for the dead
      owners/fence      held by whoever numbers a fence
      secret            32 random bytes that key ids are made with; 0600

Locks are advisory and local: a store lives on a local disk.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from surefoot.errors import SetupError, TierError

RECORDS = "records"
INVENTORY = "inventory.sqlite"
SECRET_BYTES = 32

RandomBytes = Callable[[int], bytes]


class Folder:
    """A store's folder as one process has it open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = root / RECORDS
        self.fences = root / "fences"
        self.quarantine = root / "quarantine"
        self.inventory = root / INVENTORY
        self._owners = root / "owners"
        self._held: int | None = None

    def create(self) -> None:
        """Make the folder and its parts, for this user alone.

        Raises:
            SetupError: the folder cannot be made or written.
        """
        try:
            for path in (self.root, self.records, self.fences, self.quarantine, self._owners):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
            with self.opening():
                pass
        except OSError as error:
            raise SetupError(
                f"the store folder {self.root} cannot be used: {error.strerror}; "
                "give another --store, or --store off"
            ) from error

    def secret(self, random_bytes: RandomBytes) -> bytes:
        """Return the store's secret; a missing or damaged one is made anew."""
        path = self.root / "secret"
        # Two processes that open a new store at once must end with one secret.
        with self.opening():
            with suppress(OSError):
                found = path.read_bytes()
                if len(found) == SECRET_BYTES:
                    return found
            made = random_bytes(SECRET_BYTES)
            staged = path.with_suffix(".staged")
            staged.unlink(missing_ok=True)
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(made)
                file.flush()
                os.fsync(file.fileno())
            staged.replace(path)
        return made

    def own(self, writer: str, model: str) -> None:
        """Hold this process's lock until ``close``; call it inside ``opening``.

        The lock file says which model the process serves.
        """
        assert self._held is None, writer
        self._held = _lock(self._owners / f"{writer}.lock", fcntl.LOCK_EX)
        os.write(self._held, model.encode("ascii"))

    def owners(self) -> tuple[dict[str, str], list[str]]:
        """Return the living writers with their models, and the dead ones; see ``opening``."""
        living, dead = {}, []
        for path in sorted(self._owners.glob("*.lock")):
            try:
                os.close(_lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB))
                dead.append(path.stem)
            except BlockingIOError:
                with suppress(FileNotFoundError):  # it closes just now
                    living[path.stem] = path.read_text(encoding="ascii", errors="replace")
        return living, dead

    def forget(self, writer: str) -> None:
        """Remove a dead writer's lock file."""
        (self._owners / f"{writer}.lock").unlink(missing_ok=True)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Keep every other process from opening the store meanwhile."""
        with _locked(self._owners / "open"):
            yield

    @contextmanager
    def evicting(self) -> Iterator[None]:
        """Keep every other process from evicting meanwhile; waits for one that does.

        Raises:
            TierError: the lock's file cannot be opened.
        """
        try:
            with _locked(self._owners / "evict"):
                yield
        except OSError as error:
            raise TierError(f"nobody can be kept from evicting: {error}") from error

    @contextmanager
    def fencing(self) -> Iterator[None]:
        """Keep every other process from numbering a fence meanwhile.

        Raises:
            TierError: the lock's file cannot be opened.
        """
        try:
            with _locked(self._owners / "fence"):
                yield
        except OSError as error:
            raise TierError(f"a fence cannot be numbered: {error}") from error

    def free_bytes(self) -> int:
        """Return the bytes that the disk has left for this user."""
        for path in (self.records, *self.records.parents):
            with suppress(FileNotFoundError):  # somebody removed it; what it lay in is still there
                return shutil.disk_usage(path).free
        raise AssertionError(self.records)

    def close(self, writer: str) -> None:
        """Give up this process's lock and its file."""
        if self._held is not None:
            self.forget(writer)
            os.close(self._held)
            self._held = None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = _lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, how: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:  # somebody removed the folder while the store is open
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
