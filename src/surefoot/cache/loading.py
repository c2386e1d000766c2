"""Where a restore's parts come from: RAM on the spot, SSD through the courier, by one deadline.

Everything is verified on the thread that reads it (I2). Nothing here decides what is done about a
part that failed.
"""

from collections.abc import Callable, Mapping, Sequence

from surefoot.cache.courier import Batch
from surefoot.cache.planner import Load, Plan, Source
from surefoot.cache.restore import Absent, Busy, Late, Loaded, verify
from surefoot.cache.shelves import Shelves
from surefoot.errors import CacheFault, CorruptRecord
from surefoot.identity import Block
from surefoot.record import key as record_key
from surefoot.state import Group


class Loader:
    """Loads parts for the engine thread, which waits."""

    def __init__(self, groups: Mapping[str, Group], shelves: Shelves) -> None:
        self._groups = groups
        self._ram = shelves.ram
        self._ssd = shelves.ssd
        self._holds = shelves.holds
        self._reads = shelves.lanes.reads
        self._outage = shelves.outage
        self._lock = shelves.lock
        self._clock = shelves.clock

    def fetch(
        self, plan: Plan, loads: Sequence[Load], deadline: float
    ) -> Mapping[Load, Loaded | CacheFault]:
        """Return what became of each load, which are pinned by now; never raises for a fault."""
        results: dict[Load, Loaded | CacheFault] = {}
        batch: Batch[Load, Loaded] = Batch(self._reads, self._clock)
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
            return verify(data, block, self._groups[group])

        return read

    def _from_ram(self, block: Block, group: str, deadline: float) -> Loaded | CacheFault:
        if self._clock() > deadline:
            return Late("the deadline passed")
        with self._lock:
            data = self._ram.get((block.name, group))
        if data is None:
            return Absent(f"block {block.name.hex()} was evicted")
        try:
            return verify(data, block, self._groups[group])
        except CorruptRecord as fault:
            return fault
