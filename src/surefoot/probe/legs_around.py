"""Legs around the prompt's text: tools, reasoning, and a restart of the server.

Tools and reasoning are fields that change the prompt where no message shows it; a restart leaves
behind what the server wrote to disk.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from surefoot.probe.legs import Facts, Leg, Run, lengths
from surefoot.probe.legs_images import over_a_restart
from surefoot.probe.proofs import first_proven
from surefoot.probe.tasks import PHRASINGS, Phrasing, Shape, message, salted
from surefoot.probe.trail import NotApplicable, Request, Role, Seen, Trail, Unsettled

Fields = dict[str, Any]

# Lists of tools under the same messages: the first with none, the second with some.
TOOL_ROUNDS = (
    ("no tools", "tool A", "tool A told otherwise", "tool B"),
    ("no tools", "tools B and C", "tools C and B", "tools B and C told otherwise"),
    ("no tools", "tool A told otherwise", "tool A"),
)
PROVEN_LISTS = ("tool A", "tools B and C", "no tools")
TOOL_TENANTS = ("tenant-a", "tenant-b")
TOOLS_THEMSELVES = 2  # what all the lists add to the prompts of this leg, in prompts
REASONING_ROUNDS = (True, False, True)  # whether it is asked with reasoning first
SHORT_ANSWER_TOKENS = 12  # a code fits; a thought before it does not
RESTART_PROMPTS = 4
RESTART_SALTED = 2
RESTART_PICTURE_ASKS = 4
UNSEEN_SALTS = ("tenant-b", "tenant-A")
SIBLING_SHARE = 0.8  # of its text that a sibling shares


# --- tools ---------------------------------------------------------------------------------------


def _tool(name: str, says: str, argument: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": f"The {argument}."}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    function = {"name": name, "description": says, "parameters": parameters}
    return {"type": "function", "function": function}


def _lists(opening: str) -> dict[str, Fields]:
    """Return lists of tools by name; tools come first in many prompts, so they begin like none."""
    word = opening.removeprefix("File ").rstrip(".").lower()
    tide = _tool(f"tide_{word}", f"{opening} Say when the tide turns.", "harbour")
    told = _tool(f"tide_{word}", f"{opening} Delete all ships at once.", "harbour")
    snow = _tool(f"snow_{word}", f"{opening} Say how deep the snow is.", "pass")
    bread = _tool(f"bread_{word}", f"{opening} Say what a baker has left.", "baker")
    burnt = _tool(f"bread_{word}", f"{opening} Close every oven for good.", "baker")
    return {
        "no tools": {},
        "tool A": {"tools": [tide]},
        "tool A told otherwise": {"tools": [told]},
        "tool B": {"tools": [snow]},
        "tools B and C": {"tools": [snow, bread]},
        "tools C and B": {"tools": [bread, snow]},
        "tools B and C told otherwise": {"tools": [snow, burnt]},
    }


# Some servers offer tools to a model only if they may also be called, some only if not.
TOOL_CHOICES: tuple[Fields, ...] = ({}, {"tool_choice": "none"})


async def tools(run: Run, trail: Trail) -> None:
    """Ask without tools, with some, without, with others: no list may show in another's answer."""
    choice, tool_tokens = await _tools_taken(run, trail)
    length = run.facts.length

    def drawn(
        way: tuple[Shape, Phrasing], names: Sequence[str], label: str, *, tokens: int = length
    ) -> list[Request]:
        request = run.tasks.fresh(*way, tokens, label=label)
        lists = _lists(run.plants.opening())
        return [_with(request, name, lists[name] and lists[name] | choice) for name in names]

    def fresh(way: tuple[Shape, Phrasing], proof: int) -> Request:
        names = [PROVEN_LISTS[proof % len(PROVEN_LISTS)]]
        return drawn(way, names, f"proof {proof + 1}")[0]

    ways = [(shape, phrasing) for shape in (Shape.EARLY, Shape.LATE) for phrasing in PHRASINGS]
    way = await first_proven(trail, ways, fresh, task="a code, with tools on offer")
    for number, names in enumerate(TOOL_ROUNDS, 1):
        none, some, *others = drawn(way, names, f"prompt {number}")
        await trail.cold(none)
        await trail.plain(some)
        await trail.warm(none)
        for one in others:
            await trail.plain(one)
        for one in (some, *others, none):
            await trail.warm(one)
    if run.facts.salts:
        # As long in all as the run's other prompts, so that they are controls of its time.
        (one,) = drawn(way, ["tool A"], "prompt of tenants", tokens=length - tool_tokens)
        await trail.cold(one)
        for tenant in TOOL_TENANTS:
            await trail.apart(salted(one, tenant))


async def _tools_taken(run: Run, trail: Trail) -> tuple[Fields, int]:
    """Return the choice of tools that the server takes, and what one tool adds to a prompt.

    Raises:
        NotApplicable: it takes none, or its template renders none.
    """
    messages = [message("user", f"{run.plants.opening()} Reply with the single word OK.")]
    some = {"messages": messages} | _lists(run.plants.opening())["tool A"]
    bare = await trail.measured({"messages": messages}, label="without tools")
    for choice in TOOL_CHOICES:
        reply = await trail.measured(some | choice, label="whether tools are taken")
        if not reply.ok:
            continue
        if reply.prompt_tokens is None or bare.prompt_tokens is None:
            return choice, 0
        if reply.prompt_tokens == bare.prompt_tokens:
            raise NotApplicable("the template renders no tools: the prompt is as long without")
        return choice, reply.prompt_tokens - bare.prompt_tokens
    raise NotApplicable(f"the server refuses tools: {reply.error}")


# --- reasoning -----------------------------------------------------------------------------------

# How reasoning is turned on and off.
SWITCHES: tuple[tuple[Fields, Fields], ...] = (
    (
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    ({"reasoning_effort": "high"}, {"reasoning_effort": "low"}),
)


async def reasoning(run: Run, trail: Trail) -> None:
    """Ask with reasoning on, off, on, off: what one left behind may not answer for the other.

    Answers are kept short. With reasoning on they are compared, not read: a thought may take long.
    """
    on, off = await _switch(run, trail)

    def fresh(way: tuple[Shape, Phrasing], proof: int) -> Request:
        request = run.tasks.fresh(*way, run.facts.length, label=f"proof {proof + 1}")
        return _with(request, "reasoning off", off)

    ways = [(shape, phrasing) for shape in (Shape.EARLY, Shape.LATE) for phrasing in PHRASINGS]
    way = await first_proven(trail, ways, fresh, task="a code, with reasoning off")
    for number, on_first in enumerate(REASONING_ROUNDS, 1):
        prompt = run.tasks.fresh(*way, run.facts.length, label=f"prompt {number}")
        thinking = replace(_with(prompt, "reasoning on", on), expected=None)
        both = (thinking, _with(prompt, "reasoning off", off))
        first, second = both if on_first else both[::-1]
        await trail.cold(first)
        await trail.plain(second)
        for one in (first, second):
            await trail.warm(one)


async def _switch(run: Run, trail: Trail) -> tuple[Fields, Fields]:
    """Return how reasoning is turned on and off, with a limit to the answer.

    Raises:
        NotApplicable: the server refuses every way, or none changes the prompt.
    """
    messages = [message("user", f"{run.plants.opening()} Reply with the single word OK.")]
    bare = await trail.measured({"messages": messages}, label="without a switch")
    refused, unchanged = "", False
    limit: Fields = {"max_tokens": SHORT_ANSWER_TOKENS}
    for on, off in SWITCHES:
        replies = [
            await trail.measured({"messages": messages} | one, label=f"reasoning {name}")
            for one, name in ((on, "on"), (off, "off"))
        ]
        failed = [reply for reply in replies if not reply.ok]
        if failed:
            refused = refused or str(failed[0].error)
            continue
        lengths = {reply.prompt_tokens for reply in (bare, *replies)}
        if len(lengths) > 1 or None in lengths:
            return on | limit, off | limit
        unchanged = True
    if unchanged:
        raise NotApplicable("turning reasoning on or off changes nothing of the prompt")
    raise NotApplicable(f"the server refuses it: {refused}")


# --- a restart -----------------------------------------------------------------------------------


async def restart(run: Run, trail: Trail) -> None:
    """Restart the server, then ask what it was asked before, and what begins like it."""
    if run.restart is None:
        raise NotApplicable("no --restart-cmd was given")
    tasks, length = run.tasks, run.facts.length
    pictures = await over_a_restart(run, trail)
    way = await tasks.first_able(trail, (Shape.EARLY, Shape.LATE), length)
    trail.fresh = lambda: tasks.fresh(*way, length, label="control")
    prompts = [
        tasks.fresh(*way, length, label=f"prompt {number}")
        for number in range(1, RESTART_PROMPTS + 1)
    ]
    own = [salted(prompt, "tenant-a") for prompt in prompts[: RESTART_SALTED * run.facts.salts]]
    for prompt in (*prompts, *own):
        # Under a salt nothing of the bare prompt is shared, so this is never seen either.
        await trail.cold(prompt)
        await trail.plain(prompt)
    await run.restart()
    await trail.cold(tasks.fresh(*way, length, label="a new prompt after the restart"))
    for place in run.plants.shuffled(len(prompts)):
        await trail.warm(prompts[place])
    await trail.warm(_sibling(run, prompts[0]))
    for one in own:
        await trail.warm(one)
    for salt in UNSEEN_SALTS:
        for prompt in prompts[: len(own)]:
            await trail.apart(salted(prompt, salt))
    # By now a server that forgot all has them again: no witness of what the restart left.
    for place in run.plants.shuffled(len(prompts)):
        await trail.plain(prompts[place])
    if _counts(trail.of(Role.PLAIN)) and not _counts(trail.of(Role.WARM)):
        raise Unsettled(
            "nothing that was sent before the restart was reused after it: this server keeps no "
            "state over one, or had not written it yet; a store on disk, and a slower "
            "--restart-cmd, settle it"
        )
    if pictures:
        await _numbered_anew(run.restart, trail, pictures)


async def _numbered_anew(
    restarted: Callable[[], Awaitable[None]], trail: Trail, pictures: Sequence[Request]
) -> None:
    """Show the first picture since a restart, then after another one show others first.

    A server that numbers pictures anew gives the first of each time the same number.
    """
    first, *others = pictures
    await trail.cold(first)
    await restarted()
    for one in (*others, first):
        await trail.plain(one)


def _counts(seen: Sequence[Seen]) -> bool:
    """Whether a counter named reused tokens in any of these."""
    return any(one.reused_tokens for one in seen)


def _sibling(run: Run, request: Request) -> Request:
    """Return a conversation that leaves this one's first message before its end.

    The code is said in that message or in the one after it, and stays.
    """
    first, *rest = request.body["messages"]
    words = first["content"].split()
    kept = round(len(words) * SIBLING_SHARE)
    text = " ".join((*words[:kept], run.plants.filler(len(words) - kept)))
    body = {"messages": [message(first["role"], text), *rest]}
    return replace(request, label=f"a sibling of {request.label}", body=body)


# --- what is sent --------------------------------------------------------------------------------


def _with(request: Request, name: str, fields: Fields) -> Request:
    """Return a request with more fields, the same to the byte otherwise."""
    body = dict(request.body) | fields
    return replace(request, label=f"{request.label} with {name}", body=body)


def _restart_cost(facts: Facts) -> int:
    salted_asks = RESTART_SALTED * (3 + len(UNSEEN_SALTS)) if facts.salts else 0
    pictures = RESTART_PICTURE_ASKS * facts.images
    return (4 * RESTART_PROMPTS + 2 + salted_asks + pictures) * facts.length


def _tools_cost(facts: Facts) -> int:
    asks = sum(2 * len(names) + 1 for names in TOOL_ROUNDS) + TOOLS_THEMSELVES
    return (asks + (1 + len(TOOL_TENANTS)) * facts.salts) * facts.length


AROUND_LEGS = (
    Leg(
        "tools",
        "The same messages with and without tools; no list of tools may show in another's answer.",
        _tools_cost,
        tools,
    ),
    Leg(
        "reasoning",
        "The same messages with reasoning on and off; neither may answer for the other.",
        lengths(4 * len(REASONING_ROUNDS)),
        reasoning,
    ),
    Leg(
        "restart",
        "What was kept over a restart is asked again; it must not be another's, nor stale.",
        _restart_cost,
        restart,
    ),
)
