"""The RAM tier's index: which parts it holds, for which blocks, and who leaves when it is full.

Private to one process and called with the cache's lock held. The tier holds sealed record bytes,
like every tier; this holds what planning and eviction ask about them. Used bytes never exceed the
capacity (I6); a part that does not fit beside pinned ones is not taken (I7).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from surefoot.cache.fences import Fence
from surefoot.cache.forest import Node, Stored, victims
from surefoot.cache.lifecycle import PartKey
from surefoot.identity import Block, BlockName, FeatureName
from surefoot.laws import Law
from surefoot.record import Header
from surefoot.record import key as record_key
from surefoot.tiers.ram import RamTier

LOW_WATER = 0.95  # an eviction goes down to this, so that one judges the tree for many commits


@dataclass(slots=True)
class RamPart:
    """One part in RAM; ``tick`` is when it was last used."""

    content: bytes
    nbytes: int
    tick: float
    fence: int
    features: tuple[FeatureName, ...]  # that the block consumed


class RamShelf:
    """The parts in RAM, by block."""

    def __init__(
        self,
        tier: RamTier,
        *,
        capacity: int,
        laws: Mapping[str, Law],
        pinned: Callable[[], Collection[PartKey]],
    ) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._tier = tier
        self._laws = laws
        self._pinned = pinned
        self._blocks: dict[BlockName, Block] = {}
        self._parts: dict[BlockName, dict[str, RamPart]] = {}
        self._children: dict[BlockName, dict[BlockName, None]] = {}
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all parts (I6)."""
        return self._used

    @property
    def parts(self) -> int:
        """How many parts are held."""
        return sum(len(parts) for parts in self._parts.values())

    def part(self, key: PartKey) -> RamPart | None:
        """Return what is known of a held part."""
        return self._parts.get(key[0], {}).get(key[1])

    def block(self, name: BlockName) -> Block | None:
        """Return a block that some part is held of."""
        return self._blocks.get(name)

    def held(self, name: BlockName) -> Mapping[str, RamPart]:
        """Return the parts that are held of a block, by group."""
        return self._parts.get(name, {})

    def children(self, parent: BlockName) -> list[Block]:
        """Return the held blocks that follow ``parent``, the latest first."""
        return [self._blocks[name] for name in reversed(self._children.get(parent, {}))]

    def items(self) -> list[tuple[Block, str, RamPart]]:
        """Return every held part with its block."""
        return [
            (self._blocks[name], group, part)
            for name, parts in self._parts.items()
            for group, part in parts.items()
        ]

    def get(self, key: PartKey) -> bytes | None:
        """Return the record bytes of a part."""
        return self._tier.get(record_key(*key))

    def barred(self, fence: Fence) -> list[PartKey]:
        """Return the parts that a fence bars: of its name and all that descends from it."""
        names: Iterable[BlockName] = self._parts
        if fence.name is not None:
            names = self._below(fence.name)
        return [
            (name, group)
            for name in names
            for group, part in self._parts.get(name, {}).items()
            if part.fence < fence.number
        ]

    def _below(self, name: bytes) -> set[BlockName]:
        consumers = (
            block
            for block, parts in self._parts.items()
            if any(name in part.features for part in parts.values())
        )
        waiting = [BlockName(name), *consumers]
        found: set[BlockName] = set()
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += self._children.get(at, {})
        return found

    def put(self, header: Header, data: bytes, *, tick: float) -> bool:
        """Hold a part that is not held yet; may evict; false if it does not fit (I6)."""
        block, group = header.block, header.group
        assert self.part((block.name, group)) is None, (block.name, group)
        if not self._make_room(len(data)):
            return False
        nbytes = self._tier.put(record_key(block.name, group), data)
        if block.name not in self._blocks:
            self._blocks[block.name] = block
            self._children.setdefault(block.parent, {})[block.name] = None
        parts = self._parts.setdefault(block.name, {})
        parts[group] = RamPart(header.content, nbytes, tick, header.fence, header.features)
        self._used += nbytes
        return True

    def touch(self, key: PartKey, tick: float) -> None:
        """Note that a part was used; an absent one is ignored."""
        part = self._parts.get(key[0], {}).get(key[1])
        if part:
            part.tick = max(part.tick, tick)

    def remove(self, key: PartKey) -> None:
        """Let go of a part; removing an absent one is a no-op."""
        parts = self._parts.get(key[0], {})
        part = parts.pop(key[1], None)
        if part is None:
            return
        self._tier.delete(record_key(*key))
        self._used -= part.nbytes
        if not parts:
            del self._parts[key[0]]
            block = self._blocks.pop(key[0])
            siblings = self._children[block.parent]
            del siblings[block.name]
            if not siblings:
                del self._children[block.parent]

    def evict(self, free: int) -> None:
        """Remove dead parts, then what must go to free ``free`` bytes (I13); pins stay (I7)."""
        pinned = self._pinned()
        nodes = {
            name: Node(
                self._blocks[name].parent,
                self._blocks[name].start,
                self._blocks[name].end,
                {
                    group: Stored(part.nbytes, part.tick, (name, group) in pinned)
                    for group, part in parts.items()
                },
            )
            for name, parts in self._parts.items()
        }
        for key in list(victims(nodes, self._laws, free=free)):
            assert key not in pinned, key  # I7
            self.remove(key)
            self.evictions += 1

    def _make_room(self, nbytes: int) -> bool:
        over = self._used + nbytes - self.capacity
        if over <= 0:
            return True
        fast = sum(
            part.nbytes
            for part in (self._parts.get(name, {}).get(group) for name, group in self._pinned())
            if part
        )
        if fast + nbytes > self.capacity:
            return False  # judging the tree could not help
        slack = int(self.capacity * (1 - LOW_WATER))
        self.evict(over + slack)
        return self._used + nbytes <= self.capacity
