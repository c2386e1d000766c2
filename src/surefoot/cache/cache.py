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
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from surefoot.cache import policy
from surefoot.cache.audit import AUDIT_COUNTERS, Auditor
from surefoot.cache.committing import Committer, Stamp
from surefoot.cache.courier import Job, finish
from surefoot.cache.entry import Entry, part_entry
from surefoot.cache.evidence import Evidence
from surefoot.cache.features import FEATURE_COUNTERS, FeatureCache
from surefoot.cache.fences import Fence, Reason
from surefoot.cache.figures import Figures
from surefoot.cache.lifecycle import PartKey
from surefoot.cache.lineage_rows import Tenant
from surefoot.cache.loading import Loader
from surefoot.cache.planner import Load, Plan, Source, Stored, make_plan
from surefoot.cache.quarantine import Quarantine
from surefoot.cache.restore import Absent, Barred, Loaded, Restored, restore
from surefoot.cache.shelves import OpenStore, Shelves
from surefoot.errors import CacheFault, CorruptRecord, TierError
from surefoot.identity import Block, BlockName, FeatureName, KeyId, ModelName, salt_tag, store_id
from surefoot.prompt import MediaItem
from surefoot.receipt import Miss, Receipt
from surefoot.record import Header
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
    "absent",  # records that were planned on, and whose file was gone
    "disagreements",
    "unqueued_writes",
    "dropped_writes",
    *(name for name in FEATURE_COUNTERS if name.startswith("feature")),
    *AUDIT_COUNTERS,
)


@dataclass(slots=True)
class _Turn:
    """What a running turn holds in hand, and the last fence that its records may know."""

    planned: list[PartKey]
    committed: list[PartKey]
    fence: int


class Cache:
    """Stored prefix state of one model in this process's RAM and, with a store, on SSD."""

    def __init__(
        self,
        model: ModelName,
        groups: tuple[Group, ...],
        feature_schema: FeatureSchema | None,
        shelves: Shelves,
        opened: OpenStore,
    ) -> None:
        self.model = model
        self.groups = groups
        self.secret = opened.secret
        self._by_name = by_name(groups)
        self._ram = shelves.ram
        self._ssd = shelves.ssd
        self._holds = shelves.holds
        self._lanes = shelves.lanes
        self._outage = shelves.outage
        self._lock = shelves.lock
        self._clock = shelves.clock
        self._wall_clock = shelves.wall_clock
        self._on_close = opened.close
        self._turns: dict[Plan, _Turn] = {}
        self._counts: Counter[str] = Counter()
        self._seen: dict[BlockName, None] = {}  # in order of first sight
        self._roots: set[BlockName] = set()  # whose tenants are noted
        self._fences = opened.fences
        self._journal = opened.journal
        self._quarantine = Quarantine(
            opened.fences, shelves, standing=self._standing, on_raised=opened.on_fence
        )
        self._features = FeatureCache(model, feature_schema, shelves, self._quarantine)
        self._committer = Committer(shelves, self._quarantine, self._counts)
        self._loader = Loader(self._by_name, shelves)
        self._figures = Figures(shelves, self._features, self._quarantine)
        self.auditor = Auditor(
            model=model,
            groups=self._by_name,
            feature_schema=feature_schema,
            shelves=shelves,
            quarantine=self._quarantine,
        )
        self._exact = self._remembered_exactness()

    @property
    def exact(self) -> str:
        """``bitwise``; ``numeric`` once an audit found that the engine does not repeat itself."""
        return self._exact

    def not_repeating(self, detail: str) -> None:
        """Say that the engine gave two results for one computation: nothing is bitwise any more."""
        self._exact = "numeric"
        self._counts["not_repeating"] += 1
        ssd = self._ssd
        if ssd:
            self._write_soon(lambda: ssd.set_exactness(self.model, "numeric"), nbytes=0)

    def plan(
        self,
        blocks: Sequence[Block],
        *,
        limit: int,
        features: Sequence[tuple[FeatureName, ...]] = (),
    ) -> Plan:
        """Return where a restore can stand, at most at ``limit`` blocks (I4).

        One inventory query for all blocks, and a bounded one that says where the prompt left what
        is stored. Nothing is loaded, and nothing is held in hand before ``pinned`` or ``restore``.

        Args:
            blocks: every whole block of the prompt.
            limit: the last boundary that a restore may stand at, in blocks.
            features: by block, the features it consumes; empty where no block does.
        """
        blocks, features = tuple(blocks), tuple(features)
        assert 0 <= limit <= len(blocks), (limit, len(blocks))
        assert len(features) in (0, len(blocks)), (len(features), len(blocks))
        stored, fence = self._stored(blocks, features)
        return make_plan(
            self.groups,
            blocks,
            stored,
            limit=limit,
            children=lambda block: self._children(block, blocks),
            tick=self._clock(),
            wall=self._wall_clock(),
            fence=fence,
            features=features,
        )

    @contextmanager
    def pinned(self, plan: Plan) -> Iterator[Plan]:
        """Hold the plan's parts, and what the turn commits, until the turn ends (I7)."""
        with self._lock:
            assert plan not in self._turns, "a plan is one turn's"
            self._turns[plan] = _Turn(list(plan.keys), [], plan.fence)
            self._holds.pin(plan.keys)
        try:
            yield plan
        finally:
            with self._lock:
                turn = self._turns.pop(plan)
                self._quarantine.drop(self._holds.unpin(turn.planned + turn.committed))

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
            return self._loader.fetch(plan, loads, deadline)

        restored, outcomes = restore(plan, self.groups, fetch, partial(self._judge, plan))
        with self._lock:
            used = [(plan.blocks[i].name, group) for group, i in restored.contents]
            self._let_go_of_the_rest(plan, used)
            self._blame(plan, outcomes.failed, borrowed)
            self._promote(plan, outcomes.loaded)
            self._used(used, plan)
            self._quarantine.drop(self._holds.unpin(borrowed))
        if any(isinstance(fault, CorruptRecord | Barred) for fault in outcomes.failed.values()):
            self._advance(plan, restored)
        self._counts["plans"] += 1
        self._counts["hits"] += restored.boundary > 0
        for source, tokens in restored.sources.items():
            self._counts[f"restored_tokens_{source}"] += tokens
        return restored

    def stands(self, plan: Plan, blocks: int, features: Iterable[FeatureName] = ()) -> bool:
        """Return whether no fence that came after the plan bars what its turn took from here.

        Args:
            plan: the turn's.
            blocks: how many of the plan's blocks it restored.
            features: those it found.
        """
        self._quarantine.look()
        number = self._number(plan)
        if self._fences.last == number and not self._fences.pending():
            return True
        cover = self._fences.covering(plan.blocks[:blocks], plan.features[:blocks])
        return max([0, *cover, *map(self._fences.number_of, features)]) <= number

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
        compared by content: a difference means that the same computation gave two results, so the
        name is quarantined and neither is kept. With ``turn``, the parts are pinned until that
        turn's ``pinned`` ends, and a turn that stands on what was quarantined since its plan
        commits nothing more (I8). A block without parts is worth a call too: a later prompt learns
        where it leaves this one. The records name the ``features`` that the block consumed.
        """
        _, leaving = self._holds.barred()  # first: no row is to outlive the mark of it (I8)
        look = self._quarantine.look([block.name])
        with self._lock:
            self._see(block.name)
            number = self._number(turn) if turn else self._fences.last
            cover = self._cover(block, turn, features)
            if cover > number:
                return 0  # it stands on what was quarantined since
            # A fenced part is pinned still: stored anew only once its last borrower let go (I7).
            kept = [one for one in parts if not self._holds.fenced((block.name, one[0].group))]
            # One time for all of a turn: among equals the deepest block leaves first (``forest``).
            tick, wall = (turn.tick, turn.wall) if turn else (self._clock(), self._wall_clock())
            new = self._committer.commit(
                [
                    Header(block, part.group, content, tuple(features), number)
                    for part, content in kept
                ],
                [part for part, _ in kept],
                look,
                Stamp(cover, tick, wall, partial(self._cover, block, turn, features), leaving),
                hold=partial(self._hold, turn),
            )
        if not new:
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

    def commit_features(
        self,
        name: FeatureName,
        item: MediaItem,
        features: Features,
        *,
        turn: Plan | None = None,
    ) -> None:
        """Store what the tower made of an item: in RAM at once if it fits, on SSD soon after.

        Features that are held already are compared by content, as parts are by ``commit``.
        """
        self._features.commit(name, item, features, fence=self._number(turn) if turn else None)

    def quarantine(self, name: bytes, reason: Reason, detail: str) -> Fence:
        """Bar a block, a root or features by name, with all that descends from it (I8).

        On return the fence is durable and nothing of it is in this process's RAM; every process
        that has the store open sees it before its next plan. Bytes on SSD move aside soon.

        Raises:
            TierError: the fence is not durable yet; it holds in this process, and is tried again.
        """
        return self._quarantine.raise_fence(name, reason, detail)

    def lineage(self, name: BlockName) -> tuple[Block, ...] | None:
        """Return a stored block's chain, from the root's first block to it; None if one is gone."""
        chain: list[Block] = []
        at = name
        while not chain or chain[-1].start > 0:
            block = self._block(at)
            if block is None or (chain and block.end != chain[-1].start):
                return None
            chain.append(block)
            at = block.parent
        return tuple(reversed(chain))

    def status(self) -> dict[str, Any]:
        """Return figures for ``/v1/cache`` and ``/metrics``; counts only, nothing of a prompt."""
        with self._lock:
            counters = self._counters()
        shown = self._figures.shown(counters)
        return {"model": self.model.hex(), "exact": self.exact} | shown

    def note_tenant(self, root: BlockName, *, key: KeyId | None, cache_salt: str | None) -> None:
        """Remember whose chains begin at a root, so that they can be purged; the first time only.

        Of a ``cache_salt`` a tag is kept that the store's secret is needed for.
        """
        ssd = self._ssd
        if ssd is None or root in self._roots:
            return
        self._roots.add(root)
        tag = None if cache_salt is None else salt_tag(self.secret, cache_salt)
        tenant = Tenant(key, tag, store_id(self.secret))
        self._write_soon(lambda: ssd.note_root(root, tenant), nbytes=0)

    def remember(self, receipt: Receipt, evidence: Evidence) -> None:
        """Enter a receipt and what its turn touched into the store's journal, soon."""
        journal = self._journal
        if journal is None:
            return
        with self._lock:
            counters = self._counters()
        at = self._wall_clock()

        def enter() -> None:
            journal.enter(receipt, evidence, counters=counters, at=at)

        if not self._write_soon(enter, nbytes=evidence.nbytes):
            journal.dropped += 1

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
        finish(self._end)  # a medium that does not answer is left behind

    def _end(self) -> None:
        if self._ssd:
            self._ssd.save_ticks()
        if self._journal:
            self._journal.close()
        self._on_close()

    def _remembered_exactness(self) -> str:
        if not self._ssd:
            return "bitwise"
        try:
            return self._ssd.inventory.exactness(self.model)
        except TierError:
            self._ssd.counts.failures += 1
            return "bitwise"

    def _counters(self) -> dict[str, int]:
        counts = self._counts + self._features.counters() + self.auditor.counters()
        counters = {name: counts[name] for name in _COUNTERS}
        if self._journal:
            counters["journal_dropped"] = self._journal.dropped + self._journal.failed
        return counters

    # Planning.

    def _stored(
        self, blocks: Sequence[Block], features: tuple[tuple[FeatureName, ...], ...]
    ) -> tuple[Stored, int]:
        """Return what the tiers hold of these blocks, and the last fence that this regards."""
        # Barred first: a row read before its deletion must not outlive the mark of it (I8).
        fenced, leaving = self._holds.barred()
        look = self._quarantine.look([block.name for block in blocks])
        down = self._outage.lasts
        with self._lock:
            number = self._fences.last
            cover = self._fences.covering(blocks, features)
            named = self._fences.named(blocks, features)
            in_ram = {
                (block.name, group): (part.fence, bar)
                for block, bar in zip(blocks, cover, strict=True)
                for group, part in self._ram.held(block.name).items()
            }
        bars = {block.name: bar for block, bar in zip(blocks, cover, strict=True)}
        good_ssd = {
            key for key, held in look.parts.items() if self._fences.good(held.fence, bars[key[0]])
        }
        good_ram = {key for key, held in in_ram.items() if self._fences.good(*held)}
        usable: dict[PartKey, Source] = {}
        if look.fenced:
            off = fenced | leaving
            usable = {key: Source.SSD for key in good_ssd if not down and key not in off}
            usable.update((key, Source.RAM) for key in good_ram if key not in fenced)
        known = frozenset(in_ram) | frozenset(look.parts)
        barred = Miss.EVICTED
        if known - good_ssd - good_ram or known & fenced:
            barred = Miss.QUARANTINED
        elif down:
            barred = Miss.TIER_ERROR
        held_names = {key[0] for key in good_ssd | good_ram}
        behind = frozenset(index for index in named if blocks[index].name not in held_names)
        unknown = not (look.indexed and look.fenced)
        return Stored(usable, known, self._seen.__contains__, barred, unknown, behind), number

    def _children(self, block: Block | None, blocks: Sequence[Block]) -> list[Block]:
        parent = block.name if block else blocks[0].parent
        with self._lock:
            found = self._ram.children(parent)
        ssd = self._ssd
        if ssd:
            answer = self._quarantine.ask(lambda: ssd.inventory.children(parent))
            found += [] if isinstance(answer, CacheFault) else answer
        return found

    def _block(self, name: BlockName) -> Block | None:
        with self._lock:
            found = self._ram.block(name)
        ssd = self._ssd
        if found or not ssd:
            return found
        answer = self._quarantine.ask(lambda: ssd.inventory.block(name))
        return None if isinstance(answer, CacheFault) else answer

    # Restoring.

    def _judge(self, plan: Plan, loaded: Mapping[Load, Loaded]) -> Mapping[Load, CacheFault]:
        """Return what a fence bars of all that was loaded: those put up meanwhile as well (I8)."""
        if not loaded:
            return {}
        if not self._quarantine.look().fenced:
            return dict.fromkeys(loaded, TierError("the fences cannot be read"))
        cover = self._fences.covering(plan.blocks, plan.features)
        return {
            load: Barred(f"block {plan.blocks[load.block].name.hex()} is behind a fence")
            for load, one in loaded.items()
            if not self._fences.good(one.header.fence, cover[load.block])
        }

    def _blame(
        self, plan: Plan, failed: Mapping[Load, CacheFault], borrowed: list[PartKey]
    ) -> None:
        # Whoever found a bad part stands on it no more; others may (``lifecycle``).
        for load, fault in failed.items():
            key = (plan.blocks[load.block].name, load.group)
            if isinstance(fault, TierError) and self._ssd:
                self._ssd.counts.failures += 1
            if isinstance(fault, CorruptRecord | Absent | Barred):
                self._let_go(key, borrowed)
                if plan in self._turns:
                    self._let_go(key, self._turns[plan].committed)
            if isinstance(fault, CorruptRecord):
                self._counts["corrupt"] += 1
                self._counts["verification_failures"] += 1
            elif isinstance(fault, Barred):
                self._quarantine.drop(self._holds.fence([key]))
            elif isinstance(fault, Absent):
                self._counts["absent"] += 1
                self._forget(self._holds.fence([key]))
        corrupt = {load: one for load, one in failed.items() if isinstance(one, CorruptRecord)}
        if corrupt:
            # All others descend from the first block.
            first = min(corrupt, key=lambda load: load.block)
            detail = f"group {first.group}: {corrupt[first]}"
            self._quarantine.bar(plan.blocks[first.block].name, Reason.CORRUPT, detail)

    def _standing(self, fence: Fence) -> list[PartKey]:
        """Return what running turns hold in hand that descends from a fence's name."""
        return [
            key
            for plan, turn in self._turns.items()
            if turn.fence < fence.number and fence.name is not None
            for below in (plan.below(fence.name),)
            for key in turn.planned + turn.committed
            if key[0] in below
        ]

    def _let_go_of_the_rest(self, plan: Plan, used: Sequence[PartKey]) -> None:
        """Unpin what was planned and not restored: the turn is about to compute it."""
        turn = self._turns.get(plan)
        if turn is not None:
            unused = [key for key in turn.planned if key not in used]
            turn.planned = [key for key in turn.planned if key in used]
            self._quarantine.drop(self._holds.unpin(unused))

    def _advance(self, plan: Plan, restored: Restored) -> None:
        """Let the turn that met a bad or barred record commit what it computes in its place.

        It stands below that record, on parts that were judged. So it may know the new fence, unless
        another one fell meanwhile on what it stands on.
        """
        self._quarantine.wait_durable()
        with self._lock:
            number = self._fences.last
            cover = self._fences.covering(plan.blocks, plan.features)[: restored.boundary]
            if plan in self._turns and max(cover, default=0) <= plan.fence:
                self._turns[plan].fence = number

    def _number(self, turn: Plan) -> int:
        """Return the last fence that the turn's records may say they knew."""
        return self._turns[turn].fence if turn in self._turns else turn.fence

    def _let_go(self, key: PartKey, held: list[PartKey]) -> None:
        while key in held:
            held.remove(key)
            self._quarantine.drop(self._holds.unpin([key]))

    def _promote(self, plan: Plan, loaded: Mapping[Load, Loaded]) -> None:
        cover = self._fences.covering(plan.blocks, plan.features)
        for load, found in loaded.items():
            key = (plan.blocks[load.block].name, load.group)
            good = self._fences.good(found.header.fence, cover[load.block])
            if load.source is Source.SSD and good and self._ram.part(key) is None:
                self._ram.put(found.header, found.data, tick=plan.tick)

    def _used(self, keys: Iterable[PartKey], plan: Plan) -> None:
        listed = list(keys)
        for key in listed:
            self._ram.touch(key, plan.tick)
        if self._ssd and self._ssd.touch(listed, plan.wall):
            self._write_soon(self._ssd.save_ticks, nbytes=0)

    # Committing, and letting go.

    def _cover(self, block: Block, turn: Plan | None, features: Sequence[FeatureName]) -> int:
        """Return the number below which a record of this block is barred."""
        if turn is None or block not in turn.blocks:
            return self._fences.covering((block,), (features,))[0]
        upto = turn.blocks.index(block) + 1
        cover = self._fences.covering(turn.blocks[:upto], turn.features[:upto])[-1]
        return max(cover, *map(self._fences.number_of, features), 0)

    def _hold(self, turn: Plan | None, key: PartKey) -> None:
        if turn is not None and turn in self._turns:
            self._holds.pin([key])
            self._turns[turn].committed.append(key)

    def _see(self, name: BlockName) -> None:
        self._seen[name] = None
        if len(self._seen) > SEEN_BLOCKS:
            del self._seen[next(iter(self._seen))]

    def _forget(self, keys: Sequence[PartKey]) -> None:
        """Drop parts whose file is gone; in order with the writes that are queued."""
        for key in keys:
            self._ram.remove(key)
        ssd = self._ssd
        if ssd and keys:
            for key in keys:
                self._holds.leave(key)
            # Refused by a lane that is stuck or closed: then they stay barred in this process.
            self._write_soon(lambda: ssd.remove(keys), nbytes=0)

    def _write_soon(self, run: Callable[[], None], *, nbytes: int) -> bool:
        return self._lanes.writes.submit(Job(run, nbytes))
