"""Legs of tenants: the same bodies to the byte, but for who sends them.

What a tenant is differs by server: ``cache_salt`` promises that nothing is shared, and that is held
against it; nobody promises it of API keys, so whether they share is noted and not judged; ``user``
is only a name, and ``prompt_cache_key`` a hint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from surefoot.pictures import said, shown
from surefoot.pictures import user as user_said
from surefoot.probe.legs import Facts, Leg, Run, lengths
from surefoot.probe.legs_images import COLOUR_ASKS, picture_of
from surefoot.probe.tasks import Phrasing, Shape, Tasks, message, salted, told
from surefoot.probe.trail import NotApplicable, Request, Role, Seen, Trail

SALT_PROMPTS = 2
AT_ONCE = ("tenant-c", "tenant-C")
PICTURE_ASKS = 3
PRESSURE_TOKENS = 4_000  # of other tenants, so that what was first may have left the RAM
PRESSURE_LEAST = 2  # prompts
KEY_PROMPTS = 3
USER_TEXTS = 2
USERS = ("ann", "ben")
CACHE_KEY: Mapping[str, str] = {"prompt_cache_key": "one-key-for-all"}
NOTE_KEYS = "prefixes between API keys"
FASTER = 0.7  # the share of a never-seen prompt's time below which time speaks for sharing


# --- cache_salt ----------------------------------------------------------------------------------


async def salts(run: Run, trail: Trail) -> None:
    """Ask the same prompts under other salts and without one, also when memory was short."""
    if not run.facts.salts:
        raise NotApplicable(
            "it takes any cache_salt, even one that is no string: it does not know the field"
        )
    tasks, length = run.tasks, run.facts.length
    shape, phrasing = await tasks.first_able(trail, (Shape.EARLY, Shape.LATE), length)
    trail.fresh = lambda: tasks.fresh(shape, phrasing, length, label="control")
    prompts = [
        tasks.fresh(shape, phrasing, length, label=f"prompt {number}")
        for number in range(1, SALT_PROMPTS + 1)
    ]
    pictured = [_pictured(run)] if run.facts.images else []
    for prompt in prompts:
        await trail.cold(salted(prompt, "tenant-a"))
        await trail.warm(salted(prompt, "tenant-a"))
        await trail.apart(salted(prompt, "tenant-b"))
        await trail.warm(salted(prompt, "tenant-b"))
    for prompt in pictured:
        await trail.cold(salted(prompt, "tenant-a"))
        await trail.apart(salted(prompt, "tenant-b"))
    await trail.apart(prompts[0])
    await trail.together([salted(prompts[1], tenant) for tenant in AT_ONCE])
    await _press(run, trail, shape, phrasing)
    for prompt in (*prompts, *pictured):
        await trail.apart(salted(prompt, "tenant-A"))
    for prompt in prompts:
        await trail.plain(salted(prompt, "tenant-a"))
    await trail.apart(salted(prompts[0], "tenant-B"))
    for prompt in prompts:
        await trail.warm(salted(prompt, "tenant-a"))


def _pictured(run: Run) -> Request:
    """Draw a request with a picture, judged by its cold answer: the model need not see."""
    asked = user_said(shown(picture_of(run.plants, "red")), said(COLOUR_ASKS[0]))
    text = run.tasks.body_text(run.facts.length)
    return Request("a picture", {"messages": [message("system", text), asked]})


async def _press(run: Run, trail: Trail, shape: Shape, phrasing: Phrasing) -> None:
    """Fill memory with never-seen prompts of other tenants."""
    length = run.facts.length
    for number in range(1, _pressing(length) + 1):
        filler = run.tasks.fresh(shape, phrasing, length, label=f"filler {number}")
        await trail.cold(salted(filler, f"tenant-of-filler-{number}"))


def _pressing(length: int) -> int:
    return max(PRESSURE_LEAST, -(-PRESSURE_TOKENS // length))


# --- API keys ------------------------------------------------------------------------------------


async def keys(run: Run, trail: Trail) -> None:
    """Ask the same bodies with one API key and with another; note whether prefixes are shared."""
    if len(run.asker.keys) < 2:
        raise NotApplicable("one API key was given; give --api-key twice")
    tasks, length = run.tasks, run.facts.length
    shape, phrasing = await tasks.first_able(trail, (Shape.EARLY, Shape.LATE), length)
    trail.fresh = lambda: tasks.fresh(shape, phrasing, length, label="control")
    first_asks = []
    for number in range(1, KEY_PROMPTS + 1):
        one = tasks.fresh(shape, phrasing, length, label=f"prompt {number} with key 1")
        other = replace(one, label=f"prompt {number} with key 2", key=1)
        await trail.cold(one)
        await trail.warm(one)
        first_asks.append(await trail.plain(other))
        await trail.warm(other)
        await trail.warm(one)
    run.facts.notes[NOTE_KEYS] = _sharing(first_asks, trail)


def _sharing(first_asks: Sequence[Seen], trail: Trail) -> str:
    """Return in words whether first asks with another key reused state."""
    whole = [seen for seen in first_asks if seen.reply.ok]
    if not whole:
        return "not seen: the second key's requests failed"
    if any(seen.reply.counters for seen in whole):
        counted = sum(seen.reused_tokens > 0 for seen in whole)
        said = "shared" if counted else "not shared"
        return f"{said}: {counted} of {len(whole)} first requests with the second key reused some"
    cold = [seen.reply.ttft_s for seen in trail.of(Role.COLD) if seen.reply.ok]
    ratio = median(seen.reply.ttft_s for seen in whole) / max(1e-9, median(cold))
    said = "perhaps shared" if ratio < FASTER else "not shared, as far as time shows"
    return f"{said}: first requests with the second key take {ratio:.2f} of a new prompt's time"


# --- user ----------------------------------------------------------------------------------------


async def user(run: Run, trail: Trail) -> None:
    """Let users with secrets of their own share a text, and ask each other's bodies.

    Under the last text they also share a ``prompt_cache_key``, if the server takes one.
    """
    tasks, length = run.tasks, run.facts.length
    phrasing = await tasks.able(trail, Shape.LATE, length)
    trail.fresh = lambda: _named(tasks.fresh(Shape.LATE, phrasing, length, label="control"), "dan")
    key = await _cache_key_taken(run, trail)
    for number in range(1, USER_TEXTS + 1):
        text = tasks.body_text(length)
        more = key if number == USER_TEXTS else {}
        own = [_named(_secret(tasks, phrasing, text, number, more), name) for name in USERS]
        first = await trail.cold(own[0])
        if first.reply.refused:
            raise NotApplicable(f"the server refuses it: {first.reply.error}")
        for one in own[1:]:
            await trail.plain(one)
        # The first one's body with the second one's name, and nothing else changed.
        borrowed = _named(own[0], USERS[1])
        await trail.plain(borrowed)
        # Last comes the one that has no cold answer: its reference may find what a key holds.
        for one in (borrowed, *own):
            await trail.warm(one)


async def _cache_key_taken(run: Run, trail: Trail) -> Mapping[str, str]:
    """Return the key that users share; nothing where the server refuses the field."""
    messages = [message("user", f"{run.plants.opening()} Reply with the single word OK.")]
    body = {"messages": messages, **CACHE_KEY}
    reply = await trail.measured(body, label="whether prompt_cache_key is taken")
    return CACHE_KEY if reply.ok else {}


def _secret(
    tasks: Tasks, phrasing: Phrasing, text: str, number: int, more: Mapping[str, str]
) -> Request:
    code = tasks.plants.code()
    request = told(Shape.LATE, phrasing, code, text, f"text {number}, code {code}")
    return replace(request, body={**request.body, **more})


def _named(request: Request, name: str) -> Request:
    label = f"{request.label.split(' by ')[0]} by {name}"
    return replace(request, label=label, body=dict(request.body) | {"user": name})


# --- the table -----------------------------------------------------------------------------------


def _salts_cost(facts: Facts) -> int:
    asks = 7 * SALT_PROMPTS + 2 + len(AT_ONCE) + _pressing(facts.length)
    asks += PICTURE_ASKS * facts.images
    return asks * facts.length if facts.salts else 0


TENANT_LEGS = (
    Leg(
        "salts",
        "The same prompts under other cache_salts, in RAM and on disk: nothing may be shared.",
        _salts_cost,
        salts,
    ),
    Leg(
        "keys",
        "The same prompts with two API keys: each is answered right.",
        lengths(5 * KEY_PROMPTS),
        keys,
    ),
    Leg(
        "user",
        "Users with secrets of their own under one text: each gets the own one back.",
        lengths(USER_TEXTS * 2 * (len(USERS) + 1)),
        user,
    ),
)
