"""The cache: plan, restore, commit. One promise: a cache fault costs time, never a token (I10).

The engine thread calls ``plan``, ``pinned``, ``restore``, ``kept_groups`` and ``commit``; any
thread may ask ``status`` and ``entries``. Parts go to RAM at once and to SSD through the courier;
both hold sealed record bytes, and nothing is handed out that was not verified on the way (I2, I8).

    plan = cache.plan(blocks, limit=...)
    with cache.pinned(plan):                     # the whole turn: nothing of it is evicted (I7)
        restored = cache.restore(plan, deadline_s=...)
        ... prefill a block, cut cache.kept_groups(...) ...
        cache.commit(block, parts, turn=plan)

What a vision tower made of the prompt's images is found and stored likewise, but stands alone:
``features`` and ``commit_features``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any

from surefoot.cache import policy
from surefoot.cache.courier import Batch, Job, Lanes, Outage
from surefoot.cache.entry import Entry, part_entry
from surefoot.cache.features import FEATURE_COUNTERS, FeatureCache, FeatureRam
from surefoot.cache.lifecycle import Holds, PartKey
from surefoot.cache.planner import Load, Plan, Source, Stored, make_plan
from surefoot.cache.ram import RamShelf
from surefoot.cache.restore import Absent, Busy, Late, Loaded, Restored, restore, verify
from surefoot.cache.ssd import SsdShelf
from surefoot.errors import CacheFault, CorruptRecord, TierError
from surefoot.identity import Block, BlockName, FeatureName, ModelName
from surefoot.prompt import MediaItem
from surefoot.receipt import Miss
from surefoot.record import key as record_key
from surefoot.record import seal
from surefoot.state import Features, FeatureSchema, Group, Part, by_name

SEEN_BLOCKS = 65_536  # names kept of blocks that were computed here, stored or not; 10 MB
_COUNTERS = (
    "plans",
    "hits",
    "restored_tokens_ram",
    "restored_tokens_ssd",
    "committed_tokens",
    "verification_failures",
    "corrupt",
    "disagreements",
    "unqueued_writes",
    "dropped_writes",
    *(name for name in FEATURE_COUNTERS if name.startswith("feature")),
)


class Cache:
    """Stored prefix state of one model in this process's RAM and, with a store, on SSD."""

    def __init__(
        self,
        *,
        model: ModelName,
        groups: tuple[Group, ...],
        feature_schema: FeatureSchema | None,
        ram: RamShelf,
        feature_ram: FeatureRam,
        ssd: SsdShelf | None,
        holds: Holds,
        lanes: Lanes,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        secret: bytes,
        on_close: Callable[[], None],
    ) -> None:
        self.model = model
        self.groups = groups
        self.secret = secret
        self._by_name = by_name(groups)
        self._ram = ram
        self._ssd = ssd
        self._holds = holds
        self._lanes = lanes
        self._outage = Outage(lanes.reads, clock)
        self._clock = clock
        self._wall_clock = wall_clock
        self._on_close = on_close
        self._lock = RLock()
        self._turns: dict[Plan, list[PartKey]] = {}
        self._counts: Counter[str] = Counter()
        self._seen: dict[BlockName, None] = {}  # in order of first sight
        self._features = FeatureCache(
            model=model,
            schema=feature_schema,
            ram=feature_ram,
            ssd=ssd,
            lanes=lanes,
            outage=self._outage,
            clock=clock,
            wall_clock=wall_clock,
        )

    def plan(self, blocks: Sequence[Block], *, limit: int) -> Plan:
        """Return where a restore can stand, at most at ``limit`` blocks (I4).

        One inventory query for all blocks, and a bounded one that says where the prompt left what
        is stored. Nothing is loaded, and nothing is held in hand before ``pinned`` or ``restore``.
        """
        blocks = tuple(blocks)
        assert 0 <= limit <= len(blocks), (limit, len(blocks))
        return make_plan(
            self.groups,
            blocks,
            self._stored(blocks),
            limit=limit,
            children=lambda block: self._children(block, blocks),
            tick=self._clock(),
            wall=self._wall_clock(),
        )

    @contextmanager
    def pinned(self, plan: Plan) -> Iterator[Plan]:
        """Hold the plan's parts, and what the turn commits, until the turn ends (I7)."""
        with self._lock:
            assert plan not in self._turns, "a plan is one turn's"
            self._turns[plan] = list(plan.keys)
            self._holds.pin(plan.keys)
        try:
            yield plan
        finally:
            with self._lock:
                self._drop(self._holds.unpin(self._turns.pop(plan)))

    def restore(self, plan: Plan, *, deadline_s: float) -> Restored:
        """Load and verify what the plan names, for at most ``deadline_s``; blocks the caller.

        Returns the parts of the greatest boundary that could be made to stand (I4), possibly 0, and
        promotes what came from SSD into RAM. Never raises for a fault of a tier (I10).
        """
        deadline = self._clock() + deadline_s
        borrowed: list[PartKey] = []

        def fetch(loads: Sequence[Load]) -> Mapping[Load, Loaded | CacheFault]:
            keys = [(plan.blocks[load.block].name, load.group) for load in loads]
            self._holds.pin(keys)
            borrowed.extend(keys)
            return self._fetch(plan, loads, deadline)

        restored, outcomes = restore(plan, self.groups, fetch)
        with self._lock:
            self._blame(plan, outcomes.failed, borrowed)
            self._promote(plan, outcomes.loaded)
            self._used([(plan.blocks[i].name, group) for group, i in restored.contents], plan)
            self._drop(self._holds.unpin(borrowed))
        self._counts["plans"] += 1
        self._counts["hits"] += restored.boundary > 0
        for source, tokens in restored.sources.items():
            self._counts[f"restored_tokens_{source}"] += tokens
        return restored

    def kept_groups(self, plan: Plan, block_index: int, *, prompt_tokens: int) -> frozenset[str]:
        """Return the groups whose part of this block is to be cut (``policy`` states the law)."""
        return policy.kept_groups(
            self.groups,
            plan.blocks,
            block_index,
            prompt_tokens=prompt_tokens,
            branch=plan.branch,
        )

    def commit(
        self,
        block: Block,
        parts: Sequence[tuple[Part, bytes]],
        *,
        turn: Plan | None = None,
        features: Sequence[FeatureName] = (),
    ) -> int:
        """Store a block's parts, each with its content digest; return the tokens newly added.

        In RAM on return if there is room, on SSD soon after. A part that is held already is
        compared by content: a difference means that the same computation gave two results, so
        neither is kept. With ``turn``, the parts are pinned until that turn's ``pinned`` ends. A
        block without parts is worth a call too: a later prompt learns where it leaves this one.
        The records name the ``features`` that the block consumed.
        """
        with self._lock:
            self._see(block.name)
            # A fenced part is pinned still: stored anew only once its last borrower let go (I7).
            parts = [one for one in parts if not self._holds.fenced((block.name, one[0].group))]
            stored, durable = self._contents(block.name)
            if any(stored.get(part.group, content) != content for part, content in parts):
                self._disagree(block.name)
                return 0
            added = [
                self._keep(
                    block,
                    part,
                    content,
                    durable=part.group in durable,
                    turn=turn,
                    features=features,
                )
                for part, content in parts
            ]
        if not any(added):
            return 0
        self._counts["committed_tokens"] += block.end - block.start
        return block.end - block.start

    def features(
        self, wanted: Mapping[FeatureName, MediaItem], *, deadline_s: float
    ) -> dict[FeatureName, Features]:
        """Return what is stored of the wanted items' features; blocks for ``deadline_s`` at most.

        Each was verified and compared with its item (I2); one that is absent, late or damaged is
        left out, for the tower to make. Components are views that stay valid. Never raises for a
        fault of a tier (I10).
        """
        return self._features.find(wanted, deadline_s=deadline_s)

    def commit_features(self, name: FeatureName, item: MediaItem, features: Features) -> None:
        """Store what the tower made of an item: in RAM at once if it fits, on SSD soon after.

        Features that are held already are compared by content, as parts are by ``commit``.
        """
        self._features.commit(name, item, features)

    def status(self) -> dict[str, Any]:
        """Return figures for ``/v1/cache`` and ``/metrics``; counts only, nothing of a prompt."""
        with self._lock:
            ram = {
                "bytes": self._ram.used_bytes,
                "capacity": self._ram.capacity,
                "parts": self._ram.parts,
                "evictions": self._ram.evictions,
                "failures": 0,
                "stalls": 0,
                "state": "up",
            }
            counts = self._counts + self._features.counters()
        counters = {name: counts[name] for name in _COUNTERS}
        tiers = {Source.RAM.value: ram}
        if self._ssd:
            tiers[Source.SSD.value] = self._ssd_status(self._ssd)
            counters["refused_writes"] = self._ssd.counts.refused
        return {
            "model": self.model.hex(),
            "tiers": tiers,
            "features": self._features.status(),
            "pending_writes": self._lanes.writes.pending(),
            "counters": counters,
        }

    def entries(self) -> Iterator[Entry]:
        """Yield every record this process can see, in no promised order."""
        with self._lock:
            held = {(block.name, group): (block, part) for block, group, part in self._ram.items()}
        for row in self._ssd.inventory.rows() if self._ssd else ():
            in_ram = held.pop((row.name, row.group), None)
            tiers = (Source.RAM.value, Source.SSD.value) if in_ram else (Source.SSD.value,)
            yield part_entry(row, tiers)
        for (name, group), (block, part) in held.items():
            tiers = (Source.RAM.value,)
            yield Entry(name.hex(), group, block.start, block.end, part.nbytes, tiers, None, "part")
        yield from self._features.entries()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything committed is durable; false if that takes too long."""
        return self._lanes.writes.drain(timeout_s)

    def close(self) -> None:
        """Stop the I/O threads and close the store; writes still queued are lost (``drain``)."""
        self._lanes.reads.close()
        self._counts["dropped_writes"] += self._lanes.writes.close()
        if self._ssd:
            self._ssd.save_ticks()
        self._on_close()

    # Planning.

    def _stored(self, blocks: Sequence[Block]) -> Stored:
        names = [block.name for block in blocks]
        # Barred first: a row read before its deletion must not outlive the mark of it (I8).
        fenced, leaving = self._holds.barred()
        on_ssd, unknown = self._ssd_contents(names)
        down = self._outage.lasts
        with self._lock:
            in_ram = {(name, group) for name in names for group in self._ram.held(name)}
        usable = {
            key: Source.SSD
            for key in on_ssd
            if not down and key not in leaving and key not in fenced
        }
        usable.update((key, Source.RAM) for key in in_ram if key not in fenced)
        known = frozenset(in_ram) | frozenset(on_ssd)
        barred = Miss.EVICTED
        if known & fenced:
            barred = Miss.CORRUPT
        elif down:
            barred = Miss.TIER_ERROR
        return Stored(usable, known, self._seen.__contains__, barred, unknown)

    def _children(self, block: Block | None, blocks: Sequence[Block]) -> list[Block]:
        parent = block.name if block else blocks[0].parent
        with self._lock:
            found = self._ram.children(parent)
        if self._ssd:
            with suppress(TierError):
                found += self._ssd.inventory.children(parent)
        return found

    def _ssd_contents(self, names: Sequence[BlockName]) -> tuple[dict[PartKey, bytes], bool]:
        if not self._ssd or not names:
            return {}, False
        try:
            return self._ssd.inventory.held(names), False
        except TierError:
            self._ssd.counts.failures += 1
            return {}, True

    # Restoring.

    def _fetch(
        self, plan: Plan, loads: Sequence[Load], deadline: float
    ) -> Mapping[Load, Loaded | CacheFault]:
        results: dict[Load, Loaded | CacheFault] = {}
        batch: Batch[Load, Loaded] = Batch(self._lanes.reads, self._clock)
        _, leaving = self._holds.barred()
        submitted = []
        for load in loads:
            if load.source is not Source.SSD:
                continue
            block = plan.blocks[load.block]
            # Pinned by now, so what is not leaving yet can no longer leave (I7).
            if (block.name, load.group) in leaving:
                results[load] = Absent(f"block {block.name.hex()} is being evicted")
            elif batch.submit(load, self._reader(block, load.group)):
                submitted.append(load)
            else:
                results[load] = Busy("no I/O thread is free")
        for load in loads:
            if load.source is Source.RAM:
                results[load] = self._from_ram(plan.blocks[load.block], load.group, deadline)
        arrived = batch.wait(deadline) if submitted else {}
        if batch.stalled:
            self._outage.begin()
        results.update((load, arrived.get(load, Late("the deadline passed"))) for load in submitted)
        return results

    def _reader(self, block: Block, group: str) -> Callable[[], Loaded]:
        ssd = self._ssd
        assert ssd is not None

        def read() -> Loaded:
            data = ssd.tier.get(record_key(block.name, group))
            if data is None:
                raise Absent(f"block {block.name.hex()} was evicted")
            return verify(data, block, self._by_name[group])

        return read

    def _from_ram(self, block: Block, group: str, deadline: float) -> Loaded | CacheFault:
        if self._clock() > deadline:
            return Late("the deadline passed")
        with self._lock:
            data = self._ram.get((block.name, group))
        if data is None:
            return Absent(f"block {block.name.hex()} was evicted")
        try:
            return verify(data, block, self._by_name[group])
        except CorruptRecord as fault:
            return fault

    def _blame(
        self, plan: Plan, failed: Mapping[Load, CacheFault], borrowed: list[PartKey]
    ) -> None:
        # Whoever found a bad part stands on it no more; others may (``lifecycle``).
        for load, fault in failed.items():
            key = (plan.blocks[load.block].name, load.group)
            if isinstance(fault, TierError) and self._ssd:
                self._ssd.counts.failures += 1
            if isinstance(fault, CorruptRecord):
                self._counts["corrupt"] += 1
                self._counts["verification_failures"] += 1
            if isinstance(fault, CorruptRecord | Absent):
                self._let_go(key, borrowed)
                self._let_go(key, self._turns.get(plan, []))
                self._drop(self._holds.fence([key]))

    def _let_go(self, key: PartKey, held: list[PartKey]) -> None:
        while key in held:
            held.remove(key)
            self._drop(self._holds.unpin([key]))

    def _promote(self, plan: Plan, loaded: Mapping[Load, Loaded]) -> None:
        for load, found in loaded.items():
            block = plan.blocks[load.block]
            key = (block.name, load.group)
            if load.source is Source.SSD and self._ram.content(key) is None:
                self._ram.put(block, load.group, found.data, content=found.content, tick=plan.tick)

    def _used(self, keys: Iterable[PartKey], plan: Plan) -> None:
        listed = list(keys)
        for key in listed:
            self._ram.touch(key, plan.tick)
        if self._ssd and self._ssd.touch(listed, plan.wall):
            self._write_soon(self._ssd.save_ticks, nbytes=0)

    # Committing.

    def _contents(self, name: BlockName) -> tuple[dict[str, bytes], set[str]]:
        """Return the content digests of a block's parts, and which are on SSD or on their way."""
        _, leaving = self._holds.barred()  # first, as in ``_stored``
        on_ssd, _ = self._ssd_contents([name])
        pending = self._holds.pending_contents((name, group) for group in self._by_name)
        durable = {
            key[1]: content for key, content in {**on_ssd, **pending}.items() if key not in leaving
        }
        in_ram = {
            group: content
            for group in self._ram.held(name)
            if (content := self._ram.content((name, group)))
        }
        return {**durable, **in_ram}, set(durable)

    def _keep(
        self,
        block: Block,
        part: Part,
        content: bytes,
        *,
        durable: bool,
        turn: Plan | None,
        features: Sequence[FeatureName],
    ) -> bool:
        """Put a part wherever it is not yet; return whether no tier had it and one does now."""
        key = (block.name, part.group)
        # One time for all of a turn: among equals the deepest block leaves first (``forest``).
        tick = turn.tick if turn else self._clock()
        wall = turn.wall if turn else self._wall_clock()
        in_ram = self._ram.content(key) is not None
        wanted = self._ssd is not None and not durable
        taken = False
        if not in_ram or wanted:
            found = self._ram.get(key) if in_ram else None
            data = found or seal(block, part, content=content, features=features)
            if not in_ram:
                taken = self._ram.put(block, part.group, data, content=content, tick=tick)
            if wanted:
                taken = self._queue(block, part.group, content, data, wall) or taken
        self._ram.touch(key, tick)
        if durable and self._ssd:
            self._ssd.touch([key], wall)
        if turn in self._turns and (taken or in_ram or durable):
            self._holds.pin([key])
            self._turns[turn].append(key)
        return taken and not (in_ram or durable)

    def _see(self, name: BlockName) -> None:
        self._seen[name] = None
        if len(self._seen) > SEEN_BLOCKS:
            del self._seen[next(iter(self._seen))]

    def _queue(self, block: Block, group: str, content: bytes, data: bytes, wall: float) -> bool:
        ssd = self._ssd
        assert ssd is not None

        def write() -> None:
            if not ssd.write(block, group, content=content, data=data, tick=wall):
                with self._lock:
                    self._disagree(block.name)

        key = (block.name, group)
        self._holds.queue(key, block, content)
        if self._write_soon(write, nbytes=len(data)):
            return True
        # The queue is full: RAM may still have it, and the engine thread never waits for a disk.
        self._holds.written(key)
        self._counts["unqueued_writes"] += 1
        return False

    # Letting go.

    def _disagree(self, name: BlockName) -> None:
        """Keep neither of two results of one computation, in any tier (I8).

        Only the block itself goes. What was computed on top of it is found by lineage, which is
        where a numbered fence over descendants belongs.
        """
        self._counts["disagreements"] += 1
        on_ssd, _ = self._ssd_contents([name])
        keys = {*on_ssd, *((name, group) for group in self._ram.held(name))}
        keys.update(key for key in self._holds.pending() if key[0] == name)
        self._drop(self._holds.fence(keys))

    def _drop(self, keys: Sequence[PartKey]) -> None:
        """Delete parts from every tier; on SSD in order with the writes that are queued."""
        for key in keys:
            self._ram.remove(key)
        ssd = self._ssd
        if not ssd or not keys:
            return
        for key in keys:
            self._holds.leave(key)
        # Refused by a lane that is stuck or closed: then they stay barred in this process.
        self._write_soon(lambda: ssd.remove(keys), nbytes=0)

    def _write_soon(self, run: Callable[[], None], *, nbytes: int) -> bool:
        return self._lanes.writes.submit(Job(run, nbytes))

    def _ssd_status(self, ssd: SsdShelf) -> dict[str, Any]:
        reads, writes = self._lanes
        state = "down" if self._outage.lasts or writes.stuck else "up"
        try:
            used, parts = ssd.inventory.used()
        except TierError:
            used, parts, state = 0, 0, "down"
        return {
            "bytes": used,
            "capacity": ssd.quota.capacity,
            "parts": parts,
            "evictions": ssd.counts.evictions,
            "failures": ssd.counts.failures,
            "stalls": reads.stalls + writes.stalls,
            "state": state,
        }
