"""Legs of many conversations: one after the other until memory is short, and all at once."""

import asyncio

from surefoot.probe.legs import Facts, Leg, Run, lengths
from surefoot.probe.tasks import STORY, Phrasing, Shape, conversation, message
from surefoot.probe.trail import Request, Trail

SESSIONS_LEAST, SESSIONS_MOST = 10, 24
SESSIONS_SHARING = SESSIONS_LEAST // 2  # share a preamble, so that its blocks are many sessions'
SESSIONS_AGAIN = 2  # asked once more right away, which only a cache that keeps nothing computes
SHARE = 24  # of what is left of the budget: sessions are not worth more of it
LANES_AT_ONCE = 6
CROWD_AT_ONCE = 16
STRANGERS_AT_ONCE = 4
SHORT_SHARE = 5  # one such part of an ordinary prompt is a short one
STORY_TOKENS = 24  # of the answer that another request joins
STORY_ASKS = 3
BETWEEN_TOKENS = 60  # between a story's code and its question
OWN_TOKENS = 60  # about what a code and a question take
LOOKS = 100  # at the clock, until an answer is half given


async def sessions(run: Run, trail: Trail) -> None:
    """Tell many sessions a secret each, then ask all of them again in a drawn order.

    Those that share a preamble are told first and asked last. A server may have let go of any, so
    the first question back is no witness of reuse; the next is, and a preamble told right before.
    """
    tasks, plants, length = run.tasks, run.plants, run.facts.length
    shape, phrasing = await tasks.first_able(trail, (Shape.EARLY, Shape.LATE), length)
    trail.fresh = lambda: tasks.fresh(shape, phrasing, length, label="control")
    sharing = _sharing(run, shape, phrasing)
    alone = [
        tasks.fresh(shape, phrasing, length, label=f"session {number}")
        for number in range(len(sharing) + 1, _affordable(run, trail) + 1)
    ]
    for session in sharing:
        await (trail.cold if session is sharing[0] else trail.warm)(session)
    for session in alone:
        await trail.cold(session)
    again = set(plants.shuffled(len(alone))[:SESSIONS_AGAIN])
    for place in plants.shuffled(len(alone)):
        await trail.plain(alone[place])
        if place in again:
            await trail.warm(alone[place])
    for place in plants.shuffled(len(sharing)):
        await trail.plain(sharing[place])


def _sharing(run: Run, shape: Shape, phrasing: Phrasing) -> list[Request]:
    """Return sessions that share a preamble: with their code in it, or a code each behind it."""
    preamble = run.tasks.body_text(run.facts.length)
    if shape is Shape.LATE:
        return _many(run, phrasing, SESSIONS_SHARING, "session", preamble)
    code, sharing = run.plants.code(), []
    for number in range(1, SESSIONS_SHARING + 1):
        messages = conversation(shape, phrasing, code=code, text=preamble)
        messages[-1] = message("user", f"{run.plants.opening()} {phrasing.asks}")
        sharing.append(Request(f"session {number}", {"messages": messages}, expected=code))
    return sharing


async def lanes(run: Run, trail: Trail) -> None:
    """Ask lanes that share a preamble all at once: half of them unknown, then all; then alone.

    The second time the preamble is known to the server, one half of the lanes to its end, and the
    other half to where their codes begin. Then, in short: a crowd of them, strangers that share
    nothing, and one that comes while another is being answered.
    """
    tasks, length = run.tasks, run.facts.length
    phrasing = await tasks.able(trail, Shape.LATE, length)
    trail.fresh = lambda: tasks.fresh(Shape.LATE, phrasing, length, label="control")
    every = _many(run, phrasing, LANES_AT_ONCE, "lane", tasks.body_text(length))
    await trail.together(every[::2])
    await trail.together(every)
    for lane in every:
        await trail.warm(lane)
    at_once, crowd_tokens = _crowd(run.facts)
    preamble = tasks.body_text(crowd_tokens)
    crowd = _many(run, phrasing, at_once, "one of a crowd", preamble)
    if crowd:
        await trail.plain(crowd[0])
        await trail.together(crowd)
    strangers = [
        tasks.fresh(Shape.LATE, phrasing, length // SHORT_SHARE, label=f"stranger {number}")
        for number in range(1, STRANGERS_AT_ONCE + 1)
    ]
    await trail.together(strangers)
    joining = tasks.told_last(phrasing, preamble, label="one that comes during a story")
    await _joined(run, trail, _story(run, phrasing, preamble), joining)
    if run.facts.way_round is None:
        for one in (*crowd[1:], *strangers, joining):
            await trail.plain(one)


async def _joined(run: Run, trail: Trail, story: Request, joining: Request) -> None:
    """Ask for a story, and something else when half of the answer is there."""
    asker = run.asker
    await trail.plain(story)
    known = (await trail.plain(story)).reply
    half_s = (known.ttft_s + known.total_s) / 2
    started = asker.clock()

    async def join() -> None:
        while asker.clock() - started < half_s:
            await asker.sleep(half_s / LOOKS)
        await trail.plain(joining)

    ends = await asyncio.gather(trail.plain(story), join(), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


def _many(run: Run, phrasing: Phrasing, count: int, name: str, preamble: str) -> list[Request]:
    numbers = range(1, count + 1)
    return [run.tasks.told_last(phrasing, preamble, label=f"{name} {number}") for number in numbers]


def _story(run: Run, phrasing: Phrasing, preamble: str) -> Request:
    """Return a request that is told a code and answered at length."""
    said = f"{phrasing.said(run.plants.code())} {run.tasks.more(BETWEEN_TOKENS)} {STORY}"
    messages = [message("system", preamble), message("user", said)]
    return Request("a story", {"messages": messages, "max_tokens": STORY_TOKENS})


def _crowd(facts: Facts) -> tuple[int, int]:
    """Return how many a crowd is and how long its prompts are; they share a block at least.

    It is left out where a block is so large that it would be dear.
    """
    tokens = max(facts.length // SHORT_SHARE, (facts.block_tokens or 0) + OWN_TOKENS)
    return (CROWD_AT_ONCE if tokens <= facts.length // 4 else 0), tokens


def _affordable(run: Run, trail: Trail) -> int:
    """Return how many sessions this leg's share of the budget allows, never below the least."""
    length, budget = run.facts.length, trail.budget
    cold_s = [one.ttft_s for one in trail.controls_like(length)]
    by_tokens = budget.tokens_left(run.asker) / SHARE / (2 * length)
    by_seconds = budget.seconds_left(run.asker) / SHARE / max([*cold_s, 1e-3])
    return round(min(SESSIONS_MOST, max(SESSIONS_LEAST, min(by_tokens, by_seconds))))


def _lanes_cost(facts: Facts) -> int:
    at_once, crowd_tokens = _crowd(facts)
    again = 1 if facts.way_round else 2
    return (
        (2 * LANES_AT_ONCE + LANES_AT_ONCE // 2) * facts.length
        + (again * (at_once + 1) + STORY_ASKS + (at_once > 0)) * crowd_tokens
        + STORY_ASKS * BETWEEN_TOKENS
        + again * STRANGERS_AT_ONCE * facts.length // SHORT_SHARE
    )


SESSIONS = Leg(
    "sessions",
    "Many sessions with one secret each, more than may fit at once; each must get its own back.",
    lengths(2 * SESSIONS_LEAST + SESSIONS_AGAIN),
    sessions,
)
LANES = Leg(
    "lanes",
    "Requests with a common beginning are answered at the same time; none may get another's.",
    _lanes_cost,
    lanes,
)
