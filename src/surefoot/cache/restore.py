"""A restore: load what the plan names, verify all of it, and hand over what stands somewhere.

A transaction in the caller's eyes: nothing is returned that was not unsealed, compared with the
block that was planned (tokens, spans, parent: a hit is confirmed by comparison, not by digest
alone) and checked against its group's schema (I2). What arrived in time and forms a boundary is
used; if that needs parts the plan did not name (a lower snapshot, an older window), there is one
retreat that reads them within the same deadline. Every failure is a miss with a reason (I10).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from surefoot.cache.planner import Load, Plan, Source, loads_for, stands_at
from surefoot.errors import CacheFault, CorruptRecord, TierError
from surefoot.identity import Block
from surefoot.receipt import Miss
from surefoot.record import Header, unseal
from surefoot.state import Group, Part

# When several things went wrong, the receipt names the first of these.
_GRAVITY = (
    Miss.CORRUPT,
    Miss.QUARANTINED,
    Miss.TIER_ERROR,
    Miss.DEADLINE,
    Miss.BUSY,
    Miss.EVICTED,
)


class Absent(CacheFault):
    """A part that was stored when the plan was made is there no more."""


class Late(CacheFault):
    """A part did not arrive by the deadline."""


class Busy(CacheFault):
    """No I/O thread could take the read."""


class Barred(CacheFault):
    """A part is behind a quarantine fence."""


class RestoredPart(NamedTuple):
    """A verified part and the block ``[start, end)`` it belongs to; its bytes are views."""

    start: int
    end: int
    part: Part


class Loaded(NamedTuple):
    """A part that passed verification, and the record bytes it is a view of."""

    part: Part
    header: Header
    data: bytes


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a restore stands, in blocks and in tokens, with everything needed to stand there."""

    boundary: int
    boundary_tokens: int
    parts: tuple[RestoredPart, ...]
    contents: Mapping[tuple[str, int], bytes]  # by group and block index
    sources: Mapping[str, int]  # restored tokens by tier; sums to ``boundary_tokens`` (I11)
    miss_reason: Miss | None
    verified: bool  # something was restored, and every record of it was verified
    failed: Mapping[tuple[str, int], str]  # what kind of fault kept a part away, likewise


@dataclass(slots=True)
class Outcomes:
    """What became of each part that was asked for, by group and block index."""

    loaded: dict[Load, Loaded] = field(default_factory=dict)
    failed: dict[Load, CacheFault] = field(default_factory=dict)


Fetch = Callable[[Sequence[Load]], Mapping[Load, Loaded | CacheFault]]
Judge = Callable[[Mapping[Load, Loaded]], Mapping[Load, CacheFault]]


def restore(
    plan: Plan, groups: Sequence[Group], fetch: Fetch, judge: Judge
) -> tuple[Restored, Outcomes]:
    """Carry out a plan; ``fetch`` loads parts until the restore's deadline and never raises.

    ``judge`` has the last word, after everything is loaded: it returns the parts that a fence bars.
    """
    outcomes = Outcomes()
    _load(plan.loads, fetch, outcomes)
    if outcomes.failed:
        _retreat(plan, groups, fetch, outcomes)
    for load, fault in judge(outcomes.loaded).items():
        del outcomes.loaded[load]
        outcomes.failed[load] = fault
    arrived = {(plan.blocks[load.block].name, load.group): load.source for load in outcomes.loaded}
    boundary = stands_at(groups, plan.blocks, arrived.keys(), limit=plan.boundary)
    used = loads_for(groups, plan.blocks, arrived, boundary)
    return _restored(plan, boundary, used, outcomes), outcomes


def verify(data: bytes, block: Block, group: Group) -> Loaded:
    """Unseal a record and check that it is the part that was planned (I2).

    Raises:
        CorruptRecord: it is not; the text says how.
    """
    header, part = unseal(data, name=block.name, group=group.name)
    _confirm(header, block)
    mismatch = group.mismatch(part, block.start, block.end)
    if mismatch:
        raise CorruptRecord(f"block {block.name.hex()}: {mismatch}")
    return Loaded(part, header, data)


def _confirm(header: Header, block: Block) -> None:
    if header.block != block:
        raise CorruptRecord(f"the record of block {block.name.hex()} holds another prompt's tokens")


def _retreat(plan: Plan, groups: Sequence[Group], fetch: Fetch, outcomes: Outcomes) -> None:
    # Everything that was usable, less what failed: what is left may stand lower (I4).
    failed = {(plan.blocks[load.block].name, load.group) for load in outcomes.failed}
    usable = {key: source for key, source in plan.usable.items() if key not in failed}
    lower = stands_at(groups, plan.blocks, usable.keys(), limit=plan.boundary)
    wanted = loads_for(groups, plan.blocks, usable, lower)
    _load([load for load in wanted if load not in outcomes.loaded], fetch, outcomes)


def _load(loads: Sequence[Load], fetch: Fetch, outcomes: Outcomes) -> None:
    for load, result in fetch(loads).items() if loads else ():
        if isinstance(result, CacheFault):
            outcomes.failed[load] = result
        else:
            outcomes.loaded[load] = result


def _restored(plan: Plan, boundary: int, used: Sequence[Load], outcomes: Outcomes) -> Restored:
    blocks = plan.blocks
    parts = [
        RestoredPart(blocks[load.block].start, blocks[load.block].end, outcomes.loaded[load].part)
        for load in used
    ]
    return Restored(
        boundary=boundary,
        boundary_tokens=blocks[boundary - 1].end if boundary else 0,
        parts=tuple(parts),
        contents={(load.group, load.block): outcomes.loaded[load].header.content for load in used},
        sources=sources(blocks, boundary, used),
        miss_reason=_reason(plan, boundary, outcomes.failed.values()),
        verified=boundary > 0,
        failed={
            (load.group, load.block): type(fault).__name__
            for load, fault in outcomes.failed.items()
        },
    )


def sources(blocks: Sequence[Block], boundary: int, used: Iterable[Load]) -> dict[str, int]:
    """Return restored tokens by tier (I11).

    A block counts for the slowest tier that one of its parts came from; a block that no part was
    loaded of counts with the next one that has some.
    """
    slowest: dict[int, Source] = {}
    for load in used:
        if slowest.get(load.block) is not Source.SSD:
            slowest[load.block] = load.source
    tokens: dict[str, int] = {}
    source: Source | None = None
    for index in reversed(range(boundary)):
        source = slowest.get(index, source)
        assert source is not None, index  # every law needs the last block's part
        length = blocks[index].end - blocks[index].start
        tokens[source.value] = tokens.get(source.value, 0) + length
    return tokens


def _reason(plan: Plan, boundary: int, failures: Iterable[CacheFault]) -> Miss | None:
    if boundary == plan.boundary:
        return plan.miss_reason
    met = {_miss(failure) for failure in failures}
    return next(miss for miss in _GRAVITY if miss in met)


def _miss(failure: CacheFault) -> Miss:
    match failure:
        case CorruptRecord():
            return Miss.CORRUPT
        case TierError():
            return Miss.TIER_ERROR
        case Barred():
            return Miss.QUARANTINED
        case Late():
            return Miss.DEADLINE
        case Busy():
            return Miss.BUSY
        case Absent():
            return Miss.EVICTED
    raise AssertionError(failure)
