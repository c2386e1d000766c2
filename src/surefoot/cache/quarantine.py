"""What quarantine does in one process (I8): bar a name, drop its descendants, move bytes aside.

``fences`` decides what is barred; here it is acted upon. A name is barred in memory at once, its
fence is made durable by the write lane ahead of everything that waits there, and bytes move later.
What other processes put up is seen by ``look``, which also asks the inventory: on a reading thread
and with a deadline, so that the engine's never waits for a medium.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import NamedTuple, TypeVar

from surefoot.cache.courier import Job, Outage, ask
from surefoot.cache.feature_rows import Held
from surefoot.cache.fences import UNWRITTEN, Fence, Fences, Reason
from surefoot.cache.lifecycle import PartKey
from surefoot.cache.shelves import Shelves
from surefoot.cache.ssd import SsdShelf
from surefoot.errors import CacheFault, TierError
from surefoot.identity import BlockName, FeatureName

LOOK_S = 1.0  # a look at fences and inventory takes a tenth of a millisecond, if the disk answers
MOVED_AT_ONCE = 64  # records, which takes some tenths of a second
SETTLE_AGAIN_S = 1.0  # until a fence that could not be written is tried again
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
    """The fences as this process acts on them."""

    def __init__(
        self,
        fences: Fences,
        shelves: Shelves,
        *,
        standing: Callable[[Fence], list[PartKey]],
        on_raised: Callable[[Fence], None],
    ) -> None:
        self.fences = fences
        self.raised = 0  # fences that this process put up
        self._standing = standing  # what running turns hold in hand of what a fence bars
        self._on_raised = on_raised  # runs on the write lane, before bytes move
        self._ram = shelves.ram
        self._feature_ram = shelves.feature_ram
        self._ssd = shelves.ssd
        self._holds = shelves.holds
        self._lanes = shelves.lanes
        self._lock = shelves.lock
        self._clock = shelves.clock
        self._settle_at = 0.0  # before that, a fence that could not be written is not tried again
        self._blind = Outage(shelves.lanes.reads, shelves.clock)
        self._settled = Event()  # what was barred is durable, or cannot be yet
        self._behind: dict[PartKey, Fence] = {}  # what bars a part that somebody stands on still
        self._ours: set[bytes] = set()  # names barred here whose fence is not swept yet
        self._heeded = fences.last  # the last fence that was acted upon here

    def look(self, names: Sequence[BlockName] = (), features: Sequence[FeatureName] = ()) -> Look:
        """Return what the store holds of these, after reading the fences that others put up."""
        ssd = self._ssd
        if ssd is None:
            return _NOTHING

        def read() -> Look:
            self.fences.refresh()
            try:
                parts = ssd.inventory.held(names) if names else {}
                items = ssd.inventory.features.held(features) if features else {}
            except TierError:
                return Look({}, {}, indexed=False, fenced=True)
            return Look(parts, items, indexed=True, fenced=True)

        found = self.ask(read)
        self._heed()
        if self.fences.pending() and self._clock() >= self._settle_at:
            self._write_soon(self._settle)
        if isinstance(found, CacheFault):
            return _BLIND
        ssd.counts.failures += not found.indexed
        return found

    def catch_up(self) -> None:
        """Heed what other processes put up, on the write lane: before what waited is written."""
        with suppress(TierError):  # what is written bears its number, and is judged by it
            self.fences.refresh()
        self._heed()

    def ask(
        self, question: Callable[[], Answer], *, within_s: float | None = None
    ) -> Answer | CacheFault:
        """Ask the store something on a reading thread, for ``LOOK_S`` at most, or ``within_s``."""
        ssd = self._ssd
        assert ssd is not None
        if self._blind.lasts:
            return TierError("the store did not answer lately")
        deadline = self._clock() + (LOOK_S if within_s is None else within_s)
        answer = ask(self._lanes.reads, self._clock, question, deadline=deadline)
        if isinstance(answer, CacheFault):
            ssd.counts.failures += 1
            self._blind.begin()
        return answer

    def bar(self, name: bytes, reason: Reason, detail: str) -> None:
        """Bar a name and all that descends from it, in this process at once, in the store soon."""
        with self._lock:
            self.raised += 1
            self._ours.add(name)
            self._settled.clear()
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
        if self.fences.pending() and not self._lanes.writes.stuck:
            self._settled.wait(DURABLE_S)

    def drop(self, keys: Sequence[PartKey]) -> None:
        """Let go of parts behind a fence: out of RAM, and aside on SSD; the lock is held."""
        for key in keys:
            self._ram.remove(key)
        behind = {key: self._behind.pop(key, None) for key in keys}
        ssd = self._ssd
        if not ssd or not keys:
            return
        for key in keys:
            self._holds.leave(key)

        def move() -> None:
            for key, fence in behind.items():
                if fence is None:  # its own header says so, whatever the inventory says
                    ssd.set_aside([key], self.fences.last, below=UNWRITTEN)
                else:
                    # What is behind one that is not durable yet is swept when it is.
                    number = 0 if fence.number == UNWRITTEN else fence.number
                    ssd.set_aside([key], number, keep=fence.keeps)

        # Refused by a lane that is stuck or closed: then they stay barred in this process.
        self._write_soon(move)

    def _heed(self) -> None:
        """Act on every durable fence that this process knows by now, whoever read it."""
        if self.fences.last == self._heeded:
            return
        with self._lock:
            new = self.fences.since(self._heeded)
            self._heeded = max([self._heeded, *(fence.number for fence in new)])
            self._apply(new)

    def _apply(self, fences: Iterable[Fence]) -> None:
        """Act on fences that are new to this process; the lock is held."""
        for fence in fences:
            for key in self._fence(self._ram.barred(fence) + self._standing(fence), fence):
                self._ram.remove(key)
            for name in self._feature_ram.barred(fence):
                self._feature_ram.remove(name)
            # Who put it up moves the bytes; should it die before, whoever opens the store next.
            if self._ssd and fence.number != UNWRITTEN and fence.name in self._ours:
                self._ours.discard(fence.name)
                self._sweep_soon(self._ssd, fence)

    def _sweep_soon(self, ssd: SsdShelf, fence: Fence) -> None:
        def sweep() -> None:
            self._on_raised(fence)
            try:
                parts, features = ssd.barred(fence)
            except TierError:
                ssd.counts.failures += 1
                return  # swept at the next open; until then the numbers bar them
            with self._lock:
                old = [key for key in parts if not self._anew(key, fence.number)]
                free = self._fence(old, fence)
                for key in free:
                    self._holds.leave(key)
            ssd.set_features_aside(features, fence.number, keep=fence.keeps)
            self._move_some(ssd, free, fence)

        self._write_soon(sweep)

    def _move_some(self, ssd: SsdShelf, keys: Sequence[PartKey], fence: Fence) -> None:
        """Move parts aside, a few at a time: what was committed is not to wait for thousands."""
        ssd.set_aside(keys[:MOVED_AT_ONCE], fence.number, keep=fence.keeps)
        rest = keys[MOVED_AT_ONCE:]
        if rest:
            # Refused by a lane that closes: then whoever opens the store next moves them.
            self._lanes.writes.submit(Job(lambda: self._move_some(ssd, rest, fence), 0))

    def _fence(self, keys: Sequence[PartKey], fence: Fence) -> list[PartKey]:
        """Bar parts from new borrowers; return those that nobody stands on."""
        free = self._holds.fence(keys)
        self._behind.update(dict.fromkeys(set(keys).difference(free), fence))
        return free

    def _anew(self, key: PartKey, number: int) -> bool:
        """Return whether those who pin a part stand on one that was computed since the fence.

        What lies on SSD under its key is moved by the write that replaces it.
        """
        part = self._ram.part(key)
        return part is not None and part.fence >= number and self._holds.pinned(key)

    def _settle(self) -> None:
        assert self._ssd is not None
        try:
            self.fences.settle()
        except TierError:
            self._ssd.counts.failures += 1
            self._settle_at = self._clock() + SETTLE_AGAIN_S
            self._settled.set()
        if not self.fences.pending():
            self._settled.set()
        self._heed()

    def _write_soon(self, run: Callable[[], None]) -> bool:
        """Queue work ahead of the records that wait; without a store there is none."""
        return self._ssd is not None and self._lanes.writes.submit(Job(run, 0), urgent=True)
