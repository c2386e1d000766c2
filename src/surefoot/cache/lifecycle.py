r"""The life of a stored part, as a table, and the one owner of what this process holds in hand.

    from \ event     stage    publish   pin      unpin           fail             evict    crash
    absent          staged   -         -        -               -                -        absent
    staged          -        stored    -        -               absent           absent   absent
    stored          -        -         pinned   -               absent           absent   stored
    pinned          -        -         pinned   pinned/stored   fenced           refuse   stored
    fenced          -        -         -        fenced/absent   fenced           -        stored

A dash is a broken contract. ``Holds`` counts pins (I7) and remembers which parts failed while
somebody stood on them: a fenced part has no new borrower and is gone at the last unpin (I8). A
crash forgets a fence with the process; the record still meets verification before any use.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum, auto
from threading import Lock
from typing import NamedTuple, TypeAlias

from surefoot.identity import BlockName
from surefoot.record import Header

PartKey: TypeAlias = tuple[BlockName, str]  # a block's name and a group's


class State(StrEnum):
    """Where a part is in its life; an inventory row says ``staged`` or ``stored``."""

    ABSENT = "absent"
    STAGED = "staged"
    STORED = "stored"
    PINNED = "pinned"
    FENCED = "fenced"


class Verdict(Enum):
    """What the inventory says of a record that somebody wants to write."""

    STAGED = auto()  # the caller writes it
    HELD = auto()  # it is stored, or being written, with the same content
    DIFFERENT = auto()  # it is stored with other content: a fault
    BARRED = auto()  # what is stored there is behind a fence, and in the way
    LEAVING = auto()  # likewise, and somebody is at work on it: moves it aside, or writes it late


class FileRow(NamedTuple):
    """Where a record is in its life, who wrote it, and the bytes it is accounted with."""

    state: State
    owner: str
    nbytes: int


class Event(StrEnum):
    """What can happen to a part."""

    STAGE = "stage"
    PUBLISH = "publish"
    PIN = "pin"
    UNPIN = "unpin"
    LAST_UNPIN = "last_unpin"
    FAIL = "fail"
    EVICT = "evict"
    CRASH = "crash"


LIFE: Mapping[tuple[State, Event], State] = {
    (State.ABSENT, Event.STAGE): State.STAGED,
    (State.ABSENT, Event.CRASH): State.ABSENT,
    (State.STAGED, Event.PUBLISH): State.STORED,
    (State.STAGED, Event.FAIL): State.ABSENT,
    (State.STAGED, Event.EVICT): State.ABSENT,
    (State.STAGED, Event.CRASH): State.ABSENT,
    (State.STORED, Event.PIN): State.PINNED,
    (State.STORED, Event.FAIL): State.ABSENT,
    (State.STORED, Event.EVICT): State.ABSENT,
    (State.STORED, Event.CRASH): State.STORED,
    (State.PINNED, Event.PIN): State.PINNED,
    (State.PINNED, Event.UNPIN): State.PINNED,
    (State.PINNED, Event.LAST_UNPIN): State.STORED,
    (State.PINNED, Event.FAIL): State.FENCED,
    (State.PINNED, Event.EVICT): State.PINNED,  # refused (I7)
    (State.PINNED, Event.CRASH): State.STORED,
    (State.FENCED, Event.UNPIN): State.FENCED,
    (State.FENCED, Event.LAST_UNPIN): State.ABSENT,
    (State.FENCED, Event.FAIL): State.FENCED,
    (State.FENCED, Event.CRASH): State.STORED,
}


def after(state: State, event: Event) -> State:
    """Return the state that follows; an event that cannot happen there is a bug."""
    assert (state, event) in LIFE, (state, event)
    return LIFE[state, event]


class Holds:
    """Count this process's pins, fences, departures and queued writes; safe from any thread.

    ``leaving`` are parts whose SSD file is being deleted: a claim and a pin exclude each other, so
    a victim chosen by an I/O thread can no longer be planned on by the engine's (I7).
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pins: Counter[PartKey] = Counter()
        self._fenced: set[PartKey] = set()
        self._leaving: set[PartKey] = set()
        self._pending: dict[PartKey, Header] = {}

    def pin(self, keys: Iterable[PartKey]) -> None:
        """Hold the parts: no eviction and no deletion by this process until ``unpin``."""
        with self._lock:
            self._pins.update(keys)

    def unpin(self, keys: Iterable[PartKey]) -> list[PartKey]:
        """Let go; return the fenced parts that nobody stands on any more, for deletion now."""
        free = []
        with self._lock:
            for key in keys:
                assert self._pins[key] > 0, key
                self._pins[key] -= 1
                if not self._pins[key]:
                    del self._pins[key]
                    if key in self._fenced:
                        self._fenced.discard(key)
                        free.append(key)
        return free

    def fence(self, keys: Iterable[PartKey]) -> list[PartKey]:
        """Bar parts that failed from new borrowers (I8); return those that can be deleted now."""
        with self._lock:
            listed = list(keys)
            self._fenced.update(key for key in listed if key in self._pins)
            return [key for key in listed if key not in self._pins]

    def pinned(self, key: PartKey) -> bool:
        """Return whether anybody stands on the part."""
        with self._lock:
            return key in self._pins

    def pinned_keys(self) -> frozenset[PartKey]:
        """Return every part that somebody stands on."""
        with self._lock:
            return frozenset(self._pins)

    def fenced(self, key: PartKey) -> bool:
        """Return whether the part failed and waits for its last borrower to let go."""
        with self._lock:
            return key in self._fenced

    def barred(self) -> tuple[frozenset[PartKey], frozenset[PartKey]]:
        """Return the fenced parts, and those whose SSD file is being deleted."""
        with self._lock:
            return frozenset(self._fenced), frozenset(self._leaving)

    def claim(self, key: PartKey) -> bool:
        """Take an SSD part for deletion; false while it is pinned (I7) or queued to be written."""
        with self._lock:
            if key in self._pins or key in self._pending:
                return False
            self._leaving.add(key)
            return True

    def leave(self, key: PartKey) -> None:
        """Take an SSD part that failed for deletion, whoever else wants it."""
        with self._lock:
            self._leaving.add(key)

    def gone(self, key: PartKey) -> None:
        """Say that the SSD file and its row are deleted."""
        with self._lock:
            self._leaving.discard(key)

    def queue(self, header: Header) -> None:
        """Remember a part that waits to be written."""
        with self._lock:
            self._pending[header.block.name, header.group] = header

    def written(self, key: PartKey) -> None:
        """Forget a part that is written, or whose write was given up."""
        with self._lock:
            self._pending.pop(key, None)

    def pending(self) -> dict[PartKey, Header]:
        """Return the parts that wait to be written."""
        with self._lock:
            return dict(self._pending)
