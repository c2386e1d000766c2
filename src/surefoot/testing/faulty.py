"""A tier whose faults are on a schedule: which operation, of which keys, goes wrong in which way.

A schedule is data, one printable line, so a failure is replayed from what a test shows:

    get#3 flipped@17; put[features$] full

is "the fourth read has its bit 17 flipped; every write of features finds no space". Numbers count
the operations of one verb whose key matches. Nothing sleeps here: what is slow moves a clock, what
stalls waits for an event and says that it does. ``struck`` tells which faults really happened.
"""

import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Event, Lock
from typing import Any, NamedTuple

from surefoot.errors import TierError
from surefoot.tiers import Tier

FEATURES = r"\.media\.features$"  # keys of features, and of parts: ``record`` makes them
PARTS = r"^[^.]*\.(?!media\.features$)"
STALL_S = 600.0  # by the clock; in truth until the event
SLOW_S = 100.0  # longer than any deadline that a test gives


class Verb(StrEnum):
    """An operation of a tier."""

    GET = "get"
    HEAD = "head"
    PUT = "put"
    DELETE = "delete"
    LIST = "list"
    SWEEP = "sweep"


class Kind(StrEnum):
    """What goes wrong."""

    SHORT = "short"  # fewer bytes, or fewer keys, than there are
    FLIPPED = "flipped"  # one bit is another
    SWAPPED = "swapped"  # another record's bytes
    OLDER = "older"  # what the key held first
    EVICTED = "evicted"  # the key is gone since the plan
    VANISHED = "vanished"  # every key is gone
    BROKEN = "broken"  # the medium failed, and did nothing
    FULL = "full"  # no space left
    READ_ONLY = "read-only"
    UNDONE = "undone"  # no acknowledgement, and it did not happen
    DONE = "done"  # no acknowledgement, but it happened
    CLAIMED = "claimed"  # acknowledged, and never done
    TWICE = "twice"  # done, and done again
    SLOW = "slow"  # done, long after the deadline by the clock
    STALLED = "stalled"  # done when released


_ALL = frozenset({Kind.BROKEN, Kind.SLOW, Kind.STALLED})
_READS = _ALL | {
    Kind.SHORT,
    Kind.FLIPPED,
    Kind.SWAPPED,
    Kind.OLDER,
    Kind.EVICTED,
    Kind.VANISHED,
}
_CHANGES = _ALL | {Kind.READ_ONLY, Kind.UNDONE, Kind.DONE, Kind.CLAIMED, Kind.TWICE}
KINDS: Mapping[Verb, frozenset[Kind]] = {
    Verb.GET: _READS,
    Verb.HEAD: _READS,
    Verb.PUT: _CHANGES | {Kind.FULL, Kind.SHORT, Kind.FLIPPED},
    Verb.DELETE: _CHANGES,
    Verb.LIST: _ALL | {Kind.SHORT, Kind.VANISHED},
    Verb.SWEEP: _ALL,
}
_SAYS = {
    Kind.BROKEN: "input/output error",
    Kind.FULL: "no space left on device",
    Kind.READ_ONLY: "read-only file system",
    Kind.UNDONE: "the connection was lost",
    Kind.DONE: "the connection was lost",
}
_TEXT = re.compile(r"([a-z]+)(?:#(\d+))?(?:\[(.*)\])? ([a-z-]+)(?:@(\d+))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a schedule; ``str`` and ``read`` are each other's inverse.

    ``at``: the number of the operation, from 0, among those of this verb and these keys; None is
    every one. ``keys``: a pattern that is searched for. ``place``: which bit, byte or other record.
    """

    verb: Verb
    kind: Kind
    at: int | None = None
    keys: str = ""
    place: int = 0

    def __post_init__(self) -> None:
        assert self.kind in KINDS[self.verb], self

    def __str__(self) -> str:
        number = "" if self.at is None else f"#{self.at}"
        keys = f"[{self.keys}]" if self.keys else ""
        place = f"@{self.place}" if self.place else ""
        return f"{self.verb}{number}{keys} {self.kind}{place}"

    @classmethod
    def read(cls, text: str) -> "Fault":
        """Return the fault that prints so."""
        found = _TEXT.fullmatch(text)
        assert found, text
        verb, at, keys, kind, place = found.groups()
        number = None if at is None else int(at)
        return cls(Verb(verb), Kind(kind), number, keys or "", int(place or 0))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults of one run; of those that match an operation the first one strikes."""

    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))

    @classmethod
    def of(cls, *faults: Fault) -> "Schedule":
        """Return a schedule of these faults."""
        return cls(faults)

    @classmethod
    def read(cls, text: str) -> "Schedule":
        """Return the schedule that prints so."""
        return cls(tuple(Fault.read(one) for one in text.split("; ") if one))

    @classmethod
    def drawn(cls, seed: int, *, faults: int, operations: int) -> "Schedule":
        """Return a schedule of single faults among the first ``operations`` of each verb."""
        # Not for secrets: a seed has to give the same schedule again.
        chance = random.Random(seed)
        verbs = [verb for verb in Verb if verb is not Verb.SWEEP]
        drawn = []
        for _ in range(faults):
            verb = chance.choice(verbs)
            kind = chance.choice(sorted(KINDS[verb]))
            most = 2 if verb is Verb.LIST else operations
            drawn.append(Fault(verb, kind, chance.randrange(most), "", chance.randrange(1 << 16)))
        return cls(tuple(drawn))


class Strike(NamedTuple):
    """A fault that happened."""

    verb: Verb
    kind: Kind
    key: str


class FaultyTier:
    """Any tier, with the faults of a schedule; thread-safe. What it does not know it passes on.

    Args:
        tier: what stores the bytes.
        schedule: what goes wrong; another may be set at any time.
        pass_time: moves the clock that deadlines are measured by.
    """

    def __init__(
        self, tier: Tier, schedule: Schedule, *, pass_time: Callable[[float], None]
    ) -> None:
        self.schedule = schedule
        self.struck: list[Strike] = []
        self.halted = Event()  # set whenever an operation begins to stall
        self.release = Event()  # lets go of everything that stalls
        self._tier: Any = tier
        self._pass_time = pass_time
        self._lock = Lock()
        self._counts: dict[Fault, int] = {}
        self._first: dict[str, bytes] = {}  # what each key held first
        self._seen: dict[str, None] = {}  # keys that were named here, in order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def put(self, key: str, data: bytes) -> int:
        """Store, or fail to."""
        self._first.setdefault(key, data)
        fault = self._due(Verb.PUT, key)
        match fault and fault.kind:
            case Kind.SHORT | Kind.FLIPPED:
                return int(self._tier.put(key, self._altered(fault, Verb.PUT, key, data)))
            case Kind.CLAIMED:
                self._strike(Verb.PUT, fault, key)
                return len(data)
        return int(self._change(fault, Verb.PUT, key, lambda: self._tier.put(key, data)))

    def get(self, key: str) -> bytes | None:
        """Read, or fail to, or lie."""
        return self._read(Verb.GET, key, lambda one: self._tier.get(one))

    def head(self, key: str, nbytes: int) -> bytes | None:
        """Read the first bytes, likewise; for tiers that have this."""
        return self._read(Verb.HEAD, key, lambda one: self._tier.head(one, nbytes))

    def delete(self, key: str) -> None:
        """Remove, or fail to."""
        fault = self._due(Verb.DELETE, key)
        if fault and fault.kind is Kind.CLAIMED:
            self._strike(Verb.DELETE, fault, key)
            return
        self._change(fault, Verb.DELETE, key, lambda: self._tier.delete(key))

    def list(self) -> Iterator[tuple[str, int]]:
        """Yield every key, or fewer."""
        fault = self._due(Verb.LIST, "")
        self._hold(fault, Verb.LIST, "")
        if fault and fault.kind is Kind.VANISHED:
            self._vanish(fault, Verb.LIST, "")
        keys = sorted(self._tier.list())
        if fault and fault.kind is Kind.SHORT and keys:
            gone = keys.pop(fault.place % len(keys))
            self._strike(Verb.LIST, fault, gone[0])
        yield from keys

    def sweep(self, living: Collection[str]) -> int:
        """Remove what dead writers left, or fail to; for tiers that have this."""
        self._hold(self._due(Verb.SWEEP, ""), Verb.SWEEP, "")
        return int(self._tier.sweep(living))

    def lift(self) -> None:
        """Remove every fault: what stalls goes on, and nothing goes wrong any more."""
        self.schedule = Schedule()
        self.release.set()

    def _due(self, verb: Verb, key: str) -> Fault | None:
        due = None
        with self._lock:
            if key:
                self._seen[key] = None
            for fault in self.schedule.faults:
                if fault.verb is not verb or not re.search(fault.keys, key):
                    continue
                number = self._counts.get(fault, 0)
                self._counts[fault] = number + 1
                if due is None and fault.at in (None, number):
                    due = fault
        return due

    def _strike(self, verb: Verb, fault: Fault | None, key: str) -> None:
        assert fault is not None
        with self._lock:
            self.struck.append(Strike(verb, fault.kind, key))

    def _hold(self, fault: Fault | None, verb: Verb, key: str) -> None:
        """Do what comes before an operation: fail, take time, or wait."""
        if fault is None:
            return
        if fault.kind is Kind.SLOW:
            self._strike(verb, fault, key)
            self._pass_time(SLOW_S)
        elif fault.kind is Kind.STALLED:
            self._strike(verb, fault, key)
            self._pass_time(STALL_S)
            self.halted.set()
            self.release.wait()
        elif fault.kind in _SAYS and fault.kind is not Kind.DONE:
            self._strike(verb, fault, key)
            raise TierError(f"the tier could not {verb} {key}: {_SAYS[fault.kind]}")

    def _change(self, fault: Fault | None, verb: Verb, key: str, change: Callable[[], Any]) -> Any:
        self._hold(fault, verb, key)
        done = change()
        if fault and fault.kind is Kind.TWICE:
            self._strike(verb, fault, key)
            done = change()
        if fault and fault.kind is Kind.DONE:
            self._strike(verb, fault, key)
            raise TierError(f"the tier could not {verb} {key}: {_SAYS[fault.kind]}")
        return done

    def _read(self, verb: Verb, key: str, read: Callable[[str], bytes | None]) -> bytes | None:
        fault = self._due(verb, key)
        self._hold(fault, verb, key)
        match fault and fault.kind:
            case Kind.EVICTED:
                self._strike(verb, fault, key)
                self._tier.delete(key)
            case Kind.VANISHED:
                self._vanish(fault, verb, key)
            case Kind.SWAPPED:
                return self._swapped(fault, verb, key, read)
            case Kind.OLDER:
                return self._older(fault, verb, key, read(key))
            case Kind.SHORT | Kind.FLIPPED:
                data = read(key)
                return self._altered(fault, verb, key, data) if data else data
        return read(key)

    def _altered(self, fault: Fault | None, verb: Verb, key: str, data: bytes) -> bytes:
        assert fault is not None
        self._strike(verb, fault, key)
        if fault.kind is Kind.SHORT:
            return data[: fault.place % len(data)]
        byte, bit = divmod(fault.place % (8 * len(data)), 8)
        return data[:byte] + bytes([data[byte] ^ (1 << bit)]) + data[byte + 1 :]

    def _swapped(
        self, fault: Fault | None, verb: Verb, key: str, read: Callable[[str], bytes | None]
    ) -> bytes | None:
        assert fault is not None
        data = read(key)
        if data is None:
            return None
        with self._lock:
            others = [one for one in self._seen if one != key]
        for number in range(len(others)):
            other = read(others[(fault.place + number) % len(others)])
            if other is not None and other != data:
                self._strike(verb, fault, key)
                return other
        return data

    def _older(self, fault: Fault | None, verb: Verb, key: str, data: bytes | None) -> bytes | None:
        first = self._first.get(key)
        if data is None or first is None or data == first[: len(data)]:
            return data
        self._strike(verb, fault, key)
        return first if verb is Verb.GET else first[: len(data)]

    def _vanish(self, fault: Fault | None, verb: Verb, key: str) -> None:
        self._strike(verb, fault, key)
        for one, _ in list(self._tier.list()):
            self._tier.delete(one)


__all__ = [
    "FEATURES",
    "KINDS",
    "PARTS",
    "SLOW_S",
    "STALL_S",
    "Fault",
    "FaultyTier",
    "Kind",
    "Schedule",
    "Strike",
    "Verb",
]
