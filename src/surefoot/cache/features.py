"""The features of media items, in RAM and on SSD, beside the parts and by the same rules.

Features are what a vision tower made of one item alone. They stand on no prefix, so nothing plans
them and nothing pins them: a reader gets bytes of its own, and what leaves meanwhile is a miss. RAM
has a budget for them apart from the parts' (I6), the least recently used leaving first; on SSD
``ssd`` keeps their budget. Nothing is handed out that was not unsealed and compared with what is
asked for: name, model, item, tokens, schema and content (I2). What fails is gone from both tiers,
and not offered again before it is committed anew (I8). A fault is an item that is not found (I10).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from surefoot.cache.courier import Batch, Job
from surefoot.cache.entry import Entry, feature_entry
from surefoot.cache.feature_rows import Held
from surefoot.cache.fences import Reason
from surefoot.cache.planner import Source
from surefoot.cache.quarantine import Quarantine
from surefoot.cache.restore import Absent, Barred, Late
from surefoot.cache.shelves import Shelves
from surefoot.errors import CacheFault, CorruptRecord, TierError
from surefoot.identity import FeatureName, ModelName
from surefoot.prompt import MediaItem
from surefoot.record import FeatureHeader, content, feature_key, seal_features, unseal_features
from surefoot.state import Features, FeatureSchema

FEATURE_COUNTERS = (
    "features_found_ram",
    "features_found_ssd",
    "features_missed",
    "features_committed",
    "feature_failures",  # records that failed verification
    "disagreements",
    "unqueued_writes",
)


class Loaded(NamedTuple):
    """Features that passed verification, and the record that their components are views of."""

    features: Features
    header: FeatureHeader
    data: bytes


class Queued(NamedTuple):
    """A record that waits to be written."""

    header: FeatureHeader
    data: bytes


class FeatureCache:
    """One model's features; the engine thread finds and commits, any thread may ask the rest."""

    def __init__(
        self,
        model: ModelName,
        schema: FeatureSchema | None,
        shelves: Shelves,
        quarantine: Quarantine,
    ) -> None:
        self.model = model
        self._schema = schema
        self._ram = shelves.feature_ram
        self._ssd = shelves.ssd
        self._lanes = shelves.lanes
        self._outage = shelves.outage
        self._clock = shelves.clock
        self._wall_clock = shelves.wall_clock
        self._quarantine = quarantine
        self._fences = quarantine.fences
        self._lock = shelves.lock
        self._counts: Counter[str] = Counter()
        self._pending: dict[FeatureName, Queued] = {}  # wait to be written, and are held so long
        self._leaving: set[FeatureName] = set()  # gone, and their row is not yet deleted

    def find(
        self, wanted: Mapping[FeatureName, MediaItem], *, deadline_s: float
    ) -> dict[FeatureName, Features]:
        """Return what is stored of the wanted items, verified; blocks for ``deadline_s`` at most.

        What came from SSD is put into RAM. Never raises for a fault of a tier (I10).
        """
        deadline = self._clock() + deadline_s
        with self._lock:
            in_ram = {name: data for name in wanted if (data := self._in_memory(name)) is not None}
        batch: Batch[FeatureName, Loaded] = Batch(self._lanes.reads, self._clock)
        on_ssd = self._on_ssd([name for name in wanted if name not in in_ram])
        submitted = [
            name for name in on_ssd if batch.submit(name, self._reader(name, wanted[name]))
        ]
        outcomes: dict[FeatureName, Loaded | CacheFault] = {
            name: self._from_ram(data, name, wanted[name], deadline)
            for name, data in in_ram.items()
        }
        outcomes.update(batch.wait(deadline) if submitted else {})
        if batch.stalled:
            self._outage.begin()
        outcomes = self._judged(outcomes)
        with self._lock:
            found = {
                name: self._accept(name, outcome)
                for name, outcome in outcomes.items()
                if not isinstance(outcome, CacheFault)
            }
            for name, outcome in outcomes.items():
                if isinstance(outcome, CacheFault):
                    self._blame(name, outcome)
            self._counts["features_found_ram"] += len(found.keys() & in_ram.keys())
            self._counts["features_found_ssd"] += len(found.keys() - in_ram.keys())
            self._counts["features_missed"] += len(wanted) - len(found)
        self._used(found)
        return found

    def commit(
        self, name: FeatureName, item: MediaItem, features: Features, *, fence: int | None = None
    ) -> None:
        """Store an item's features: in RAM at once, on SSD soon after.

        What is held already is compared by content: a difference means that the tower gave two
        results for one item, so neither is kept. ``fence`` is the last one that the turn knew when
        it was planned; without it, the last one now.
        """
        assert self._schema is not None, "a model without a tower has no features"
        mismatch = self._schema.mismatch(features, item.tokens)
        assert mismatch is None, mismatch
        with self._lock:  # first, as in ``_on_ssd``
            leaving = name in self._leaving
        look = self._quarantine.look(features=[name])
        rows = {} if leaving else look.features
        number = self._fences.last if fence is None else fence
        header = FeatureHeader(name, self.model, item.name, item.tokens, content(features), number)
        with self._lock:
            cover = self._fences.number_of(name)
            if cover > number:
                return
            in_ram, durable = self._good_ram(name, cover), self._durable(name, rows, cover)
            if {in_ram, durable} - {None, header.content}:
                self._disagree(name)
                return
            taken = self._keep(header, features, durable=durable is not None)
            self._counts["features_committed"] += taken and in_ram is None and durable is None
        self._used([name])

    def status(self, used: tuple[int, int]) -> dict[str, Any]:
        """Return bytes, items and capacity by tier; ``used`` is what the inventory says of SSD."""
        with self._lock:
            tiers = {
                Source.RAM.value: {
                    "bytes": self._ram.used_bytes,
                    "items": len(self._ram),
                    "capacity": self._ram.capacity,
                    "evictions": self._ram.evictions,
                }
            }
        if self._ssd:
            tiers[Source.SSD.value] = {
                "bytes": used[0],
                "items": used[1],
                "capacity": self._ssd.quota.feature_capacity,
                "evictions": self._ssd.counts.feature_evictions,
            }
        return tiers

    def counters(self) -> Counter[str]:
        """Return what happened since the process started."""
        with self._lock:
            return Counter({name: self._counts[name] for name in FEATURE_COUNTERS})

    def entries(self) -> Iterator[Entry]:
        """Yield every item whose features this process can see, in no promised order."""
        with self._lock:
            held = {one.name: (one, self._ram.nbytes(one.name)) for one in self._ram.headers()}
        for row in self._ssd.inventory.features.rows() if self._ssd else ():
            in_ram = held.pop(row.name, None)
            ssd = (Source.SSD.value,)
            yield feature_entry(row, (Source.RAM.value, *ssd) if in_ram else ssd)
        for header, nbytes in held.values():
            name, tiers = header.name.hex(), (Source.RAM.value,)
            yield Entry(name, "", 0, header.tokens, nbytes, tiers, None, "features")

    # Finding.

    def _in_memory(self, name: FeatureName) -> bytes | None:
        cover = self._fences.number_of(name)
        queued = self._pending.get(name)
        if queued and self._fences.good(queued.header.fence, cover):
            return queued.data
        return self._ram.get(name) if self._good_ram(name, cover) else None

    def _good_ram(self, name: FeatureName, cover: int) -> bytes | None:
        """Return the content that RAM holds, unless a fence bars it."""
        header = self._ram.header(name)
        return header.content if header and self._fences.good(header.fence, cover) else None

    def _on_ssd(self, names: list[FeatureName]) -> Collection[FeatureName]:
        if not self._ssd or not names or self._outage.lasts:
            return ()
        with self._lock:  # first: a row read before its deletion must not outlive the mark (I8)
            leaving = frozenset(self._leaving)
        held = self._quarantine.look(features=names).features
        return {
            name
            for name, one in held.items()
            if name not in leaving and self._fences.good(one.fence, self._fences.number_of(name))
        }

    def _judged(
        self, outcomes: dict[FeatureName, Loaded | CacheFault]
    ) -> dict[FeatureName, Loaded | CacheFault]:
        """Have the fences' last word, after everything is loaded."""
        fenced = not outcomes or self._quarantine.look().fenced
        judged: dict[FeatureName, Loaded | CacheFault] = {}
        for name, outcome in outcomes.items():
            judged[name] = outcome
            if isinstance(outcome, Loaded):
                if not fenced:
                    judged[name] = Late("the fences could not be read")
                elif not self._fences.good(outcome.header.fence, self._fences.number_of(name)):
                    judged[name] = Barred(f"features {name.hex()} are behind a fence")
        return judged

    def _reader(self, name: FeatureName, item: MediaItem) -> Callable[[], Loaded]:
        ssd = self._ssd
        assert ssd is not None

        def read() -> Loaded:
            data = ssd.tier.get(feature_key(name))
            if data is None:
                raise Absent(f"features {name.hex()} were evicted")
            return self._verify(data, name, item)

        return read

    def _from_ram(
        self, data: bytes, name: FeatureName, item: MediaItem, deadline: float
    ) -> Loaded | CacheFault:
        if self._clock() > deadline:
            return Late("the deadline passed")
        try:
            return self._verify(data, name, item)
        except CorruptRecord as fault:
            return fault

    def _verify(self, data: bytes, name: FeatureName, item: MediaItem) -> Loaded:
        assert self._schema is not None, "a model without a tower has no features"
        header, features = unseal_features(data, name=name)
        if (header.model, header.media) != (self.model, item.name):
            raise CorruptRecord(f"features {name.hex()} are another model's or another item's")
        if header.tokens != item.tokens:
            raise CorruptRecord(f"features of {header.tokens} tokens where {item.tokens} stand")
        mismatch = self._schema.mismatch(features, item.tokens)
        if mismatch:
            raise CorruptRecord(f"features {name.hex()}: {mismatch}")
        if content(features) != header.content:
            raise CorruptRecord(f"features {name.hex()} are not of the content they state")
        return Loaded(features, header, data)

    def _accept(self, name: FeatureName, loaded: Loaded) -> Features:
        if self._ram.header(name) is None:
            self._ram.put(loaded.header, loaded.data)
        return loaded.features

    def _blame(self, name: FeatureName, fault: CacheFault) -> None:
        if isinstance(fault, TierError) and self._ssd:
            self._ssd.counts.failures += 1
        if isinstance(fault, CorruptRecord):
            self._counts["feature_failures"] += 1
            self._quarantine.bar(name, Reason.CORRUPT, str(fault))
        if isinstance(fault, Absent | Barred):
            self._forget(name)

    def _used(self, names: Iterable[FeatureName]) -> None:
        listed = list(names)
        with self._lock:
            for name in listed:
                self._ram.touch(name)
        if self._ssd and self._ssd.touch_features(listed, self._wall_clock()):
            self._lanes.writes.submit(Job(self._ssd.save_ticks, 0))

    # Committing, and letting go.

    def _durable(
        self, name: FeatureName, rows: Mapping[FeatureName, Held], cover: int
    ) -> bytes | None:
        """Return the content that is on SSD, or on its way there, and not behind a fence."""
        queued = self._pending.get(name)
        if queued and self._fences.good(queued.header.fence, cover):
            return queued.header.content
        row = rows.get(name)
        if row is None or name in self._leaving or not self._fences.good(row.fence, cover):
            return None
        return row.content

    def _keep(self, header: FeatureHeader, features: Features, *, durable: bool) -> bool:
        """Put features wherever they are not yet; return whether anything took them."""
        name = header.name
        held = self._ram.header(name)
        if held and held.fence < self._fences.number_of(name):
            self._ram.remove(name)
            held = None
        header = held or header
        in_ram = held is not None
        wanted = self._ssd is not None and not durable
        if in_ram and not wanted:
            return False
        data = self._in_memory(name) or seal_features(
            name,
            features,
            model=header.model,
            media=header.media,
            tokens=header.tokens,
            content=header.content,
            fence=header.fence,
        )
        taken = not in_ram and self._ram.put(header, data)
        return (wanted and self._queue(header, data)) or taken

    def _queue(self, header: FeatureHeader, data: bytes) -> bool:
        ssd, name, wall = self._ssd, header.name, self._wall_clock()
        assert ssd is not None

        queued = Queued(header, data)

        def write() -> None:
            self._quarantine.catch_up()
            cover = self._fences.number_of(name)
            agreed = header.fence < cover or ssd.write_features(
                header, data=data, tick=wall, cover=cover
            )
            with self._lock:
                # Dropped meanwhile and committed anew, the name stands for a later write.
                if self._pending.get(name) is queued:
                    del self._pending[name]
                if not agreed:
                    self._disagree(name)
            self._quarantine.catch_up()
            if self._fences.number_of(name) > header.fence:
                # Whoever put up the fence meanwhile, to purge it maybe, came too early for it.
                ssd.set_features_aside([name], header.fence + 1, keep=False)

        self._pending[name] = queued
        if self._lanes.writes.submit(Job(write, len(data))):
            return True
        # The queue is full: RAM may still have them, and the engine thread never waits for a disk.
        del self._pending[name]
        self._counts["unqueued_writes"] += 1
        return False

    def _disagree(self, name: FeatureName) -> None:
        self._counts["disagreements"] += 1
        self._quarantine.bar(name, Reason.DISAGREED, "the tower gave two results for one item")

    def _forget(self, name: FeatureName) -> None:
        """Drop the row of features whose file is gone, in order with the writes that are queued."""
        self._ram.remove(name)
        self._pending.pop(name, None)
        ssd = self._ssd
        if not ssd:
            return

        def remove() -> None:
            ssd.remove_features([name])
            with self._lock:
                self._leaving.discard(name)

        self._leaving.add(name)
        # Refused by a lane that is stuck or closed: then they stay barred in this process.
        self._lanes.writes.submit(Job(remove, 0))
