"""Legs of text: what conversations with a common beginning may do to each other.

Here: turns taken, forks, edits and cancelled streams. Exact lengths are in ``legs_length.py``, a
chat's own answers in ``legs_turns.py``, many conversations at once in ``legs_many.py``;
``TEXT_LEGS`` holds all of them in the order they run.
"""

from dataclasses import replace
from statistics import median
from typing import Any

from surefoot.probe.legs import HANG_UP_SHARE, Leg, Run, lengths
from surefoot.probe.legs_length import BOUNDARIES, LONG
from surefoot.probe.legs_many import LANES, SESSIONS
from surefoot.probe.legs_turns import TURNS
from surefoot.probe.tasks import STORY, Phrasing, Shape, Tasks, message, told
from surefoot.probe.trail import Request, Role, Trail

LONG_ANSWER_TOKENS = 64

INTERLEAVE_ROUNDS = 2
# B leaves A's text after so much of it, and B2 after so much; one pair for each round.
FORK_DEPTHS = ((0.9, 0.5), (0.8, 0.65))
FORK_TAIL = 0.5  # A goes on past the longest B for this share of a leg's ordinary length
EDIT_ROUNDS = 1
ANSWERS = ("Noted.", "I see.")  # what an early turn was answered with, then with what instead
SPELLINGS = 2  # of the last text: in other case, and by another role
# When the probe hangs up: before the first token, or after so many pieces of text.
HANG_UPS: tuple[int | None, ...] = (None, 1, 3)
STORY_PIECES = 6  # of a story before the probe hangs up: its state is committed by then


async def interleave(run: Run, trail: Trail) -> None:
    """A A B A, then both at once: conversations that share a preamble take turns.

    B has more rules than A, and may answer at greater length.
    """
    tasks, length = run.tasks, run.facts.length
    phrasing = await tasks.able(trail, Shape.LATE, length)
    trail.fresh = lambda: tasks.fresh(Shape.LATE, phrasing, length, label="control")
    for number in range(1, INTERLEAVE_ROUNDS + 1):
        shared = tasks.body_text(length)
        a = tasks.told_last(phrasing, shared, label=f"A{number}")
        longer = f"{shared} {tasks.more(length // 2)}"
        b = _at_length(tasks.told_last(phrasing, longer, label=f"B{number}"))
        await trail.cold(a)
        await trail.warm(a)
        await trail.plain(b)
        await trail.warm(a)
        await trail.together((b, a))
        await trail.warm(a)


async def fork(run: Run, trail: Trail) -> None:
    """Let a conversation leave a longer one early, at two depths, each time for the first time.

    What the longer one holds past that point (A's code, above all) must not come along.
    """
    tasks, length = run.tasks, run.facts.length
    phrasing = await tasks.able(trail, Shape.LATE, length)
    trail.fresh = lambda: tasks.fresh(Shape.LATE, phrasing, length, label="control")
    for number, (late, early) in enumerate(FORK_DEPTHS, 1):
        text = tasks.body_text(length)
        donor = f"{text} {tasks.more(round(length * FORK_TAIL))}"
        a = tasks.told_last(phrasing, donor, label=f"A{number}")
        b = tasks.told_last(phrasing, _left(run, text, late), label=f"B{number}")
        b2 = tasks.told_last(phrasing, _left(run, text, early), label=f"B{number} from earlier on")
        await trail.cold(a)
        await trail.warm(b)
        await trail.warm(b)
        await trail.warm(b2)
        if number == 1:
            await trail.plain(a)


async def edits(run: Run, trail: Trail) -> None:
    """Edit an early turn, go back, and answer an early turn anew: every branch keeps its own."""
    tasks, length = run.tasks, run.facts.length
    shape, phrasing = await tasks.first_able(trail, (Shape.EARLIER_TURN, Shape.EARLY), length)
    trail.fresh = lambda: tasks.fresh(shape, phrasing, length, label="control")
    # Only an edit behind the text leaves the text to be reused.
    edited_first = trail.warm if shape is Shape.EARLIER_TURN else trail.plain
    for number in range(1, EDIT_ROUNDS + 1):
        text = tasks.body_text(length)
        original, edited = (
            told(shape, phrasing, tasks.plants.code(), text, f"{name} {number}")
            for name in ("original", "edit")
        )
        await trail.cold(original)
        await trail.warm(original)
        await edited_first(edited)
        await trail.warm(original)
        await trail.warm(edited)
        for answer in ANSWERS:
            await trail.warm(_answered_anew(shape, edited, answer))
        await trail.warm(original)
    await trail.plain(_in_other_case(original))
    await trail.plain(_by_the_user(original))


async def cancelled(run: Run, trail: Trail) -> None:
    """Hang up on never-seen and on half-answered requests, then ask them and their siblings.

    The last story that was left goes on from what came of it, as after a stop button: unlike the
    same prompt again, that takes up the left one to its last block, wherever this ends.
    """
    tasks, length = run.tasks, run.facts.length
    phrasing = await tasks.able(trail, Shape.LATE, length)
    trail.fresh = lambda: tasks.fresh(Shape.LATE, phrasing, length, label="control")
    for number, pieces in enumerate(HANG_UPS, 1):
        text = tasks.body_text(length)
        left = _at_length(tasks.told_last(phrasing, text, label=f"left {number}"))
        sibling = tasks.told_last(phrasing, text, label=f"sibling {number}")
        story = _at_length(_story(tasks, phrasing, f"story {number}", text))
        within_s = _before_answering(trail, length) if pieces is None else None
        await trail.leave(left, pieces=pieces or 1, within_s=within_s)
        await trail.plain(left)
        await trail.warm(left)
        await trail.warm(sibling)
        await trail.leave(story, pieces=STORY_PIECES)
        await trail.warm(left)
    await trail.warm(_gone_on(story, trail.of(Role.LEFT)[-1].reply.said))


def _at_length(request: Request) -> Request:
    """Return a request that may be answered at length."""
    return replace(request, body=dict(request.body) | {"max_tokens": LONG_ANSWER_TOKENS})


def _left(run: Run, text: str, depth: float) -> str:
    """Return a text as long as ``text`` that begins like it, past a block at least, and leaves."""
    least = (run.facts.block_tokens or 0) / run.facts.length + 0.1
    words = text.split()
    kept = round(len(words) * max(depth, min(0.9, least)))
    rest = run.plants.filler(max(1, len(words) - kept))
    return f"{' '.join(words[:kept])} {rest}"


def _answered_anew(shape: Shape, request: Request, answer: str) -> Request:
    """Return a conversation whose early turn was answered otherwise.

    Models that know only the shape without an early turn get a greeting for one. Whether they find
    the code past it was not proven, so it is not asked for: only foreign content is looked for.
    """
    messages: list[dict[str, Any]] = list(request.body["messages"])
    label = f"{request.label} with an early turn answered {answer!r}"
    if shape is Shape.EARLIER_TURN:
        messages[-2] = message("assistant", answer)
        return Request(label, {"messages": messages}, expected=request.expected)
    messages[-1:] = [message("user", "Hello."), message("assistant", answer), messages[-1]]
    return Request(label, {"messages": messages})


def _in_other_case(request: Request) -> Request:
    """Return a conversation whose first text has no capitals from its middle on."""
    first, *others = request.body["messages"]
    words = str(first["content"]).split()
    half = len(words) // 2
    recased = " ".join((*words[:half], *(word.lower() for word in words[half:])))
    messages = [message(first["role"], recased), *others]
    return replace(request, label=f"{request.label} in other case", body={"messages": messages})


def _by_the_user(request: Request) -> Request:
    """Return a conversation whose first text is the user's, with an answer to it.

    Templates may ask that the user and the assistant alternate. Only equality is judged.
    """
    first, *_, last = request.body["messages"]
    messages = [message("user", first["content"]), message("assistant", ANSWERS[0]), last]
    return Request(f"{request.label} with its text by the user", {"messages": messages})


def _story(tasks: Tasks, phrasing: Phrasing, label: str, text: str) -> Request:
    """Return a request whose answer is long, so that it is left in the middle of it."""
    said = phrasing.said(tasks.plants.code())
    messages = [message("system", text), message("user", f"{said} {STORY}")]
    return Request(label, {"messages": messages})


def _gone_on(story: Request, came: str) -> Request:
    """Return the turn after a story that was left; only equality is judged."""
    answer = came if came.strip() else ANSWERS[0]
    messages = [*story.body["messages"], message("assistant", answer), message("user", STORY)]
    return Request(f"{story.label}, gone on", {"messages": messages})


def _before_answering(trail: Trail, length: int) -> float:
    """Return seconds in which a prompt is not computed yet, as far as its like have told."""
    times = [one.ttft_s for one in trail.controls_like(length)]
    return median(times or [0.0]) * HANG_UP_SHARE


TEXT_LEGS = (
    BOUNDARIES,
    Leg(
        "interleave",
        "Two conversations with a common beginning take turns; neither may show in the other.",
        lengths(8 * INTERLEAVE_ROUNDS),
        interleave,
    ),
    Leg(
        "fork",
        "A conversation leaves a longer one early; nothing of the longer one may come along.",
        lengths((4 + FORK_TAIL) * len(FORK_DEPTHS) + 1 + FORK_TAIL),
        fork,
    ),
    TURNS,
    SESSIONS,
    LANES,
    Leg(
        "edits",
        "An early turn is edited and answered anew; every branch must keep to its own history.",
        lengths((6 + len(ANSWERS)) * EDIT_ROUNDS + SPELLINGS),
        edits,
    ),
    Leg(
        "cancelled",
        "Streams are left before and in the middle of the answer; what is asked next is whole.",
        lengths(6 * len(HANG_UPS) + 1),
        cancelled,
    ),
    LONG,
)
