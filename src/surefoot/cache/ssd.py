"""The SSD tier as the cache uses it: inventory, files, quotas. Runs on the write lane's thread.

Order is what keeps a crash harmless: row ``staged``, file, row ``stored``; when leaving, file, then
row. A row without a file is a miss, a file without a row is found at the next open. Used bytes are
the real bytes of the files, staged ones at their length, and never exceed the capacity (I6); room
is made before a write, down to ``LOW_WATER``, by one process at a time.

Parts, features and quarantined records share the capacity. Features have a budget of their own
inside it, for which only features leave, and quarantine a sixteenth, the oldest leaving first.
Where the capacity itself is short, parts leave first, then features, then what lies in quarantine.
"""

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from threading import Event, Lock
from typing import Generic, TypeVar

from surefoot.cache.fences import Fence
from surefoot.cache.forest import Node, Stored
from surefoot.cache.inventory import Inventory, Trees
from surefoot.cache.lifecycle import Holds, PartKey, Verdict
from surefoot.cache.lineage_rows import Aside, Tenant
from surefoot.cache.quota import leavers
from surefoot.cache.write_budget import WriteBudget, unlimited
from surefoot.errors import TierError
from surefoot.identity import BlockName, FeatureName, ModelName
from surefoot.record import FeatureHeader, Header, feature_key
from surefoot.record import key as record_key
from surefoot.tiers import Tier

ASIDE_SHARE = 1 / 16  # of the capacity, what quarantined records may take up
LOW_WATER = 0.95  # an eviction goes down to this, so that one judges the store for many writes
FILE_SLACK_BYTES = 4096  # a file takes up whole blocks of the disk
FLUSH_TICKS = 1024
LEAVING_S = 0.01  # until what another process moves aside is looked at again; it takes that long
LEAVING_TRIES = 25
FLUSH_S = 10.0

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Quota:
    """How many bytes the store may take up, and how many the disk must keep free."""

    capacity: int
    feature_capacity: int  # of the capacity, what features may take up
    free_floor: int
    free_bytes: Callable[[], int]
    budget: WriteBudget = field(default_factory=unlimited)  # how much may be written an hour


@dataclass(slots=True)
class Counts:
    """What happened to this tier since the process started."""

    evictions: int = 0
    feature_evictions: int = 0
    failures: int = 0
    refused: int = 0  # records for which there was no room
    over_budget: int = 0  # records that the write budget left to RAM
    quarantined_parts: int = 0  # parts that left the tier behind a fence
    quarantined_features: int = 0


class LastUses(Generic[Key]):
    """Last-used times, gathered so that a hit costs no write; safe from any thread."""

    def __init__(self, now: float) -> None:
        self._lock = Lock()
        self._ticks: dict[Key, float] = {}
        self._taken_at = now

    def note(self, keys: Iterable[Key], tick: float) -> bool:
        """Note that these were used; true when it is time to write the times down."""
        with self._lock:
            self._ticks.update(dict.fromkeys(keys, tick))
            late = tick - self._taken_at >= FLUSH_S
            return bool(self._ticks) and (late or len(self._ticks) >= FLUSH_TICKS)

    def take(self, now: float) -> dict[Key, float]:
        """Return what was gathered, and begin anew."""
        with self._lock:
            ticks, self._ticks = self._ticks, {}
            self._taken_at = now
        return ticks


class SsdShelf:
    """The records on SSD; thread-safe, but writes and removals belong on one thread, in order."""

    def __init__(
        self,
        tier: Tier,
        inventory: Inventory,
        *,
        quarantine: Tier,
        owner: str,
        quota: Quota,
        holds: Holds,
        evicting: Callable[[], AbstractContextManager[None]],
        open_models: Callable[[], set[ModelName]],
        wall_clock: Callable[[], float],
    ) -> None:
        self.tier = tier
        self.quarantine = quarantine
        self.inventory = inventory
        self.quota = quota
        self.counts = Counts()
        self._owner = owner
        self._holds = holds
        self._evicting = evicting
        self._open_models = open_models
        self._wall_clock = wall_clock
        self._part_uses: LastUses[PartKey] = LastUses(wall_clock())
        self._feature_uses: LastUses[FeatureName] = LastUses(wall_clock())

    def write(self, header: Header, *, data: bytes, tick: float, cover: int) -> bool:
        """Store a part unless it is held; false if it is held with other content, a fault.

        A part that is held with a number below ``cover`` is barred: it goes aside first.
        """
        key = (header.block.name, header.group)
        inventory, owner = self.inventory, self._owner
        try:
            return self._write(
                record_key(*key),
                data,
                make_room=self.make_room,
                stage=lambda nbytes: inventory.stage(
                    header, owner=owner, nbytes=nbytes, tick=tick, cover=cover
                ),
                publish=lambda nbytes: inventory.publish(
                    key, content=header.content, nbytes=nbytes
                ),
                retract=lambda delete: inventory.retract(key, owner=owner, delete=delete),
                set_aside=lambda: self.set_aside([key], cover),
            )
        except TierError:
            self.counts.failures += 1
            return True
        finally:
            self._holds.written(key)

    def write_features(
        self, header: FeatureHeader, *, data: bytes, tick: float, cover: int
    ) -> bool:
        """Store an item's features unless they are held; false as ``write``."""
        rows, name, owner = self.inventory.features, header.name, self._owner
        try:
            return self._write(
                feature_key(name),
                data,
                make_room=self.make_feature_room,
                stage=lambda nbytes: rows.stage(
                    header, owner=owner, nbytes=nbytes, tick=tick, cover=cover
                ),
                publish=lambda nbytes: rows.publish(name, content=header.content, nbytes=nbytes),
                retract=lambda delete: rows.retract(name, owner=owner, delete=delete),
                set_aside=lambda: self.set_features_aside([name], cover),
            )
        except TierError:
            self.counts.failures += 1
            return True

    def set_aside(
        self,
        keys: Iterable[PartKey],
        number: int,
        *,
        keep: bool = True,
        below: int | None = None,
    ) -> None:
        """Move parts behind a fence to quarantine, or delete what finds no room there (I8).

        Only what is stored with a number below the fence's goes: another process may have computed
        a part anew meanwhile; ``below`` is another bound. Without ``keep`` all are deleted.
        """
        inventory = self.inventory
        for key in keys:
            # One at a time, so that whoever computes a part anew is hardly ever in its way.
            if self._seized(partial(inventory.seize, key, below or number, owner=self._owner)):
                self.counts.quarantined_parts += 1
                self._move(record_key(*key), number if keep else None, partial(self.remove, [key]))
            self._holds.gone(key)

    def set_features_aside(
        self, names: Iterable[FeatureName], number: int, *, keep: bool = True
    ) -> None:
        """Move features behind a fence to quarantine, likewise."""
        rows = self.inventory.features
        for name in names:
            if self._seized(partial(rows.seize, name, number, owner=self._owner)):
                self.counts.quarantined_features += 1
                remove = partial(self.remove_features, [name])
                self._move(feature_key(name), number if keep else None, remove)

    def _seized(self, seize: Callable[[], bool]) -> bool:
        try:
            return seize()
        except TierError:
            self.counts.failures += 1
            return False

    def barred(self, fence: Fence) -> tuple[list[PartKey], list[FeatureName]]:
        """Return what the inventory knows that a fence bars: its name and all descendants.

        Raises:
            TierError: the inventory failed.
        """
        rows, number = self.inventory.lineage, fence.number
        if fence.name is None:
            return rows.parts_before(number), rows.features_before(number)
        held = self.inventory.features.held([FeatureName(fence.name)])
        features = [name for name, one in held.items() if one.fence < number]
        parts = rows.parts_below(fence.name, number)
        return sorted(parts, key=lambda key: key[0] != fence.name), features

    def remove(self, keys: Iterable[PartKey]) -> None:
        """Delete parts that ``Holds`` says are leaving: file first, then row."""
        listed = list(keys)
        for key in listed:
            self._delete_file(record_key(*key))
        try:
            self.inventory.drop(listed)
        except TierError:
            self.counts.failures += 1
        for key in listed:
            self._holds.gone(key)

    def remove_features(self, names: Iterable[FeatureName]) -> None:
        """Delete items' features: file first, then row."""
        listed = list(names)
        for name in listed:
            self._delete_file(feature_key(name))
        try:
            self.inventory.features.drop(listed)
        except TierError:
            self.counts.failures += 1

    def make_room(self, nbytes: int) -> bool:
        """Evict until ``nbytes`` more fit the quota (I6); false if pins or the disk forbid it.

        Parts leave first; features where that is not enough.

        Raises:
            TierError: the inventory failed.
        """
        if self._over(nbytes) <= 0:
            return True
        if nbytes > self.quota.capacity:
            return False
        with self._evicting():
            for evict in (self.evict, self.evict_features, self.empty_quarantine):
                over = self._over(nbytes)  # another process may just have made room
                if over > 0:
                    evict(over + _slack(self.quota.capacity))
        return self._over(nbytes) <= 0

    def make_feature_room(self, nbytes: int) -> bool:
        """Evict features until ``nbytes`` more fit their budget; then as ``make_room`` (I6).

        Raises:
            TierError: the inventory failed.
        """
        if nbytes > self.quota.feature_capacity:
            return False
        if self._features_over(nbytes) > 0:
            with self._evicting():
                over = self._features_over(nbytes)
                if over > 0:
                    self.evict_features(over + _slack(self.quota.feature_capacity))
        return self._features_over(nbytes) <= 0 and self.make_room(nbytes)

    def fit(self, *, features: bool) -> None:
        """Bring the store under its quota, as at open: it may have been larger, or the disk.

        ``features``: bring those under their budget as well.
        """
        most = int(self.quota.capacity * ASIDE_SHARE)
        try:
            self.empty_quarantine(self.inventory.lineage.aside_used()[0] - most)
            if features:
                self.make_feature_room(0)
            self.make_room(0)
        except TierError:
            self.counts.failures += 1

    def evict(self, free: float) -> None:
        """Remove orphans, dead parts and the least recently used, until ``free`` bytes are freed.

        Raises:
            TierError: the inventory failed.
        """
        self.flush()
        pinned = self._holds.pinned_keys()
        trees = self.inventory.trees(pinned.__contains__)
        self._plant_pending(trees)
        leaving = leavers(
            trees,
            self.inventory.models(),
            open_models=self._open_models(),
            free=free,
            now=self._wall_clock(),
        )
        claimed = [key for key in leaving if self._holds.claim(key)]
        self.counts.evictions += len(claimed)
        self.remove(claimed)

    def evict_features(self, free: float) -> None:
        """Remove the least recently used features, of any model, until ``free`` bytes are freed.

        Nobody stands on them: a reader has bytes of its own, or finds the file gone.

        Raises:
            TierError: the inventory failed.
        """
        self.flush()
        victims = []
        for row in self.inventory.features.rows():
            if free <= 0:
                break
            victims.append(row.name)
            free -= row.nbytes
        self.counts.feature_evictions += len(victims)
        self.remove_features(victims)

    def empty_quarantine(self, free: float, *, before: float = inf) -> None:
        """Delete quarantined records, the oldest fence's first, until ``free`` bytes are freed.

        Only those of fences ``before`` this number.

        Raises:
            TierError: the inventory failed.
        """
        victims = []
        for one in self.inventory.lineage.aside():
            if free <= 0 or one.number >= before:
                break
            victims.append(one.key)
            free -= one.nbytes
        if not victims:
            return
        for key in victims:
            self._delete_file(key, self.quarantine)
        self.inventory.lineage.drop_aside(victims)

    def touch(self, keys: Iterable[PartKey], tick: float) -> bool:
        """Note that parts were used; true when it is time to ``save_ticks``."""
        return self._part_uses.note(keys, tick)

    def touch_features(self, names: Iterable[FeatureName], tick: float) -> bool:
        """Note that features were used; true as ``touch``."""
        return self._feature_uses.note(names, tick)

    def save_ticks(self) -> None:
        """Enter the gathered last-used times, if the inventory can take them."""
        try:
            self.flush()
        except TierError:
            self.counts.failures += 1

    def set_exactness(self, model: ModelName, exact: str) -> None:
        """Remember how exact a model's engine is, if the inventory can take it."""
        try:
            self.inventory.set_exactness(model, exact)
        except TierError:
            self.counts.failures += 1

    def note_root(self, root: BlockName, tenant: Tenant) -> None:
        """Remember whose chains begin at a root, if the inventory can take it."""
        try:
            self.inventory.lineage.note_root(root, tenant)
        except TierError:
            self.counts.failures += 1

    def flush(self) -> None:
        """Enter the gathered last-used times.

        Raises:
            TierError: the inventory failed; the times are lost, which costs nothing but order.
        """
        now = self._wall_clock()
        parts, features = self._part_uses.take(now), self._feature_uses.take(now)
        if parts:
            self.inventory.touch(parts)
        if features:
            self.inventory.features.touch(features)

    def _write(
        self,
        key: str,
        data: bytes,
        *,
        make_room: Callable[[int], bool],
        stage: Callable[[int], Verdict],
        publish: Callable[[int], bool],
        retract: Callable[[Callable[[], None]], None],
        set_aside: Callable[[], None],
    ) -> bool:
        estimate = len(data) + FILE_SLACK_BYTES
        if not self.quota.budget.allows(estimate):
            self.counts.over_budget += 1
            return True
        if not make_room(estimate):
            self.counts.refused += 1
            return True
        verdict = stage(estimate)
        for _ in range(LEAVING_TRIES):
            if verdict is Verdict.BARRED:
                set_aside()
            elif verdict is Verdict.LEAVING:
                Event().wait(LEAVING_S)
            else:
                break
            verdict = stage(estimate)
        if verdict is not Verdict.STAGED:
            self.counts.refused += verdict is not Verdict.HELD
            return verdict is not Verdict.DIFFERENT
        try:
            nbytes = self.tier.put(key, data)
            self.quota.budget.spend(nbytes)
            published = publish(nbytes)
        except TierError:
            with suppress(TierError):
                retract(lambda: self.tier.delete(key))
            raise
        if not published:
            self._delete_file(key)
        return True

    def _over(self, nbytes: int) -> int:
        used = self.used()
        over_quota = used + nbytes - self.quota.capacity
        under_floor = self.quota.free_floor + nbytes - self.quota.free_bytes()
        return max(over_quota, under_floor)

    def used(self) -> int:
        """Return the bytes of everything that counts in the quota (I6).

        Raises:
            TierError: the inventory failed.
        """
        inventory = self.inventory
        parts, features = inventory.used()[0], inventory.features.used()[0]
        return parts + features + inventory.lineage.aside_used()[0]

    def _features_over(self, nbytes: int) -> int:
        return self.inventory.features.used()[0] + nbytes - self.quota.feature_capacity

    def _plant_pending(self, trees: Trees) -> None:
        # A part still in the queue counts as held, or what it will make restorable looks dead.
        now = self._wall_clock()
        for (name, group), header in self._holds.pending().items():
            block = header.block
            nodes = trees.setdefault(block.model, {})
            node = nodes.setdefault(name, Node(block.parent, block.start, block.end))
            node.parts.setdefault(group, Stored(0, now, fast=True))

    def _move(self, key: str, number: int | None, remove: Callable[[], None]) -> None:
        """Remove a record; with a fence's ``number``, put it into quarantine if there is room."""
        # A copy and not a rename: quarantine may be another tier, and takes little of what falls.
        # Removed first, a record needs no room but its own.
        data = None
        try:
            data = self.tier.get(key) if number is not None else None
        except TierError:
            self.counts.failures += 1
        remove()
        if data is None or number is None:
            return
        aside_key = f"{number:010d}.{key}"
        try:
            # It takes up what it took where it lay: whole blocks of the disk.
            if self._room_aside(-(-len(data) // FILE_SLACK_BYTES) * FILE_SLACK_BYTES, number):
                nbytes = self.quarantine.put(aside_key, data)
                self.quota.budget.spend(nbytes)
                self.inventory.lineage.put_aside([Aside(aside_key, number, nbytes)])
        except TierError:
            self.counts.failures += 1

    def _room_aside(self, nbytes: int, number: int) -> bool:
        most = int(self.quota.capacity * ASIDE_SHARE)
        if nbytes > most or self.quota.free_bytes() - nbytes < self.quota.free_floor:
            return False
        if not self.quota.budget.allows(nbytes):
            return False
        over = self.inventory.lineage.aside_used()[0] + nbytes - most
        if over > 0:
            # What was fenced by its own name came first, and matters more than what descends.
            self.empty_quarantine(over, before=number)
            over = self.inventory.lineage.aside_used()[0] + nbytes - most
        return over <= 0 and self.used() + nbytes <= self.quota.capacity

    def _delete_file(self, key: str, tier: Tier | None = None) -> None:
        try:
            (tier or self.tier).delete(key)
        except TierError:
            self.counts.failures += 1


def _slack(capacity: int) -> int:
    return int(capacity * (1 - LOW_WATER))
