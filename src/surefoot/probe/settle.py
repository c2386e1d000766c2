"""What is asked after a leg's own requests, so that its verdict can be reached.

References: the answer without the cache, for requests that have no cold one, where the server has
a way round its cache; once more where an answer differs from its own, since a reference that does
not repeat accuses nobody. More time: a second stage of the time test where the first was too short.
All come after the walk, so nothing that the leg does on purpose is disturbed by them.
"""

from surefoot.probe.failures import suspect
from surefoot.probe.judge import witnesses_of
from surefoot.probe.legs import Run
from surefoot.probe.references import JUDGED, distinct
from surefoot.probe.trail import Role, Seen, Trail
from surefoot.probe.witnesses import TTFT

STAGE_CONTROLS = 6
STAGE_WARM = 6
OWN_MISTAKES = 20  # never-seen prompts that tell how often the model is wrong by itself
FAILED_MOST = 3  # requests that failed and are asked again
AGAIN = 4  # times that an answer and its reference are asked where nothing shows how sure they are


async def settle(run: Run, trail: Trail, error_rate: float, *, whole: bool = True) -> None:
    """Ask again what failed; then, after a whole walk, the references and more time.

    Raises:
        Unsettled: what failed is never answered, again; or the budget ended.
    """
    await _ask_failed_again(trail)
    if whole:
        await _ask_references(run, trail)
        await _ask_suspected(run, trail, error_rate)
        await _ask_for_time(run, trail, error_rate)


async def _ask_failed_again(trail: Trail) -> None:
    """Ask once more what failed: what a cache breaks fails again, an accident does not."""
    failed = [one for one in trail.of(*JUDGED) if one.reply.error and not one.reply.busy]
    for seen in distinct(failed)[:FAILED_MOST]:
        await trail.plain(seen.request)


async def _ask_references(run: Run, trail: Trail) -> None:
    """Ask what has no cold answer the way round; without one, how often the model is wrong."""
    if run.facts.way_round is not None:
        way = run.facts.way_round
        for seen in _without_reference(trail):
            await trail.reference(seen.request, way.headers, way.fields())
    elif trail.fresh is not None and _fails(trail):
        for _ in range(OWN_MISTAKES):
            await trail.cold(trail.fresh())


async def _ask_for_time(run: Run, trail: Trail, error_rate: float) -> None:
    """Ask the second stage of the time test, if time alone is missing."""
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


async def _ask_suspected(run: Run, trail: Trail, error_rate: float) -> None:
    """Ask a reference that accuses somebody once more; without logprobs, both sides some times."""
    seen, way = suspect(trail, run.facts, error_rate), run.facts.way_round
    if seen is None:
        return
    for _ in range(1 if seen.reply.tokens else AGAIN):
        if way is not None:
            await trail.reference(seen.request, way.headers, way.fields())
        if not seen.reply.tokens:
            await trail.plain(seen.request)


def _fails(trail: Trail) -> bool:
    """Whether judged answers miss what is right: how often the model does by itself then counts."""
    return any(seen.reply.ok and not seen.request.right(seen.reply) for seen in trail.of(*JUDGED))


def _without_reference(trail: Trail) -> list[Seen]:
    """Return one exchange of every judged prompt that was never asked cold."""
    known = {seen.request.prompt for seen in trail.of(Role.COLD)}
    return [one for one in distinct(trail.of(*JUDGED)) if one.request.prompt not in known]
