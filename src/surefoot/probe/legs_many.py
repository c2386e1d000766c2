"""Legs of many conversations: one after the other until memory is short, and all at once."""

from surefoot.probe.legs import Leg, Run, lengths
from surefoot.probe.tasks import Shape, conversation
from surefoot.probe.trail import Request, Trail

SESSIONS_LEAST, SESSIONS_MOST = 10, 24
SESSIONS_AGAIN = 6  # asked once more right away, which only a cache that keeps nothing computes
SHARE = 24  # of what is left of the budget: sessions are not worth more of it
LANES_AT_ONCE = 6


async def sessions(run: Run, trail: Trail) -> None:
    """Tell many sessions a secret each, then ask all of them again in a drawn order.

    A server may have let go of some, so the first question back is no witness of reuse; the next
    one is.
    """
    tasks, plants, length = run.tasks, run.plants, run.facts.length
    shape, phrasing = await tasks.first_able(trail, (Shape.EARLY, Shape.LATE), length)
    trail.fresh = lambda: tasks.fresh(shape, phrasing, length, label="control")
    every = [
        tasks.fresh(shape, phrasing, length, label=f"session {number}")
        for number in range(1, _affordable(run, trail) + 1)
    ]
    for session in every:
        await trail.cold(session)
    again = set(plants.shuffled(len(every))[:SESSIONS_AGAIN])
    for place in plants.shuffled(len(every)):
        await trail.plain(every[place])
        if place in again:
            await trail.warm(every[place])


async def lanes(run: Run, trail: Trail) -> None:
    """Ask lanes that share a preamble all at once: half of them unknown, then all; then alone.

    The second time the preamble is known to the server, one half of the lanes to its end, and the
    other half to where their codes begin.
    """
    tasks, plants, length = run.tasks, run.plants, run.facts.length
    phrasing = await tasks.able(trail, Shape.LATE, length)
    trail.fresh = lambda: tasks.fresh(Shape.LATE, phrasing, length, label="control")
    preamble = tasks.body_text(length)
    every = []
    for number in range(1, LANES_AT_ONCE + 1):
        code = plants.code()
        messages = conversation(Shape.LATE, phrasing, code=code, text=preamble)
        every.append(Request(f"lane {number}", {"messages": messages}, expected=code))
    await trail.together(every[::2])
    await trail.together(every)
    for lane in every:
        await trail.warm(lane)


def _affordable(run: Run, trail: Trail) -> int:
    """Return how many sessions this leg's share of the budget allows, never below the least."""
    length, budget = run.facts.length, trail.budget
    cold_s = [one.ttft_s for one in trail.controls if one.prompt_tokens >= length // 2]
    by_tokens = budget.tokens_left(run.asker) / SHARE / (2 * length)
    by_seconds = budget.seconds_left(run.asker) / SHARE / max([*cold_s, 1e-3])
    return round(min(SESSIONS_MOST, max(SESSIONS_LEAST, min(by_tokens, by_seconds))))


SESSIONS = Leg(
    "sessions",
    "Many sessions with one secret each, more than may fit at once; each must get its own back.",
    lengths(2 * SESSIONS_LEAST + SESSIONS_AGAIN),
    sessions,
)
LANES = Leg(
    "lanes",
    "Requests with a common beginning are answered at the same time; none may get another's.",
    lengths(2 * LANES_AT_ONCE + LANES_AT_ONCE // 2),
    lanes,
)
