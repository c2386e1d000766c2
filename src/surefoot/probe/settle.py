"""What is asked after a leg's own requests, so that its verdict can be reached.

References: the answer without the cache, for requests that have no cold one, where the server has
a way round its cache. More time: a second stage of the time test where the first was too short.
Both come after the walk, so nothing that the leg does on purpose is disturbed by them.
"""

from surefoot.probe.judge import JUDGED, distinct, witnesses_of
from surefoot.probe.legs import Run
from surefoot.probe.trail import Role, Seen, Trail
from surefoot.probe.witnesses import TTFT

STAGE_CONTROLS = 6
STAGE_WARM = 6
OWN_MISTAKES = 20  # never-seen prompts that tell how often the model is wrong by itself


async def settle(run: Run, trail: Trail, error_rate: float) -> None:
    """Ask the references and, if time alone is missing, the second stage of the time test."""
    if run.facts.way_round is not None:
        way = run.facts.way_round
        for seen in _without_reference(trail):
            await trail.reference(seen.request, way.headers, way.fields())
    elif trail.fresh is not None and _fails(trail):
        for _ in range(OWN_MISTAKES):
            await trail.cold(trail.fresh())
    first = witnesses_of(trail, run.facts, error_rate)
    if TTFT in first.shown_by or not trail.of(Role.WARM) or trail.fresh is None:
        return
    if first.offered and not set(first.offered) <= set(first.shown_by):
        return  # the counters deny it: more time would not settle that
    for _ in range(STAGE_CONTROLS):
        await trail.cold(trail.fresh())
    again = trail.of(Role.WARM)[-STAGE_WARM:]
    for seen in again:
        await trail.warm(seen.request)


def _fails(trail: Trail) -> bool:
    """Whether judged answers miss what is right: how often the model does by itself then counts."""
    return any(seen.reply.ok and not seen.request.right(seen.reply) for seen in trail.of(*JUDGED))


def _without_reference(trail: Trail) -> list[Seen]:
    """Return one exchange of every judged prompt that was never asked cold."""
    known = {seen.request.prompt for seen in trail.of(Role.COLD)}
    return [one for one in distinct(trail.of(*JUDGED)) if one.request.prompt not in known]
