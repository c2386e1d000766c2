"""The SSD tier as the cache uses it: inventory, files, quota. Runs on the write lane's thread.

Order is what keeps a crash harmless: row ``staged``, file, row ``stored``; when leaving, file, then
row. A row without a file is a miss, a file without a row is found at the next open. Used bytes are
the real bytes of the files, staged ones at their length, and never exceed the capacity (I6); room
is made before a write, down to ``LOW_WATER``, by one process at a time.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import Lock

from surefoot.cache.forest import Node, Stored
from surefoot.cache.inventory import Inventory, Trees, Verdict
from surefoot.cache.lifecycle import Holds, PartKey
from surefoot.cache.quota import leavers
from surefoot.errors import TierError
from surefoot.identity import Block, ModelName
from surefoot.record import key as record_key
from surefoot.tiers import Tier

LOW_WATER = 0.95  # an eviction goes down to this, so that one judges the store for many writes
FILE_SLACK_BYTES = 4096  # a file takes up whole blocks of the disk
FLUSH_TICKS = 1024
FLUSH_S = 10.0


@dataclass(frozen=True, slots=True)
class Quota:
    """How many bytes the store may take up, and how many the disk must keep free."""

    capacity: int
    free_floor: int
    free_bytes: Callable[[], int]


@dataclass(slots=True)
class Counts:
    """What happened to this tier since the process started."""

    evictions: int = 0
    failures: int = 0
    refused: int = 0  # parts for which there was no room
    corrupt: int = 0


class SsdShelf:
    """The parts on SSD; thread-safe, but writes and removals belong on one thread, in order."""

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
        self._ticks: dict[PartKey, float] = {}
        self._ticks_lock = Lock()
        self._flushed_at = wall_clock()

    def write(self, block: Block, group: str, *, content: bytes, data: bytes, tick: float) -> bool:
        """Store a part unless it is held; false if it is held with other content, a fault."""
        key = (block.name, group)
        try:
            return self._write(block, group, content=content, data=data, tick=tick)
        except TierError:
            self.counts.failures += 1
            return True
        finally:
            self._holds.written(key)

    def remove(self, keys: Iterable[PartKey]) -> None:
        """Delete parts that ``Holds`` says are leaving: file first, then row."""
        listed = list(keys)
        for key in listed:
            self._delete_file(key)
        try:
            self.inventory.drop(listed)
        except TierError:
            self.counts.failures += 1
        for key in listed:
            self._holds.gone(key)

    def make_room(self, nbytes: int) -> bool:
        """Evict until ``nbytes`` more fit the quota (I6); false if pins or the disk forbid it.

        Raises:
            TierError: the inventory failed.
        """
        if self._over(nbytes) <= 0:
            return True
        if nbytes > self.quota.capacity:
            return False
        with self._evicting():
            over = self._over(nbytes)  # another process may just have made room
            if over > 0:
                self.evict(over + int(self.quota.capacity * (1 - LOW_WATER)))
        return self._over(nbytes) <= 0

    def fit(self) -> None:
        """Bring the store under its quota, as at open: it may have been larger, or the disk."""
        try:
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

    def touch(self, keys: Iterable[PartKey], tick: float) -> bool:
        """Note that parts were used; true when it is time to ``save_ticks``."""
        with self._ticks_lock:
            self._ticks.update(dict.fromkeys(keys, tick))
            late = tick - self._flushed_at >= FLUSH_S
            return bool(self._ticks) and (late or len(self._ticks) >= FLUSH_TICKS)

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
        with self._ticks_lock:
            ticks, self._ticks = self._ticks, {}
            self._flushed_at = self._wall_clock()
        if ticks:
            self.inventory.touch(ticks)

    def _write(self, block: Block, group: str, *, content: bytes, data: bytes, tick: float) -> bool:
        key = (block.name, group)
        estimate = len(data) + FILE_SLACK_BYTES
        if not self.make_room(estimate):
            self.counts.refused += 1
            return True
        verdict = self.inventory.stage(
            block,
            group,
            owner=self._owner,
            nbytes=estimate,
            content=content,
            tick=tick,
        )
        if verdict is not Verdict.STAGED:
            return verdict is Verdict.HELD
        try:
            nbytes = self.tier.put(record_key(*key), data)
            published = self.inventory.publish(key, owner=self._owner, nbytes=nbytes)
        except TierError:
            with suppress(TierError):
                self.tier.delete(record_key(*key))
            with suppress(TierError):
                self.inventory.drop([key])
            raise
        if not published:
            self._delete_file(key)
        return True

    def _over(self, nbytes: int) -> int:
        used, _ = self.inventory.used()
        over_quota = used + nbytes - self.quota.capacity
        under_floor = self.quota.free_floor + nbytes - self.quota.free_bytes()
        return max(over_quota, under_floor)

    def _plant_pending(self, trees: Trees) -> None:
        # A part still in the queue counts as held, or what it will make restorable looks dead.
        now = self._wall_clock()
        for (name, group), (block, _) in self._holds.pending().items():
            nodes = trees.setdefault(block.model, {})
            node = nodes.setdefault(name, Node(block.parent, block.start, block.end))
            node.parts.setdefault(group, Stored(0, now, fast=True))

    def _delete_file(self, key: PartKey) -> None:
        try:
            self.tier.delete(record_key(*key))
        except TierError:
            self.counts.failures += 1
