"""Quarantine fences: numbered, durable, known to every process that has the store open (I8).

A fence names a block, a root or a media item's features. It bars what the name stands for and all
that descends from it: later blocks of the chain, and every block that consumed the features. What
it bars is decided by numbers, not by moments: each record says in its header which fence its writer
knew last *when its turn was planned*, and with

    f(i) = the greatest number of a fence on the root, on a block 0..i, or on features they consumed

a part of block i is good if, and only if, ``f(i) <= its number <= the last fence``. So a fence
holds before a single byte has moved, a record that a turn in flight writes late is barred by its
own header, and a later cold computation is good again. Losing the inventory changes nothing: fences
are files of their own, one each, written as records are (I3).

A fence whose file cannot be read bars whatever is older than itself: nobody can say any more what
it named. One that could not be written yet bars its name altogether, in this process.

    fences/00/0000000007.rec   the fence with this number
    fences/00/0000000000.rec   the floor: bars all that is older than the number in it, so that the
                               files up to that number may be gone; whoever misses one looks here
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Any

from surefoot.errors import TierError
from surefoot.identity import NAME_BYTES, Block, FeatureName, settings_digest
from surefoot.tiers import Tier

FENCES_MOST = 4096  # files kept; beyond that the floor takes the place of the older half
UNWRITTEN = 2**62  # the number of a fence that is not durable yet: greater than any record's
_DIGITS = 10
FENCE_END = 10**_DIGITS  # no fence has this number, or a greater one
_FLOOR = "0" * _DIGITS

Features = Sequence[Sequence[FeatureName]]  # by block: the features that it consumed


class Reason(StrEnum):
    """Why something was quarantined."""

    CORRUPT = "corrupt"  # its bytes were not what was sealed under the name
    DISAGREED = "disagreed"  # the same computation gave two results
    AUDITED = "audited"  # computed anew, it was different
    BY_HAND = "by_hand"  # somebody said so
    PURGED = "purged"  # a tenant's data was removed
    LOST = "lost"  # the fence could not be read: it bars everything older


@dataclass(frozen=True, slots=True)
class Fence:
    """One fence; a ``name`` of None bars everything older than the fence itself."""

    number: int
    name: bytes | None
    reason: Reason
    detail: str
    at: float  # wall clock

    @property
    def keeps(self) -> bool:
        """Whether what it bars may lie in quarantine for a while."""
        return self.reason is not Reason.PURGED


class Fences:
    """The fences of one store as one process knows them; any thread may call.

    Args:
        tier: where they are kept; None for a cache without a store, which forgets them at its end.
        alone: keeps other processes from numbering a fence meanwhile.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        tier: Tier | None,
        *,
        alone: Callable[[], AbstractContextManager[None]],
        wall_clock: Callable[[], float],
    ) -> None:
        self._tier = tier
        self._alone = alone
        self._wall_clock = wall_clock
        self._lock = Lock()
        self._reading = Lock()
        self._known: dict[int, Fence] = {}
        self._numbers: dict[bytes, int] = {}
        self._floor = 0
        self._last = 0
        self._unwritten: dict[bytes, tuple[Reason, str]] = {}
        self._tried: dict[bytes, Fence] = {}  # whose write was not acknowledged

    @property
    def last(self) -> int:
        """The number of the last durable fence that this process knows."""
        return self._last

    def known(self) -> list[Fence]:
        """Return every durable fence, by number."""
        with self._lock:
            return [self._known[number] for number in sorted(self._known)]

    def since(self, number: int) -> list[Fence]:
        """Return the durable fences above ``number``, in order."""
        return [fence for fence in self.known() if fence.number > number]

    def load(self) -> None:
        """Read every fence of the store, as at open; one that the medium keeps to itself is lost.

        Raises:
            TierError: the medium failed.
        """
        if self._tier is None:
            return
        keys = {key for key, _ in self._tier.list() if key.isdecimal() and len(key) == _DIGITS}
        before = 0
        if _FLOOR in keys and (floor := self._read(_FLOOR)) is not None:
            self._learn(floor)
            before = floor.number
        for number in sorted(int(key) for key in keys - {_FLOOR}):
            if number > before + 1:
                self._learn(_lost(number - 1))
            self._learn(self._read(_key(number)) or _lost(number))
            before = max(before, number)

    def outlived(self, number: int) -> None:
        """Stand in for fences that are lost: a record of the store names a later one than is here.

        Raises:
            TierError: the medium failed.
        """
        assert 0 <= number < FENCE_END, number
        with self._alone():
            self.refresh()
            if number > self._last:
                self._raise_floor(number)

    def refresh(self) -> list[Fence]:
        """Read what other processes put up since; two looks for a file if there is nothing new.

        Raises:
            TierError: the medium failed, so that nobody knows.
        """
        if self._tier is None:
            return []
        found: list[Fence] = []
        with self._reading:
            while (fence := self._next()) is not None:
                # Bounded: a medium may invent values for names that it does not have.
                if len(found) == 2 * FENCES_MOST:
                    raise TierError("there are more fences than a store keeps")
                self._learn(fence)
                found.append(fence)
        return found

    def bar(self, name: bytes, reason: Reason, detail: str) -> Fence:
        """Bar a name in this process at once; ``settle`` makes it a durable fence.

        Touches no medium. Until it is settled, the fence has a number that no record reaches.
        Without a store it is numbered right here.
        """
        assert len(name) == NAME_BYTES, name
        with self._lock:
            if self._tier is None:
                fence = Fence(self._last + 1, name, reason, detail, self._wall_clock())
                self._enter(fence)
                return fence
            self._unwritten.setdefault(name, (reason, detail))
        return Fence(UNWRITTEN, name, reason, detail, self._wall_clock())

    def settle(self) -> list[Fence]:
        """Make what is barred durable; return all fences that are new to this process.

        Raises:
            TierError: the medium failed; what is barred stays so, and is tried again.
        """
        if self._tier is None or not self.pending():
            return []
        with self._alone():
            found = self.refresh()
            with self._lock:
                waiting = dict(self._unwritten)
            for name, (reason, detail) in waiting.items():
                # One whose write was never acknowledged may be there all the same.
                tried = self._tried.pop(name, None)
                if tried is None or self._known.get(tried.number) != tried:
                    fence = Fence(self._last + 1, name, reason, detail, self._wall_clock())
                    self._tried[name] = fence
                    self._tier.put(_key(fence.number), _encode(fence))
                    self._learn(fence)
                    del self._tried[name]
                    found.append(fence)
                with self._lock:
                    self._unwritten.pop(name, None)
            found += self._retire()
        return found

    def pending(self) -> bool:
        """Return whether something is barred that is not durable yet."""
        with self._lock:
            return bool(self._unwritten)

    def number_of(self, name: bytes) -> int:
        """Return the number below which a record of this very name is barred."""
        with self._lock:
            return self._number_of(name)

    def covering(self, blocks: Sequence[Block], features: Features = ()) -> tuple[int, ...]:
        """Return f(i) of each block of one chain, from its first."""
        with self._lock:
            return tuple(self._covering(blocks, features))

    def named(self, blocks: Sequence[Block], features: Features = ()) -> frozenset[int]:
        """Return the places in a chain of the blocks that a fence names, or their features."""
        with self._lock:
            barred = self._numbers.keys() | self._unwritten.keys()
        if not barred:
            return frozenset()
        return frozenset(
            index
            for index, block in enumerate(blocks)
            if not barred.isdisjoint((block.name, *(features[index] if features else ())))
        )

    def good(self, number: int, cover: int) -> bool:
        """Return whether a record with this number is good where ``cover`` is its block's f(i)."""
        return cover <= number <= self._last

    def _covering(self, blocks: Sequence[Block], features: Features) -> Iterator[int]:
        if not self._numbers and not self._unwritten:
            yield from [self._floor] * len(blocks)
            return
        cover = self._number_of(blocks[0].parent) if blocks else 0
        for index, block in enumerate(blocks):
            names = (block.name, *(features[index] if features else ()))
            cover = max(cover, *map(self._number_of, names))
            yield cover

    def _number_of(self, name: bytes) -> int:
        if name in self._unwritten:
            return UNWRITTEN
        return max(self._numbers.get(name, 0), self._floor)

    def _next(self) -> Fence | None:
        assert self._tier is not None
        number = self._last + 1
        data = self._tier.get(_key(number))
        if data is not None:
            return _decode(data, number) or _lost(number)
        # Not there yet; or others put up so many that its file is gone.
        data = self._tier.get(_FLOOR)
        if data is None:
            return None
        floor = _decode(data)
        if floor is None:
            raise TierError("the floor of the fences cannot be read")
        return floor if floor.number > self._last else None

    def _read(self, key: str) -> Fence | None:
        assert self._tier is not None
        try:
            data = self._tier.get(key)
        except TierError:
            return None
        return None if data is None else _decode(data, None if key == _FLOOR else int(key))

    def _learn(self, fence: Fence) -> None:
        with self._lock:
            self._enter(fence)

    def _enter(self, fence: Fence) -> None:
        self._known[fence.number] = fence
        self._last = max(self._last, fence.number)
        if fence.name is None:
            self._floor = max(self._floor, fence.number)
        else:
            self._numbers[fence.name] = max(self._numbers.get(fence.name, 0), fence.number)

    def _retire(self) -> list[Fence]:
        """Keep the number of files bounded: the floor takes the place of the older half."""
        assert self._tier is not None
        if len(self._known) <= FENCES_MOST:
            return []
        floor = self._raise_floor(max(self._last - FENCES_MOST // 2, self._floor))
        for number in [one for one in self._known if one < floor.number]:
            self._tier.delete(_key(number))
            with self._lock:
                retired = self._known.pop(number)
                if retired.name is not None and self._numbers.get(retired.name) == number:
                    del self._numbers[retired.name]
        return [floor]

    def _raise_floor(self, number: int) -> Fence:
        assert self._tier is not None
        floor = _lost(number)
        self._tier.put(_FLOOR, _encode(floor))
        self._learn(floor)
        return floor


def _key(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _lost(number: int) -> Fence:
    return Fence(number, None, Reason.LOST, "what it named cannot be told any more", 0.0)


def _encode(fence: Fence) -> bytes:
    fields: dict[str, Any] = {
        "number": fence.number,
        "name": None if fence.name is None else fence.name.hex(),
        "reason": fence.reason.value,
        "detail": fence.detail,
        "at": fence.at,
    }
    text = json.dumps(fields, sort_keys=True)
    digest = settings_digest("fence", text).hex()
    return json.dumps({"fence": fields, "digest": digest}, sort_keys=True).encode()


def _decode(data: bytes, number: int | None = None) -> Fence | None:
    """Return the fence in a file; None if it is damaged, or not the one with this number."""
    try:
        wrapped = json.loads(data)
        fields = wrapped["fence"]
        text = json.dumps(fields, sort_keys=True)
        if settings_digest("fence", text).hex() != wrapped["digest"]:
            return None
        name = None if fields["name"] is None else bytes.fromhex(fields["name"])
        reason, detail = Reason(fields["reason"]), str(fields["detail"])
        found = Fence(int(fields["number"]), name, reason, detail, float(fields["at"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    named = name is None or len(name) == NAME_BYTES
    return found if named and number in (None, found.number) else None
