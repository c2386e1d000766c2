"""A whole cache on a disk that loses power after any change: every state is opened and checked.

A ``Film`` keeps a cache's files on a ``CrashDisk`` and takes a frame before every change to it: the
disks that could come back if the power failed there, every inventory that could come back with
them (none, or as of any transaction so far: SQLite forces nothing down until a checkpoint), and
what had been promised by then. ``check`` opens one of those states as the next process would.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from surefoot.cache import Cache, open_cache
from surefoot.cache.folder import INVENTORY, Folder
from surefoot.cache.inventory import Inventory
from surefoot.cache.lifecycle import State
from surefoot.errors import CorruptRecord
from surefoot.identity import Block
from surefoot.laws import restorable
from surefoot.record import feature_key, read_key, unseal, unseal_features
from surefoot.record import key as record_key
from surefoot.testing import cache_kit
from surefoot.testing.crash import CrashDisk
from surefoot.tiers.ssd import SsdTier

GROUPS = cache_kit.HYBRID
_ROOT = Path("/store")
_PATIENCE_S = 30.0
_WRITER_BYTES = 8

MakeTier = Callable[[Path, CrashDisk, str], SsdTier]
Files = tuple[bytes | None, bytes | None]  # an inventory, and its write-ahead log


@dataclass(frozen=True, slots=True)
class Promise:
    """What had been said to be stored: true records by tier key, and the fences put up."""

    records: frozenset[str] = frozenset()
    fences: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """The power cut before one change: what may be left, and what was promised."""

    change: str
    disks: tuple[CrashDisk, ...]
    inventories: int  # how many of the film's may come back
    promise: Promise


class FilmedDisk(CrashDisk):
    """A disk that shows itself before every change."""

    def __init__(self) -> None:
        super().__init__()
        self.watch: Callable[[str], None] | None = None

    def _spend(self, change: str, path: Path) -> None:
        if self.watch:
            self.watch(f"{change} {path}")
        super()._spend(change, path)


def plain_tier(root: Path, disk: CrashDisk, writer: str) -> SsdTier:
    """Return the tier that the product uses."""
    return SsdTier(root, disk, writer)


@dataclass(slots=True)
class Film:
    """A cache's life on a filmed disk.

    ``folder`` holds what lies on a real disk: inventory and locks.
    """

    folder: Path
    disk: FilmedDisk = field(default_factory=FilmedDisk)
    make_tier: MakeTier = plain_tier
    ssd_bytes: int = 1 << 30
    promise: Promise = field(default_factory=Promise)
    frames: list[Frame] = field(default_factory=list)
    inventories: list[Files] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.disk.make_folder(_ROOT)
        self.disk.sync_folder(_ROOT.parent)

    @contextmanager
    def open(self, *, filmed: bool = True) -> Iterator[Cache]:
        """Open the cache and close it at the end, drained; from opening on, every change counts."""
        self.disk.watch = self._take if filmed else None
        with self._inventories_kept():
            cache = open_on(self.disk, self.folder, self._tier, ssd_bytes=self.ssd_bytes)
            try:
                yield cache
                assert cache.drain(_PATIENCE_S)
            finally:
                cache.close()
        if filmed:
            self._take("nothing more")
        self.disk.watch = None

    def states(self, *, most: int) -> Iterator[tuple[Frame, CrashDisk, Files | None]]:
        """Yield every state that could come back, each once for what was promised of it.

        With a disk come no inventory, the last one, and at most ``most`` between, evenly chosen.
        """
        seen: set[object] = set()
        for frame in self.frames:
            for disk in frame.disks:
                told = disk.told()
                older = range(frame.inventories - 1)
                step = max(1, -(-len(older) // most))
                last = [frame.inventories - 1] if frame.inventories else []
                for number in (None, *last, *older[::step]):
                    files = self.inventories[number] if number is not None else None
                    state = (told, files, frame.promise)
                    if state not in seen:
                        seen.add(state)
                        # Opening changes the disk, and another inventory wants it as it was.
                        yield frame, next(disk.after_cut()), files

    def _take(self, change: str) -> None:
        # A cut changes nothing that was promised, and power cuts are pictures: nobody stops here.
        self.frames.append(
            Frame(change, tuple(self.disk.after_cut()), len(self.inventories), self.promise)
        )

    def _tier(self, root: Path, writer: str) -> SsdTier:
        tier = self.make_tier(_ROOT / root.relative_to(self.folder), self.disk, writer)
        put, delete = tier.put, tier.delete

        def put_and_promise(key: str, data: bytes) -> int:
            nbytes = put(key, data)
            self._promise(root.name, key, data)
            return nbytes

        def delete_and_take_back(key: str) -> None:
            held = self.promise.records
            if root.name == "records" and key in held:
                self.promise = Promise(held - {key}, self.promise.fences)
            delete(key)

        patch.object(tier, "put", put_and_promise).start()
        patch.object(tier, "delete", delete_and_take_back).start()
        return tier

    def _promise(self, place: str, key: str, data: bytes) -> None:
        promise = self.promise
        if place == "fences":
            self.promise = Promise(promise.records, promise.fences + 1)
        if place == "records" and _is_true(key, data):
            self.promise = Promise(promise.records | {key}, promise.fences)

    def _inventories_kept(self) -> AbstractContextManager[Any]:
        write = Inventory._write

        @contextmanager
        def write_and_keep(inventory: Inventory) -> Iterator[Any]:
            with write(inventory) as connection:
                yield connection
            files = read_inventory(self.folder)
            if not self.inventories or self.inventories[-1] != files:
                self.inventories.append(files)

        return patch.object(Inventory, "_write", write_and_keep)


def open_on(
    disk: CrashDisk, folder: Path, make_tier: Callable[[Path, str], SsdTier], *, ssd_bytes: int
) -> Cache:
    """Open a cache whose records, fences and quarantine lie on ``disk``."""
    clock, serials = cache_kit.Clock(), count(disk.spent + 1)
    return open_cache(
        model=cache_kit.MODEL,
        groups=GROUPS,
        feature_schema=cache_kit.FEATURES,
        store=folder,
        ram_bytes=0,
        ssd_bytes=ssd_bytes,
        feature_ram_bytes=0,
        feature_ssd_bytes=ssd_bytes,
        free_floor_bytes=0,
        io_threads=1,
        queue_bytes=1 << 20,
        clock=clock,
        wall_clock=cache_kit.Clock(1_700_000_000.0),
        random_bytes=lambda nbytes: next(serials).to_bytes(nbytes, "big"),
        make_tier=make_tier,
    )


def read_inventory(folder: Path) -> Files:
    """Return the files of an inventory as they lie there."""
    paths = (folder / INVENTORY, folder / f"{INVENTORY}-wal")
    database, log = (path.read_bytes() if path.exists() else None for path in paths)
    return database, log


def check_whole(disk: CrashDisk) -> None:
    """Assert that every record on the disk is whole, before anybody has tidied up (I3)."""
    for path, data in disk.told():
        if path.suffix == ".rec" and path.parts[2] == "records":
            try:
                _unsealed(path.stem, data)
            except CorruptRecord as fault:
                raise AssertionError(f"{path} is not whole") from fault


def check(
    disk: CrashDisk,
    inventory: Files | None,
    promise: Promise,
    folder: Path,
    *,
    chains: Sequence[Sequence[Block]],
    ssd_bytes: int,
) -> Cache:
    """Open a state and assert all that must hold of it; return the cache, still open.

    It opens; every record is whole, in the inventory, and accounted for with its bytes (I3, I6);
    nothing is left of the dead writer; what was promised is restored, bit for bit; a fence that was
    put up still stands, and nothing false behind it is served (I8).

    Args:
        disk: what is left of the tiers.
        inventory: what is left of the inventory.
        promise: what had been promised.
        folder: an empty folder for inventory and locks.
        chains: the prompts' blocks; false records may lie only behind the fences promised.
        ssd_bytes: the quota.
    """
    folder.mkdir(parents=True)
    for name, data in zip((INVENTORY, f"{INVENTORY}-wal"), inventory or (None, None), strict=True):
        if data is not None:
            (folder / name).write_bytes(data)

    def make_tier(root: Path, writer: str) -> SsdTier:
        return SsdTier(_ROOT / root.relative_to(folder), disk, writer)

    cache = open_on(disk, folder, make_tier, ssd_bytes=ssd_bytes)
    try:
        assert cache.drain(_PATIENCE_S)
        status = cache.status()
        assert status["fences"] >= promise.fences, status
        held = _check_records(disk, folder, status, ssd_bytes)
        assert promise.records <= held, promise.records - held
        for blocks in chains:
            _check_chain(cache, blocks, promise, held)
    except BaseException:
        cache.close()
        raise
    return cache


def _check_records(
    disk: CrashDisk, folder: Path, status: dict[str, Any], ssd_bytes: int
) -> set[str]:
    with closing(Inventory(folder / INVENTORY)) as inventory:
        rows = {record_key(*key): row for key, row in inventory.parts().items()}
        rows |= {feature_key(key): row for key, row in inventory.features.files().items()}
    names = Folder(folder)
    files, aside = (
        dict(SsdTier(_ROOT / path.relative_to(folder), disk, "reader").list())
        for path in (names.records, names.quarantine)
    )
    assert all(row.state is State.STORED for row in rows.values()), rows
    assert {key: row.nbytes for key, row in rows.items()} == files
    assert status["quarantined"] == {"bytes": sum(aside.values()), "records": len(aside)}
    stated = status["tiers"]["ssd"]["bytes"] + status["features"]["ssd"]["bytes"]
    assert stated == sum(files.values())
    assert stated + sum(aside.values()) <= ssd_bytes
    lying = [path for path in disk.files() if path.suffix != ".rec"]
    assert not lying, f"left behind: {lying}"
    for key in files:
        _unsealed(key, disk.read(_ROOT / "records" / key[:2] / f"{key}.rec"))
    return set(files)


def _check_chain(cache: Cache, blocks: Sequence[Block], promise: Promise, held: set[str]) -> None:
    least, most = _boundary(blocks, promise.records), _boundary(blocks, held)
    plan = cache.plan(blocks, limit=len(blocks))
    with cache.pinned(plan):
        restored = cache.restore(plan, deadline_s=_PATIENCE_S)
    cache_kit.check_restored(cache, plan, restored)
    assert least <= restored.boundary <= most, (restored.boundary, least, most, promise)


def _boundary(blocks: Sequence[Block], there: Collection[str]) -> int:
    def held(group: int, index: int) -> bool:
        return record_key(blocks[index].name, GROUPS[group].name) in there

    ends = [block.end for block in blocks]
    return restorable([one.law for one in GROUPS], ends, held, limit=len(blocks))


def _unsealed(key: str, data: bytes) -> object:
    named = read_key(key)
    assert named is not None, key
    if isinstance(named, tuple):
        header, part = unseal(data, name=named[0], group=named[1])
        return header.block, part
    return unseal_features(data, name=named)[1]


def _is_true(key: str, data: bytes) -> bool:
    found = _unsealed(key, data)
    if not isinstance(found, tuple):
        return True
    block, part = found
    groups = {one.name: one for one in GROUPS}
    return bool(part == cache_kit.part_of(groups[part.group], block))
