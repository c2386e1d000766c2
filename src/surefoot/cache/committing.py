"""Where a block's parts go: RAM at once, SSD through the write lane; and what is compared first.

A part that is held already is compared by content: the same computation gives the same bytes, so a
difference is a fault, whichever of the two is wrong. The name is quarantined (I8).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from surefoot.cache.courier import Job
from surefoot.cache.fences import Reason
from surefoot.cache.lifecycle import PartKey
from surefoot.cache.quarantine import Look, Quarantine
from surefoot.cache.shelves import Shelves
from surefoot.identity import Block, BlockName
from surefoot.record import Header, seal
from surefoot.state import Part


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a commit happens, and behind which fences.

    What is held with a number below ``cover`` is barred, and is replaced. ``cover_now`` returns it
    anew: a record may wait long to be written, and be barred itself by then.
    """

    cover: int
    tick: float  # monotonic
    wall: float  # seconds since the epoch
    cover_now: Callable[[], int]
    leaving: frozenset[PartKey]  # what was being deleted before the tiers were looked at


class Committer:
    """Puts parts into the tiers; called with the lock held that RAM is under."""

    def __init__(self, shelves: Shelves, quarantine: Quarantine, counts: Counter[str]) -> None:
        self._ram = shelves.ram
        self._ssd = shelves.ssd
        self._holds = shelves.holds
        self._writes = shelves.lanes.writes
        self._quarantine = quarantine
        self._fences = quarantine.fences
        self._counts = counts
        self._lock = shelves.lock

    def commit(
        self,
        headers: Sequence[Header],
        parts: Sequence[Part],
        look: Look,
        stamp: Stamp,
        *,
        hold: Callable[[PartKey], None],
    ) -> bool:
        """Store a block's parts, each held before the next makes room; return whether any is new.

        ``hold`` is called with each that is stored now.
        """
        if not headers:
            return False
        block = headers[0].block
        stored, durable = self._contents(block.name, look, stamp)
        if any(stored.get(one.group, one.content) != one.content for one in headers):
            self.disagree(block)
            return False
        new = False
        for header, part in zip(headers, parts, strict=True):
            key = (block.name, header.group)
            added, kept = self._keep(header, part, stamp, durable=header.group in durable)
            new |= added
            if kept:
                hold(key)
        return new

    def disagree(self, block: Block) -> None:
        """Keep neither of two results of one computation, nor what descends from them (I8)."""
        with self._lock:
            self._counts["disagreements"] += 1
        detail = f"two results for tokens {block.start} to {block.end}"
        self._quarantine.bar(block.name, Reason.DISAGREED, detail)

    def _contents(
        self, name: BlockName, look: Look, stamp: Stamp
    ) -> tuple[dict[str, bytes], set[str]]:
        """Return the content digests of a block's parts, and which are on SSD or on their way.

        What a fence bars counts as not held.
        """
        leaving, cover = stamp.leaving | self._holds.barred()[1], stamp.cover
        rows = {key: (held.content, held.fence) for key, held in look.parts.items()}
        rows.update(
            (key, (header.content, header.fence))
            for key, header in self._holds.pending().items()
            if key[0] == name
        )
        durable = {
            key[1]: content
            for key, (content, fence) in rows.items()
            if key not in leaving and self._fences.good(fence, cover)
        }
        in_ram = {
            group: part.content
            for group, part in self._ram.held(name).items()
            if self._fences.good(part.fence, cover)
        }
        return {**durable, **in_ram}, set(durable)

    def _keep(
        self, header: Header, part: Part, stamp: Stamp, *, durable: bool
    ) -> tuple[bool, bool]:
        """Put a part wherever it is not yet; return whether it is new, and whether it is held."""
        key = (header.block.name, part.group)
        held = self._ram.part(key)
        if held and held.fence < stamp.cover:
            if self._holds.pinned(key):
                return False, False
            self._ram.remove(key)
            held = None
        if held:
            header = replace(header, fence=held.fence, features=held.features)
        wanted = self._ssd is not None and not durable
        taken = False
        if not held or wanted:
            found = self._ram.get(key) if held else None
            data = found or seal(
                header.block,
                part,
                content=header.content,
                features=header.features,
                fence=header.fence,
            )
            if not held:
                taken = self._ram.put(header, data, tick=stamp.tick)
            if wanted:
                taken = self._queue(header, data, stamp) or taken
        self._ram.touch(key, stamp.tick)
        if durable and self._ssd:
            self._ssd.touch([key], stamp.wall)
        before = held is not None or durable
        return taken and not before, taken or before

    def _queue(self, header: Header, data: bytes, stamp: Stamp) -> bool:
        ssd, block = self._ssd, header.block
        assert ssd is not None

        def write() -> None:
            key = (block.name, header.group)
            self._quarantine.catch_up()
            cover = stamp.cover_now()
            if cover > header.fence:
                self._holds.written(key)  # quarantined while it waited
                return
            if not ssd.write(header, data=data, tick=stamp.wall, cover=cover):
                self.disagree(block)
            self._quarantine.catch_up()
            if stamp.cover_now() > header.fence:
                # Whoever put up the fence meanwhile, to purge it maybe, came too early for it.
                ssd.set_aside([key], header.fence + 1, keep=False)

        self._holds.queue(header)
        if self._writes.submit(Job(write, len(data))):
            return True
        # The queue is full: RAM may still have it, and the engine thread never waits for a disk.
        self._holds.written((block.name, header.group))
        self._counts["unqueued_writes"] += 1
        return False
