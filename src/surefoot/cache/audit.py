"""Auditing, as far as the cache goes: which chains there are, and what each tier holds of a block.

No engine here, and no judgement: ``turn/audit.py`` computes and compares. A copy is read as a
restore reads it (by a deadline, its seal verified, compared with the block and the schema), but its
content is digested anew from its bytes: a record may be sealed well and still say, or hold, what is
not so. RAM and SSD are read both, whatever a plan would prefer. Reading promotes nothing and notes
no use; what a fence bars is no copy any more.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeAlias

from surefoot.cache.courier import Batch, Job
from surefoot.cache.lineage_rows import Leaf
from surefoot.cache.planner import Source
from surefoot.cache.quarantine import Quarantine
from surefoot.cache.restore import Absent
from surefoot.cache.shelves import Shelves
from surefoot.cache.ssd import SsdShelf
from surefoot.errors import CacheFault, CorruptRecord, TierError
from surefoot.identity import Block, BlockName, FeatureName, ModelName
from surefoot.prompt import MediaItem
from surefoot.record import content, feature_key, unseal, unseal_features
from surefoot.record import key as record_key
from surefoot.state import FeatureSchema, Group

LOOK_BLOCKS = 4096  # of the index, at a time: 20 ms in which a request would wait
NOTED_NAMES = 65_536  # verdicts remembered in this process; 10 MB


class AuditVerdict(StrEnum):
    """What an audit found of one block, or of one item's features."""

    AGREED = "agreed"  # every copy holds what was computed
    DIFFERED = "differed"  # one does not, and is in quarantine
    UNAUDITABLE = "unauditable"  # it cannot be computed: media or tokens are not at hand
    UNREPEATABLE = "unrepeatable"  # computed twice it was two things, so nothing was blamed


AUDIT_COUNTERS = tuple(f"audits_{verdict}" for verdict in AuditVerdict)
Place: TypeAlias = tuple[str, Source]  # the group, "" for features, and the tier of a copy


class Copy(NamedTuple):
    """What one tier holds of a part, or of an item's features."""

    content: bytes  # digested from the bytes
    stated: bytes  # what the record's header says it is
    fence: int
    features: tuple[FeatureName, ...] = ()


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one block's parts, or of one item's features, that could be read."""

    found: Mapping[Place, Copy] = field(default_factory=dict)
    faults: Mapping[Place, CorruptRecord] = field(default_factory=dict)
    cover: int = 0  # the least fence number of a good record, here and further down the chain

    @property
    def groups(self) -> frozenset[str]:
        """The groups to compute."""
        return frozenset(group for group, _ in self.found)

    @property
    def features(self) -> tuple[FeatureName, ...]:
        """The features that the block consumed, as its records say."""
        return max((copy.features for copy in self.found.values()), key=len, default=())

    def unlike(self, computed: Mapping[str, bytes]) -> str | None:
        """Say which copies are not what was computed, and how; None if all are."""
        said = {place: str(fault) for place, fault in self.faults.items()}
        for (group, tier), copy in self.found.items():
            if copy.content != computed[group]:
                said[group, tier] = "holds other bytes than were computed"
            elif copy.stated != computed[group]:
                said[group, tier] = "states a content that its bytes do not have"
        texts = [f"{group} in {tier} {text}".strip() for (group, tier), text in said.items()]
        return "; ".join(sorted(texts)) or None


class Auditor:
    """One model's chains and copies, for audits; called on the engine thread."""

    def __init__(
        self,
        *,
        model: ModelName,
        groups: Mapping[str, Group],
        feature_schema: FeatureSchema | None,
        shelves: Shelves,
        quarantine: Quarantine,
    ) -> None:
        self._model = model
        self._groups = groups
        self._schema = feature_schema
        self._ram = shelves.ram
        self._feature_ram = shelves.feature_ram
        self._ssd = shelves.ssd
        self._quarantine = quarantine
        self._fences = quarantine.fences
        self._lanes = shelves.lanes
        self._outage = shelves.outage
        self._lock = shelves.lock
        self._clock = shelves.clock
        self._wall_clock = shelves.wall_clock
        self._noted: dict[bytes, float] = {}
        self._leaves: dict[BlockName, Leaf] = {}  # on SSD, as of the last look at each
        self._seen: dict[BlockName, Leaf] = {}  # since the index was begun at its start
        self._looked_at = 0  # where to go on
        self._counts: Counter[str] = Counter()

    def leaves(self) -> list[Leaf]:
        """Return the last stored block of every chain, in the order in which to audit them.

        Never audited or longest ago first; among equals the most recently used, which is what the
        next request is most likely to stand on, and then the longest: where not every block is
        stored, one chain has several. Each call looks at ``LOOK_BLOCKS`` more of the index, so in a
        larger store a chain may be listed late, or after it has gone.
        """
        self._look_on()
        return self._ordered()

    def all_leaves(self) -> list[Leaf]:
        """Return them all, however many: for a command."""
        while not self._look_on():
            pass
        return self._ordered()

    def _look_on(self) -> bool:
        """Look at some more of the index; true at its end, where what was not seen is forgotten."""
        ssd = self._ssd
        if ssd is None:
            return True
        after, most = self._looked_at, LOOK_BLOCKS
        answer = self._quarantine.ask(
            lambda: ssd.inventory.lineage.leaves(self._model, after=after, most=most)
        )
        if isinstance(answer, CacheFault):
            return True
        leaves, go_on = answer
        self._seen |= {leaf.name: leaf for leaf in leaves}
        self._leaves |= self._seen
        if go_on is None:
            self._leaves, self._seen = self._seen, {}
        self._looked_at = go_on or 0
        return go_on is None

    def _ordered(self) -> list[Leaf]:
        behind = self._wall_clock() - self._clock()  # RAM counts in monotonic time
        with self._lock:
            in_ram = self._ram.items()
        parents = {block.parent for block, _, _ in in_ram}
        leaves = {name: leaf for name, leaf in self._leaves.items() if name not in parents}
        lasts = [(block, part) for block, _, part in in_ram if block.name not in parents]
        followed = self._followed_on_ssd({one.name for one, _ in lasts} - leaves.keys())
        for block, part in lasts:
            if block.name not in followed:
                leaf = leaves.get(block.name, Leaf(block.name, block.end, 0.0, None))
                leaves[block.name] = leaf._replace(used_at=max(leaf.used_at, part.tick + behind))
        dated = [leaf._replace(audited_at=self._audited_at(leaf)) for leaf in leaves.values()]
        return sorted(dated, key=_order)

    def copies(self, block: Block, *, cover: int, deadline_s: float) -> Copies:
        """Read every copy of a block's parts; blocks the caller for ``deadline_s`` at most.

        What is absent, late, or behind a fence is left out. ``cover`` is that of the copies of the
        block before, 0 for a first one.
        """
        look = self._quarantine.look([block.name])
        if not look.fenced:
            return Copies(cover=cover)  # what is good cannot be told
        if not block.start:
            cover = self._fences.number_of(block.parent)
        cover = max(cover, self._fences.number_of(block.name))
        with self._lock:
            in_ram = {
                group: self._ram.get((block.name, group)) for group in self._ram.held(block.name)
            }
        reads: dict[Place, Callable[[], Copy]] = {
            (group, Source.RAM): partial(self._part, data, block, group)
            for group, data in in_ram.items()
            if data is not None
        }
        if not self._outage.lasts:
            reads |= {
                (group, Source.SSD): partial(self._part_on_ssd, block, group)
                for _, group in look.parts
                if group in self._groups
            }
        return self._read(reads, cover, deadline_s)

    def feature_copies(self, name: FeatureName, item: MediaItem, *, deadline_s: float) -> Copies:
        """Read every copy of an item's features, likewise."""
        look = self._quarantine.look(features=[name])
        if not look.fenced:
            return Copies()
        reads: dict[Place, Callable[[], Copy]] = {}
        with self._lock:
            data = self._feature_ram.get(name)
        if data is not None:
            reads["", Source.RAM] = partial(self._item, data, name, item)
        if name in look.features and not self._outage.lasts:
            reads["", Source.SSD] = partial(self._item_on_ssd, name, item)
        return self._read(reads, self._fences.number_of(name), deadline_s)

    def note(
        self, verdicts: Mapping[BlockName, AuditVerdict] | Mapping[FeatureName, AuditVerdict]
    ) -> None:
        """Count verdicts on blocks or on features, and enter them into the inventory soon."""
        if not verdicts:
            return
        at = self._wall_clock()
        self._counts.update(f"audits_{verdict}" for verdict in verdicts.values())
        for name in verdicts:
            self._noted.pop(name, None)
            self._noted[name] = at
        while len(self._noted) > NOTED_NAMES:
            del self._noted[next(iter(self._noted))]
        if self._ssd:
            given: dict[bytes, str] = {name: one.value for name, one in verdicts.items()}
            self._lanes.writes.submit(Job(partial(self._judge, self._ssd, given, at), 0))

    def counters(self) -> Counter[str]:
        """Return how many names had which verdict since the process started."""
        return Counter({name: self._counts[name] for name in AUDIT_COUNTERS})

    # Which chains there are.

    def _followed_on_ssd(self, names: set[BlockName]) -> set[BlockName]:
        ssd = self._ssd
        if ssd is None or not names:
            return set()
        answer = self._quarantine.ask(lambda: ssd.inventory.lineage.followed(list(names)))
        return names if isinstance(answer, CacheFault) else answer

    def _audited_at(self, leaf: Leaf) -> float | None:
        noted = self._noted.get(leaf.name)
        known = [at for at in (noted, leaf.audited_at) if at is not None]
        return max(known, default=None)

    # Reading copies.

    def _read(
        self, reads: Mapping[Place, Callable[[], Copy]], cover: int, deadline_s: float
    ) -> Copies:
        deadline = self._clock() + deadline_s
        batch: Batch[Place, Copy] = Batch(self._lanes.reads, self._clock)
        submitted = [place for place, read in reads.items() if batch.submit(place, read)]
        arrived = batch.wait(deadline) if submitted else {}
        if batch.stalled:
            self._outage.begin()
        found, faults = {}, {}
        for place, outcome in arrived.items():
            if isinstance(outcome, CorruptRecord):
                faults[place] = outcome
            elif isinstance(outcome, Copy) and self._good(outcome, cover):
                found[place] = outcome
        names = {name for copy in found.values() for name in copy.features}
        cover = max([cover, *map(self._fences.number_of, names)])
        return Copies(found, faults, cover)

    def _good(self, copy: Copy, cover: int) -> bool:
        least = max([cover, *map(self._fences.number_of, copy.features)])
        return self._fences.good(copy.fence, least)

    def _part_on_ssd(self, block: Block, group: str) -> Copy:
        return self._part(self._file(record_key(block.name, group)), block, group)

    def _item_on_ssd(self, name: FeatureName, item: MediaItem) -> Copy:
        return self._item(self._file(feature_key(name)), name, item)

    def _file(self, key: str) -> bytes:
        assert self._ssd is not None
        data = self._ssd.tier.get(key)
        if data is None:
            raise Absent(f"{key} is gone")
        return data

    def _part(self, data: bytes, block: Block, group: str) -> Copy:
        header, part = unseal(data, name=block.name, group=group)
        if header.block != block:
            raise CorruptRecord("is of another prompt or another model")
        mismatch = self._groups[group].mismatch(part, block.start, block.end)
        if mismatch:
            raise CorruptRecord(mismatch)
        return Copy(content(part), header.content, header.fence, header.features)

    def _item(self, data: bytes, name: FeatureName, item: MediaItem) -> Copy:
        header, features = unseal_features(data, name=name)
        if (header.model, header.media, header.tokens) != (self._model, item.name, item.tokens):
            raise CorruptRecord("is of another model or another item")
        assert self._schema is not None, "a model without a tower has no features"
        mismatch = self._schema.mismatch(features, item.tokens)
        if mismatch:
            raise CorruptRecord(mismatch)
        return Copy(content(features), header.content, header.fence)

    def _judge(self, ssd: SsdShelf, verdicts: Mapping[bytes, str], at: float) -> None:
        try:
            ssd.inventory.lineage.judge(verdicts, at=at)
        except TierError:
            ssd.counts.failures += 1


def _order(leaf: Leaf) -> tuple[float, float, int]:
    never = float("-inf")
    return (never if leaf.audited_at is None else leaf.audited_at, -leaf.used_at, -leaf.end)
