"""Where a prompt can stand, from what is held: pure, so that every small inventory can be tried.

A plan names the parts to load; it never loads. What it says of the stored prefix (how long it is,
where the prompt left it, why the boundary is not the limit) is what the receipt reports.
"""

from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from surefoot.cache.lifecycle import PartKey
from surefoot.identity import Block, BlockName, FeatureName
from surefoot.laws import RecurrentSnapshot, restorable
from surefoot.prompt import TOKEN_BYTES
from surefoot.receipt import Miss
from surefoot.state import Group


class Source(StrEnum):
    """The tier that a part would be loaded from."""

    RAM = "ram"
    SSD = "ssd"


class Load(NamedTuple):
    """One part that a restore needs: a group, a block of the prompt by index, and its tier."""

    group: str
    block: int
    source: Source


class Stored(NamedTuple):
    """What the tiers say of a prompt's blocks, at one moment.

    ``usable`` are the parts a restore may ask for; ``known`` are those any tier holds, usable or
    not. ``barred`` says why a known part is not usable, should that cost a boundary; ``unknown``
    means that a tier could not say what it holds. ``seen`` says whether this process computed a
    block, stored or not: a model of snapshots alone stores few of the blocks that prompts share.
    """

    usable: Mapping[PartKey, Source]
    known: frozenset[PartKey]
    seen: Callable[[BlockName], bool]
    barred: Miss
    unknown: bool = False
    fenced: frozenset[int] = frozenset()  # blocks that a fence names, and nobody computed since


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Where a restore expects to stand; boundaries and ``limit`` are in blocks."""

    blocks: tuple[Block, ...]
    limit: int
    boundary: int
    loads: tuple[Load, ...]
    usable: Mapping[PartKey, Source]
    common_blocks: int
    branch: int  # where the prompt leaves what is stored or was seen: worth a snapshot
    common_prefix_tokens: int
    diverged_at_token: int | None
    miss_reason: Miss | None
    tick: float  # monotonic, when it was made
    wall: float  # wall clock, likewise
    fence: int  # the last fence that was known, likewise
    features: tuple[tuple[FeatureName, ...], ...]  # by block: what it consumes; () where none does

    @property
    def keys(self) -> list[PartKey]:
        """The parts to load."""
        return [(self.blocks[load.block].name, load.group) for load in self.loads]

    def below(self, name: bytes) -> frozenset[BlockName]:
        """Return the blocks that bear a name, follow a root of it or consumed features of it.

        And all that follow those.
        """
        for index, block in enumerate(self.blocks):
            consumed = self.features[index] if self.features else ()
            if name in (block.name, *consumed) or (index == 0 and name == block.parent):
                return frozenset(one.name for one in self.blocks[index:])
        return frozenset()


def make_plan(
    groups: Sequence[Group],
    blocks: tuple[Block, ...],
    stored: Stored,
    *,
    limit: int,
    children: Callable[[Block | None], Iterable[Block]],
    tick: float,
    wall: float,
    fence: int = 0,
    features: tuple[tuple[FeatureName, ...], ...] = (),
) -> Plan:
    """Plan the greatest restorable boundary at most ``limit`` (I4).

    Args:
        groups: the model's groups; none means that nothing is ever restorable.
        blocks: every whole block of the prompt.
        stored: what the tiers hold of them.
        limit: the last boundary below the prompt's last token, in blocks.
        children: the stored blocks that follow a block of the prompt, or None for its root.
        tick: the monotonic clock.
        wall: the wall clock.
        fence: the last quarantine fence.
        features: by block, what it consumes; empty where no block does.
    """
    boundary = stands_at(groups, blocks, stored.usable.keys(), limit=limit)
    common = _common(blocks, stored.known)
    tokens, diverged = _divergence(blocks, common, children)
    return Plan(
        blocks=blocks,
        limit=limit,
        boundary=boundary,
        loads=loads_for(groups, blocks, stored.usable, boundary),
        usable=stored.usable,
        common_blocks=common,
        branch=max(common, _deepest(blocks, stored.seen)),
        common_prefix_tokens=tokens,
        diverged_at_token=diverged,
        miss_reason=_miss(groups, blocks, stored, limit=limit, boundary=boundary, common=common),
        tick=tick,
        wall=wall,
        fence=fence,
        features=features,
    )


def stands_at(
    groups: Sequence[Group], blocks: Sequence[Block], parts: Iterable[PartKey], *, limit: int
) -> int:
    """Return the greatest boundary ``<= limit`` whose needs are among ``parts`` (I4)."""
    if not groups:
        return 0
    held = parts if isinstance(parts, frozenset | KeysView) else frozenset(parts)
    return restorable(
        [group.law for group in groups],
        [block.end for block in blocks],
        lambda group, block: (blocks[block].name, groups[group].name) in held,
        limit=limit,
    )


def loads_for(
    groups: Sequence[Group],
    blocks: Sequence[Block],
    usable: Mapping[PartKey, Source],
    boundary: int,
) -> tuple[Load, ...]:
    """Return what standing at ``boundary`` needs, in block order."""
    if not boundary:
        return ()
    ends = [block.end for block in blocks]
    needed = [
        (index, place, group.name)
        for place, group in enumerate(groups)
        for index in group.law.needs(ends, boundary)
    ]
    return tuple(
        Load(group, index, usable[blocks[index].name, group]) for index, _, group in sorted(needed)
    )


def _common(blocks: Sequence[Block], known: frozenset[PartKey]) -> int:
    # A name commits to the whole prefix, so the deepest held block is the longest stored prefix.
    names = {name for name, _ in known}
    return _deepest(blocks, names.__contains__)


def _deepest(blocks: Sequence[Block], found: Callable[[BlockName], bool]) -> int:
    return next((n for n in range(len(blocks), 0, -1) if found(blocks[n - 1].name)), 0)


def _divergence(
    blocks: Sequence[Block], common: int, children: Callable[[Block | None], Iterable[Block]]
) -> tuple[int, int | None]:
    last = blocks[common - 1] if common else None
    tokens = last.end if last else 0
    if common == len(blocks):
        return tokens, None
    follower = blocks[common]
    agreed = [agreement(follower, child) for child in children(last) if child.name != follower.name]
    if not agreed:
        return tokens, None
    return tokens + max(agreed), tokens + max(agreed)


def agreement(block: Block, other: Block) -> int:
    """Return how many leading tokens two blocks after the same parent share, media included."""
    limit = min(block.end, other.end) - block.start
    limit = min(limit, _media_agreement(block, other), _media_agreement(other, block))
    first, second = (one.ids[: limit * TOKEN_BYTES] for one in (block, other))
    if first == second:
        return limit
    pairs = zip(memoryview(first).cast("I"), memoryview(second).cast("I"), strict=True)
    return next(index for index, (one, two) in enumerate(pairs) if one != two)


def _media_agreement(block: Block, other: Block) -> int:
    lengths = {(span.start, span.offset, span.media): span.length for span in other.spans}
    agreed = block.end - block.start
    for span in block.spans:
        shared = lengths.get((span.start, span.offset, span.media), 0)
        if shared < span.length:
            agreed = min(agreed, span.start + shared)
    return agreed


def _miss(
    groups: Sequence[Group],
    blocks: tuple[Block, ...],
    stored: Stored,
    *,
    limit: int,
    boundary: int,
    common: int,
) -> Miss | None:
    if boundary == limit:
        return None if limit else Miss.TOO_SHORT
    if stored.unknown:
        return Miss.TIER_ERROR
    behind = any(boundary <= index < limit for index in stored.fenced)
    if behind or common == 0:
        return Miss.QUARANTINED if behind else Miss.COLD
    if stands_at(groups, blocks, stored.known, limit=limit) > boundary:
        return stored.barred
    rows = [group for group in groups if not isinstance(group.law, RecurrentSnapshot)]
    if rows != list(groups) and _rows_reach(rows, blocks, stored, limit, common) > boundary:
        return Miss.NO_SNAPSHOT
    return Miss.EVICTED if boundary < min(common, limit) else Miss.DIVERGED


def _rows_reach(
    rows: Sequence[Group], blocks: Sequence[Block], stored: Stored, limit: int, common: int
) -> int:
    # A model of snapshots alone has no rows; then the stored prefix itself is what reaches further.
    if not rows:
        return min(common, limit)
    return stands_at(rows, blocks, stored.usable.keys(), limit=limit)
