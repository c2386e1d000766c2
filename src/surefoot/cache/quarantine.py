"""What quarantine does in one process: bar a name, drop what descends from it, move bytes aside.

``fences`` decides what is barred; here it is acted upon. A name is barred in memory at once, its
fence is made durable by the write lane ahead of everything that waits there, and bytes move later.
What other processes put up is seen by ``look``, which also asks the inventory: on a reading thread
and with a deadline, so that the engine's never waits for a medium.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event, RLock
from typing import NamedTuple, TypeVar

from surefoot.cache.courier import Job, Lanes, Outage, ask
from surefoot.cache.feature_ram import FeatureRam
from surefoot.cache.feature_rows import Held
from surefoot.cache.fences import UNWRITTEN, Fence, Fences, Reason
from surefoot.cache.lifecycle import Holds, PartKey
from surefoot.cache.ram import RamShelf
from surefoot.cache.ssd import SsdShelf
from surefoot.errors import CacheFault, TierError
from surefoot.identity import BlockName, FeatureName

LOOK_S = 1.0  # a look at fences and inventory takes a tenth of a millisecond, if the disk answers
DURABLE_S = 1.0  # a fence is down by then, if the disk answers

Answer = TypeVar("Answer")


class Look(NamedTuple):
    """What the store says at one moment."""

    parts: Mapping[PartKey, Held]
    features: Mapping[FeatureName, Held]
    indexed: bool  # whether the inventory answered
    fenced: bool  # whether the fences could be read: if not, nothing may be reused


_NOTHING: Look = Look({}, {}, indexed=True, fenced=True)
_BLIND: Look = Look({}, {}, indexed=False, fenced=False)


class Quarantine:
    """The fences as this process acts on them; ``lock`` is the one that the RAM tiers are under."""

    def __init__(
        self,
        fences: Fences,
        *,
        ram: RamShelf,
        feature_ram: FeatureRam,
        ssd: SsdShelf | None,
        holds: Holds,
        lanes: Lanes,
        lock: RLock,
        clock: Callable[[], float],
    ) -> None:
        self.fences = fences
        self.raised = 0  # fences that this process put up
        self.on_raised: Callable[[Fence], None] = _nothing  # runs on the write lane
        self._ram = ram
        self._feature_ram = feature_ram
        self._ssd = ssd
        self._holds = holds
        self._lanes = lanes
        self._lock = lock
        self._clock = clock
        self._blind = Outage(lanes.reads, clock)
        self._ours: set[bytes] = set()  # names barred here whose fence is not swept yet

    def look(self, names: Sequence[BlockName] = (), features: Sequence[FeatureName] = ()) -> Look:
        """Return what the store holds of these, after reading the fences that others put up."""
        ssd = self._ssd
        if ssd is None:
            return _NOTHING

        def read() -> tuple[list[Fence], Look | None]:
            new = self.fences.refresh()
            try:
                parts = ssd.inventory.held(names) if names else {}
                items = ssd.inventory.features.held(features) if features else {}
            except TierError:
                return new, None
            return new, Look(parts, items, indexed=True, fenced=True)

        answer = self.ask(read)
        if isinstance(answer, CacheFault):
            return _BLIND
        new, found = answer
        if new:
            with self._lock:
                self._apply(new)
        if self.fences.pending():
            self._write_soon(self._settle)
        if found is None:
            ssd.counts.failures += 1
            return Look({}, {}, indexed=False, fenced=True)
        return found

    def ask(self, question: Callable[[], Answer]) -> Answer | CacheFault:
        """Ask the store something on a reading thread, for ``LOOK_S`` at most."""
        ssd = self._ssd
        assert ssd is not None
        if self._blind.lasts:
            return TierError("the store did not answer lately")
        answer = ask(self._lanes.reads, self._clock, question, deadline=self._clock() + LOOK_S)
        if isinstance(answer, CacheFault):
            ssd.counts.failures += 1
            self._blind.begin()
        return answer

    def bar(self, name: bytes, reason: Reason, detail: str) -> None:
        """Bar a name and all that descends from it, in this process at once, in the store soon."""
        with self._lock:
            self.raised += 1
            self._ours.add(name)
            self._apply([self.fences.bar(name, reason, detail)])
        self._write_soon(self._settle)

    def raise_fence(self, name: bytes, reason: Reason, detail: str) -> Fence:
        """Bar a name, and wait until its fence is durable.

        Raises:
            TierError: it is not durable yet; it bars in this process, and is tried again.
        """
        self.bar(name, reason, detail)
        self.wait_durable()
        number = self.fences.number_of(name)
        if number == UNWRITTEN:
            raise TierError(f"the fence on {name.hex()} is not on disk yet")
        return next(one for one in self.fences.known() if one.number == number)

    def wait_durable(self) -> None:
        """Wait until what is barred is durable, for ``DURABLE_S`` at most."""
        settled = Event()
        if self.fences.pending() and self._write_soon(settled.set):
            settled.wait(DURABLE_S)

    def drop(self, keys: Sequence[PartKey]) -> None:
        """Let go of parts behind a fence: out of RAM, and aside on SSD; the lock is held."""
        for key in keys:
            self._ram.remove(key)
        ssd = self._ssd
        if not ssd or not keys:
            return
        for key in keys:
            self._holds.leave(key)

        def move() -> None:
            for key in keys:
                number = self.fences.number_of(key[0])
                # One that is not durable yet is swept when it is.
                ssd.set_aside([key], number if 0 < number < UNWRITTEN else self.fences.last)

        # Refused by a lane that is stuck or closed: then they stay barred in this process.
        self._write_soon(move)

    def _apply(self, fences: Iterable[Fence]) -> None:
        """Act on fences that are new to this process; the lock is held."""
        for fence in fences:
            for key in self._holds.fence(self._ram.barred(fence)):
                self._ram.remove(key)
            for name in self._feature_ram.barred(fence):
                self._feature_ram.remove(name)
            if self._ssd and fence.number != UNWRITTEN:
                self._sweep_soon(self._ssd, fence)

    def _sweep_soon(self, ssd: SsdShelf, fence: Fence) -> None:
        ours = fence.name in self._ours
        if fence.name is not None:
            self._ours.discard(fence.name)

        def sweep() -> None:
            if ours:
                self.on_raised(fence)
            try:
                parts, features = ssd.barred(fence)
            except TierError:
                ssd.counts.failures += 1
                return  # swept at the next open; until then the numbers bar them
            free = self._holds.fence(parts)
            for key in free:
                self._holds.leave(key)
            ssd.set_aside(free, fence.number)
            ssd.set_features_aside(features, fence.number)

        self._write_soon(sweep)

    def _settle(self) -> None:
        assert self._ssd is not None
        try:
            found = self.fences.settle()
        except TierError:
            self._ssd.counts.failures += 1
            return
        if found:
            with self._lock:
                self._apply(found)

    def _write_soon(self, run: Callable[[], None]) -> bool:
        """Queue work ahead of the records that wait; without a store there is none."""
        return self._ssd is not None and self._lanes.writes.submit(Job(run, 0), urgent=True)


def _nothing(fence: Fence) -> None:
    """Do nothing about a fence that was put up."""
