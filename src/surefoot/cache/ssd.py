"""The SSD tier as the cache uses it: inventory, files, quotas. Runs on the write lane's thread.

Order is what keeps a crash harmless: row ``staged``, file, row ``stored``; when leaving, file, then
row. A row without a file is a miss, a file without a row is found at the next open. Used bytes are
the real bytes of the files, staged ones at their length, and never exceed the capacity (I6); room
is made before a write, down to ``LOW_WATER``, by one process at a time.

Parts and features share the capacity; features have a budget of their own inside it, for which only
features leave. Where the capacity itself is short, parts leave first, and features only when no
part is left that may go.
"""

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from surefoot.cache.forest import Node, Stored
from surefoot.cache.inventory import Inventory, Trees
from surefoot.cache.lifecycle import Holds, PartKey, Verdict
from surefoot.cache.quota import leavers
from surefoot.errors import TierError
from surefoot.identity import Block, FeatureName, ModelName
from surefoot.record import FeatureHeader, feature_key
from surefoot.record import key as record_key
from surefoot.tiers import Tier

LOW_WATER = 0.95  # an eviction goes down to this, so that one judges the store for many writes
FILE_SLACK_BYTES = 4096  # a file takes up whole blocks of the disk
FLUSH_TICKS = 1024
FLUSH_S = 10.0

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Quota:
    """How many bytes the store may take up, and how many the disk must keep free."""

    capacity: int
    feature_capacity: int  # of the capacity, what features may take up
    free_floor: int
    free_bytes: Callable[[], int]


@dataclass(slots=True)
class Counts:
    """What happened to this tier since the process started."""

    evictions: int = 0
    feature_evictions: int = 0
    failures: int = 0
    refused: int = 0  # records for which there was no room


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
        owner: str,
        quota: Quota,
        holds: Holds,
        evicting: Callable[[], AbstractContextManager[None]],
        open_models: Callable[[], set[ModelName]],
        wall_clock: Callable[[], float],
    ) -> None:
        self.tier = tier
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

    def write(self, block: Block, group: str, *, content: bytes, data: bytes, tick: float) -> bool:
        """Store a part unless it is held; false if it is held with other content, a fault."""
        key = (block.name, group)
        inventory, owner = self.inventory, self._owner
        try:
            return self._write(
                record_key(*key),
                data,
                make_room=self.make_room,
                stage=lambda nbytes: inventory.stage(
                    block, group, owner=owner, nbytes=nbytes, content=content, tick=tick
                ),
                publish=lambda nbytes: inventory.publish(key, owner=owner, nbytes=nbytes),
                drop=lambda: inventory.drop([key]),
            )
        except TierError:
            self.counts.failures += 1
            return True
        finally:
            self._holds.written(key)

    def write_features(self, header: FeatureHeader, *, data: bytes, tick: float) -> bool:
        """Store an item's features unless they are held; false as ``write``."""
        rows, name, owner = self.inventory.features, header.name, self._owner
        try:
            return self._write(
                feature_key(name),
                data,
                make_room=self.make_feature_room,
                stage=lambda nbytes: rows.stage(header, owner=owner, nbytes=nbytes, tick=tick),
                publish=lambda nbytes: rows.publish(name, owner=owner, nbytes=nbytes),
                drop=lambda: rows.drop([name]),
            )
        except TierError:
            self.counts.failures += 1
            return True

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
            for evict in (self.evict, self.evict_features):
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
        try:
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
        drop: Callable[[], None],
    ) -> bool:
        estimate = len(data) + FILE_SLACK_BYTES
        if not make_room(estimate):
            self.counts.refused += 1
            return True
        verdict = stage(estimate)
        if verdict is not Verdict.STAGED:
            return verdict is Verdict.HELD
        try:
            published = publish(self.tier.put(key, data))
        except TierError:
            with suppress(TierError):
                self.tier.delete(key)
            with suppress(TierError):
                drop()
            raise
        if not published:
            self._delete_file(key)
        return True

    def _over(self, nbytes: int) -> int:
        used = self.inventory.used()[0] + self.inventory.features.used()[0]
        over_quota = used + nbytes - self.quota.capacity
        under_floor = self.quota.free_floor + nbytes - self.quota.free_bytes()
        return max(over_quota, under_floor)

    def _features_over(self, nbytes: int) -> int:
        return self.inventory.features.used()[0] + nbytes - self.quota.feature_capacity

    def _plant_pending(self, trees: Trees) -> None:
        # A part still in the queue counts as held, or what it will make restorable looks dead.
        now = self._wall_clock()
        for (name, group), (block, _) in self._holds.pending().items():
            nodes = trees.setdefault(block.model, {})
            node = nodes.setdefault(name, Node(block.parent, block.start, block.end))
            node.parts.setdefault(group, Stored(0, now, fast=True))

    def _delete_file(self, key: str) -> None:
        try:
            self.tier.delete(key)
        except TierError:
            self.counts.failures += 1


def _slack(capacity: int) -> int:
    return int(capacity * (1 - LOW_WATER))
