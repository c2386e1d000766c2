"""Open a cache: make the folder, tidy up after the dead, find what is stored, start nothing else.

Any one file of the store may be damaged or gone: what is left is opened, and what was lost is a
miss. ``store=None`` touches no file and has no SSD tier.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from surefoot.cache.cache import Cache
from surefoot.cache.capture import capture_fence
from surefoot.cache.courier import Job, Lane, Lanes, Outage
from surefoot.cache.feature_ram import FeatureRam
from surefoot.cache.fences import FENCE_END, Fence, Fences
from surefoot.cache.folder import SECRET_BYTES, Folder, RandomBytes
from surefoot.cache.inventory import Inventory, open_inventory
from surefoot.cache.journal import JOURNAL, Journal
from surefoot.cache.lifecycle import Holds
from surefoot.cache.quota import encode_laws, laws_of
from surefoot.cache.ram import RamShelf
from surefoot.cache.reconcile import account_aside, older_than, reconcile
from surefoot.cache.shelves import OpenStore, Shelves
from surefoot.cache.ssd import Quota, SsdShelf
from surefoot.cache.write_budget import WriteBudget
from surefoot.errors import SetupError, SurefootError, TierError
from surefoot.identity import ModelName
from surefoot.state import FeatureSchema, Group
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ram import RamTier
from surefoot.tiers.ssd import SsdTier

WRITER_BYTES = 8
CAPTURES_SHARE = 64  # captures that fences made take up at most one in so many bytes of the quota


def real_tier(records: Path, writer: str) -> SsdTier:
    """Return the SSD tier on this machine's disk."""
    return SsdTier(records, RealDisk(), writer)


def check_store(store: Path) -> None:
    """Make the store's folder, or say why it cannot be used, before anything slow is done.

    Raises:
        SetupError: the folder cannot be made or written.
    """
    Folder(store).create()


def open_cache(
    *,
    model: ModelName,
    groups: tuple[Group, ...],
    feature_schema: FeatureSchema | None,
    store: Path | None,
    ram_bytes: int,
    ssd_bytes: int,
    feature_ram_bytes: int,
    feature_ssd_bytes: int,
    free_floor_bytes: int,
    write_budget: int = 0,
    io_threads: int,
    queue_bytes: int,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
    random_bytes: RandomBytes = os.urandom,
    make_tier: Callable[[Path, str], SsdTier] = real_tier,
    described: Mapping[str, Any] | None = None,
) -> Cache:
    """Open the cache of one model; closing it gives up its lock and its threads.

    Args:
        model: the model's name; parts of other models in the store are left alone until evicted.
        groups: the model's state groups; none for a model that is served without a cache.
        feature_schema: what the model's vision tower makes; None for a model without one.
        store: the folder, shared by several processes on one machine; None for RAM alone.
        ram_bytes: capacity of the RAM tier, in record bytes.
        ssd_bytes: quota of the SSD tier, in bytes on disk, over all processes and models.
        feature_ram_bytes: what features may take up in RAM, beside ``ram_bytes``.
        feature_ssd_bytes: what features may take up of ``ssd_bytes``.
        free_floor_bytes: what the disk must keep free.
        write_budget: bytes that this process may write to the store an hour; 0 for no limit.
        io_threads: threads that read; one more writes.
        queue_bytes: record bytes that may wait to be written.
        clock: monotonic seconds.
        wall_clock: seconds since the epoch.
        random_bytes: where the secret and the writer's name come from.
        make_tier: what stores bytes under the folder for this writer.
        described: how this process was started, for the journal: no paths, no keys.

    Raises:
        SetupError: the store folder cannot be used.
    """
    holds, lanes = Holds(), _lanes(io_threads, queue_bytes, clock)
    budget = WriteBudget(write_budget, clock)
    quota = partial(Quota, ssd_bytes, feature_ssd_bytes, free_floor_bytes, budget=budget)
    if store is None:
        fences = Fences(None, alone=nullcontext, wall_clock=wall_clock)
        opened = OpenStore(None, fences, random_bytes(SECRET_BYTES), _nothing)
    else:
        writer, laws = random_bytes(WRITER_BYTES).hex(), encode_laws(groups)
        member = _Membership(Folder(store), writer, model, laws, described or {}, wall_clock)
        opened = _open_store(member, make_tier, quota, holds, random_bytes)
    ram = RamShelf(RamTier(), capacity=ram_bytes, laws=laws_of(groups), pinned=holds.pinned_keys)
    feature_ram = FeatureRam(RamTier(), capacity=feature_ram_bytes)
    shelves = _shelves(ram, feature_ram, opened.ssd, holds, lanes, clocks=(clock, wall_clock))
    if opened.ssd:
        # Not here: a medium that stalls must not keep the server from starting.
        lanes.writes.submit(Job(opened.tidy, 0))
        lanes.writes.submit(Job(partial(opened.ssd.fit, features=feature_schema is not None), 0))
    return Cache(model, groups, feature_schema, shelves, opened)


def open_models(folder: Folder) -> set[ModelName]:
    """Return the models that living processes serve from this store."""
    living, _ = folder.owners()
    models = set()
    for text in living.values():
        with suppress(ValueError):
            models.add(ModelName(bytes.fromhex(text)))
    return models


class StoreTiers(NamedTuple):
    """The store's three folders of files."""

    records: SsdTier
    fences: SsdTier
    quarantine: SsdTier

    @classmethod
    def under(
        cls, folder: Folder, writer: str, make_tier: Callable[[Path, str], SsdTier]
    ) -> "StoreTiers":
        """Return the tiers of a store for one writer."""
        return cls(
            *(make_tier(one, writer) for one in (folder.records, folder.fences, folder.quarantine))
        )


def tended_inventory(folder: Folder, tiers: StoreTiers, fences: Fences, *, now: float) -> Inventory:
    """Return the inventory, in agreement with the files; call it inside ``folder.opening``.

    The fences are loaded as well.

    Raises:
        TierError: another process keeps it busy, or the fences cannot be read.
    """
    living, dead = folder.owners()
    fences.load()
    inventory = open_inventory(folder.inventory)
    # A medium that fails now may answer later; until then its parts are misses.
    with suppress(TierError):
        if inventory.lineage.last_number(before=FENCE_END) > fences.last:
            fences.refresh()  # another process may have put it up just now
        reconcile(tiers.records, inventory, living=living, last=fences.last, now=now)
        account_aside(tiers.quarantine, inventory)
        last = inventory.lineage.last_number(before=FENCE_END)
        if last > fences.last:
            fences.outlived(last)
        # By who lives, not by who is known to be dead: the power may have taken a lock's name.
        for tier in tiers:
            tier.sweep(living)
        for writer in dead:
            folder.forget(writer)
    return inventory


@dataclass(frozen=True, slots=True)
class _Membership:
    """This process's place among those that have the store open."""

    folder: Folder
    writer: str
    model: ModelName
    laws: str
    described: Mapping[str, Any]
    wall_clock: Callable[[], float]

    def enter(self, tiers: StoreTiers, fences: Fences) -> Inventory:
        now = self.wall_clock()
        try:
            with self.folder.opening():
                inventory = tended_inventory(self.folder, tiers, fences, now=now)
                self.folder.own(self.writer, self.model.hex())
            inventory.open_model(self.model, at=now, laws=self.laws)
            inventory.note_models(at=now)
        except (TierError, OSError) as error:
            root = self.folder.root
            raise SetupError(f"the store folder {root} cannot be opened: {error}") from error
        return inventory

    def leave(self, inventory: Inventory) -> None:
        with suppress(TierError):
            inventory.open_model(self.model, at=self.wall_clock(), laws=self.laws)
        inventory.close()
        self.folder.close(self.writer)


def _open_store(
    membership: _Membership,
    make_tier: Callable[[Path, str], SsdTier],
    make_quota: Callable[[Callable[[], int]], Quota],
    holds: Holds,
    random_bytes: RandomBytes,
) -> OpenStore:
    folder = membership.folder
    folder.create()
    secret = folder.secret(random_bytes)
    tiers = StoreTiers.under(folder, membership.writer, make_tier)
    fences = Fences(tiers.fences, alone=folder.fencing, wall_clock=membership.wall_clock)
    inventory = membership.enter(tiers, fences)
    ssd = SsdShelf(
        tiers.records,
        inventory,
        quarantine=tiers.quarantine,
        owner=membership.writer,
        quota=make_quota(folder.free_bytes),
        holds=holds,
        evicting=folder.evicting,
        open_models=partial(open_models, folder),
        wall_clock=membership.wall_clock,
    )
    return OpenStore(
        ssd,
        fences,
        secret,
        partial(membership.leave, inventory),
        Journal(folder.root / JOURNAL, secret=secret, settings=membership.described),
        lambda fence: _capture(
            folder.root,
            fence,
            fences,
            now=membership.wall_clock(),
            most=ssd.quota.capacity // CAPTURES_SHARE,
        ),
        partial(_set_aside, ssd, fences.known(), tiers.records, membership.wall_clock),
    )


def _capture(root: Path, fence: Fence, fences: Fences, *, now: float, most: int) -> None:
    # Evidence is worth a try; the quarantine itself never waits for it, nor fails by it.
    with suppress(SurefootError, OSError):
        capture_fence(root, fence.number, now=now, known=fences.known(), most_bytes=most)


def _set_aside(
    ssd: SsdShelf, known: Sequence[Fence], tier: SsdTier, wall_clock: Callable[[], float]
) -> None:
    """Move aside what a fence bars and whoever put it up had no time to move."""
    try:
        if not known or ssd.inventory.lineage.first_number() >= known[-1].number:
            return
        for fence in known:
            parts, features = older_than(
                fence.number,
                *ssd.barred(fence),
                tier=tier,
                inventory=ssd.inventory,
                now=wall_clock(),
            )
            if parts:
                ssd.set_aside(parts, fence.number, keep=fence.keeps)
            if features:
                ssd.set_features_aside(features, fence.number, keep=fence.keeps)
    except TierError:
        ssd.counts.failures += 1  # the numbers bar them all the same


def _shelves(
    ram: RamShelf,
    feature_ram: FeatureRam,
    ssd: SsdShelf | None,
    holds: Holds,
    lanes: Lanes,
    *,
    clocks: tuple[Callable[[], float], Callable[[], float]],
) -> Shelves:
    clock, wall_clock = clocks
    return Shelves(
        ram=ram,
        feature_ram=feature_ram,
        ssd=ssd,
        holds=holds,
        lanes=lanes,
        outage=Outage(lanes.reads, clock),
        lock=RLock(),
        clock=clock,
        wall_clock=wall_clock,
    )


def _lanes(io_threads: int, queue_bytes: int, clock: Callable[[], float]) -> Lanes:
    return Lanes(
        Lane("read", threads=io_threads, queue_bytes=queue_bytes, clock=clock),
        Lane("write", threads=1, queue_bytes=queue_bytes, clock=clock),
    )


def _nothing() -> None:
    """Close a cache that has no store."""
