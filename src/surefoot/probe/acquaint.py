"""What this server offers, how noisy it is, and how long prompts must be.

Nothing is believed that was not seen: a field is offered if a request with it is answered and one
that misuses it is refused; a way round the cache is one if a prompt that is known to be warm comes
back as slow as a new one, and uncounted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import gcd
from statistics import median
from typing import Any

from surefoot import pictures
from surefoot.errors import CapacityError, RequestError
from surefoot.probe.asking import PATIENCE_S, Asker, must_answer
from surefoot.probe.distance import distance_nat
from surefoot.probe.legs import Facts, WayRound
from surefoot.probe.tasks import Tasks, message
from surefoot.probe.trail import Request, Role, Seen, Trail, Unsettled

Told = Callable[[str, str], None]

LENGTHS = (600, 1_200, 2_400, 4_800)  # tokens; the first at which reuse shows is the legs' own
SHORT_LENGTH = 350  # for a server that needs more than SLOW_S for the first of these
SLOW_S = 8.0
SAMPLE_WORDS = 260
TRIES = 3
STEP_TOKENS = 90  # the tries differ by this, so that their counters tell the size of a block
FASTER = 0.8  # as a first look, not as a proof: warm takes at most this share of cold
PATIENCE_LEAST_S, PATIENCE_TIMES = 30.0, 20.0  # a request may take so many cold ones' time
ASKS_AGAIN = 3
TOKENS_LEAST, TOKENS_MOST = 0.5, 8.0  # of one word of filler, with any tokenizer
MISUSED = (400, 422)  # how a field of the wrong type is refused; anything else says nothing of it
ASK = "Reply with the single word OK."


async def acquaint(trail: Trail, *, model: str | None, told: Told) -> tuple[Facts, Tasks]:
    """Learn what the legs need to know; about ten prompts.

    Args:
        trail: takes the exchanges; its cold ones are controls for the whole run.
        model: the model's id, None for the first one listed.
        told: called with each fact, as label and words.

    Raises:
        CapacityError: the server does not answer.
        RequestError: it refuses the key, the model, or the plainest request.
    """
    asker, facts = trail.asker, Facts()

    def learn(label: str, words: str) -> None:
        facts.notes[label] = asker.hide(words)
        told(label, facts.notes[label])

    await _model(asker, facts, model, learn)
    tasks = await _dialect(trail, learn)
    warm = await _length(trail, facts, tasks, learn)
    await _noise(trail, facts, tasks, warm, learn)
    facts.block_tokens = gcd(*(one.reused_tokens for one in trail.seen)) or None
    learn("reuse in steps of", f"{facts.block_tokens or 'an unknown number of'} tokens")
    facts.salts = await _knows_salts(asker)
    learn("cache_salt", "known" if facts.salts else "not known")
    facts.way_round = await _way_round(trail, facts, warm)
    await _who_repeats(trail, facts, warm, learn)
    learn("a way round the cache", facts.way_round.name if facts.way_round else "none")
    facts.images = await _takes_images(asker, tasks)
    learn("images", "taken" if facts.images else "not taken")
    return facts, tasks


async def _model(asker: Asker, facts: Facts, model: str | None, learn: Told) -> None:
    status, value = await asker.get("models")
    if status in (401, 403):
        raise RequestError(f"{asker.url} refuses the API key ({status}); give --api-key")
    listed = value.get("data") if isinstance(value, Mapping) else None
    every = listed if isinstance(listed, list) else []
    cards = [one for one in every if isinstance(one, Mapping) and one.get("id")]
    if model is None and not cards:
        raise RequestError(f"{asker.url} lists no models ({status}); give --model, or another URL")
    listed_first = str(cards[0]["id"]).encode("utf-8", "replace").decode() if cards else ""
    asker.model = model or listed_first
    card = next((one for one in cards if one["id"] == asker.model), {})
    meta = card.get("meta")
    for place in (card, meta if isinstance(meta, Mapping) else {}):
        for name in ("max_model_len", "context_length", "n_ctx", "context_window"):
            said = place.get(name)
            if isinstance(said, int) and not isinstance(said, bool) and said > 0:
                facts.context_tokens = facts.context_tokens or said
    learn("model", asker.model)
    context = f"{facts.context_tokens:,} tokens" if facts.context_tokens else "not said"
    learn("context", context)


async def _dialect(trail: Trail, learn: Told) -> Tasks:
    """Find out which optional fields are taken, and how many words make a token."""
    asker, plants = trail.asker, trail.plants
    tasks = Tasks(plants)
    dialect = asker.dialect
    for tried in (
        dialect,
        replace(dialect, top=1),
        replace(dialect, logprobs=False),
        replace(dialect, logprobs=False, usage_in_stream=False),
    ):
        asker.dialect = tried
        first = await asker.ask({"messages": [message("user", f"{plants.opening()} {ASK}")]})
        if first.status not in MISUSED:
            break
    must_answer(first, asker.url)
    if not first.tokens:
        asker.dialect = replace(asker.dialect, logprobs=False)
    if first.reasoning or "<think>" in first.text:
        asker.dialect = replace(asker.dialect, answer_tokens=1024)
    learn("logprobs", f"top {asker.dialect.top}" if asker.dialect.logprobs else "none")
    text = f"{plants.opening()} {plants.filler(SAMPLE_WORDS)}"
    longer = await asker.ask({"messages": [message("system", text), message("user", ASK)]})
    must_answer(longer, asker.url)
    if first.prompt_tokens and longer.prompt_tokens:
        words, tokens = len(text.split()), longer.prompt_tokens - first.prompt_tokens
        if TOKENS_LEAST * words <= tokens <= TOKENS_MOST * words:  # else it counts something else
            tasks.words_per_token = words / tokens
            tasks.overhead_tokens = first.prompt_tokens + 15  # a code and a longer question
    return tasks


async def _length(trail: Trail, facts: Facts, tasks: Tasks, learn: Told) -> list[Seen]:
    """Find the shortest length at which reuse shows; return its warm exchanges."""
    most = (facts.context_tokens or LENGTHS[-1] * 4) // 3
    lengths: Sequence[int] = [one for one in LENGTHS if one <= most] or [max(64, most)]
    slow = False
    found: tuple[int, list[Seen], list[Seen]] | None = None
    for length in lengths:
        try:
            cold, warm = await _pairs(trail, tasks, length)
        except RequestError:
            if found is None:
                raise
            break  # longer than its context, which it did not say
        found = found or (length, cold, warm)
        slow = slow or median(one.reply.ttft_s for one in cold) > SLOW_S
        facts.counters = tuple(
            sorted({name for one in (*cold, *warm) for name in one.reply.counters})
        )
        if _shows(cold, warm, length):
            found = (length, cold, warm)
            break
        if slow:
            break
    assert found is not None
    length, cold, warm = found
    facts.length = SHORT_LENGTH if slow and length == LENGTHS[0] else length
    learn("counters of reuse", ", ".join(facts.counters) or "none")
    ratio = median(one.reply.ttft_s for one in cold) / max(
        1e-9, median(one.reply.ttft_s for one in warm)
    )
    learn("prompts of the legs", f"about {facts.length:,} tokens; warm {ratio:.1f}x as fast there")
    return warm


async def _pairs(trail: Trail, tasks: Tasks, length: int) -> tuple[list[Seen], list[Seen]]:
    """Ask prompts of about a length cold and again; the first one that fails again ends it."""
    cold: list[Seen] = []
    warm: list[Seen] = []
    for number in range(1, TRIES + 1):
        text = tasks.body_text(length + (number - 2) * STEP_TOKENS)
        body = {"messages": [message("system", text), message("user", ASK)]}
        request = Request(f"length {length}, try {number}", body)
        cold.append(await trail.cold(request))
        must_answer(cold[-1].reply, trail.asker.url)
        # The legs wait as long as this server may reasonably take, not as long as any server may.
        slowest = max(one.reply.ttft_s for one in cold)
        trail.asker.patience_s = min(PATIENCE_S, max(PATIENCE_LEAST_S, PATIENCE_TIMES * slowest))
        try:
            warm.append(await trail.warm(request))
        except Unsettled:
            warm.append(trail.seen[-1])
        if not warm[-1].reply.ok:
            break
    return cold, warm


def _shows(cold: Sequence[Seen], warm: Sequence[Seen], length: int) -> bool:
    if not warm[-1].reply.ok:
        return True  # something other than computing took place
    counted = sum(max(one.reply.counters.values(), default=0) >= length // 4 for one in warm)
    if counted * 2 > len(warm):
        return True
    fast = median(one.reply.ttft_s for one in warm)
    return fast <= FASTER * median(one.reply.ttft_s for one in cold)


async def _noise(
    trail: Trail, facts: Facts, tasks: Tasks, warm: Sequence[Seen], learn: Told
) -> None:
    """Measure how far the same prompt's answers are apart, by repeats and by other cuts."""
    if not warm[-1].reply.ok:
        learn("repeats", f"unknown: a prompt sent again failed ({warm[-1].reply.error})")
        return
    request = warm[-1].request
    again = [warm[-1]] + [await trail.warm(request) for _ in range(ASKS_AGAIN)]
    facts.repeats = len({one.reply.said for one in again}) == 1
    pairs = list(pairwise(again))
    pairs += [(one, _cold_of(trail, one)) for one in warm]
    # Cut where a shorter prompt ended, then where the whole one did.
    half = tasks.body_text(facts.length // 2)
    whole = f"{half} {tasks.more(facts.length // 2)}"
    for text in (half, whole):
        body = {"messages": [message("system", text), message("user", ASK)]}
        cut = await trail.plain(Request("a cut", body))
    pairs.append((await trail.warm(cut.request), cut))
    distances = [distance_nat(one.reply, other.reply) for one, other in pairs]
    known = [distance for distance in distances if distance is not None]
    facts.noise_nat = max(known, default=None)
    if not facts.repeats:
        learn("repeats", "no: the same request gets other answers")
    else:
        noise = (
            "" if facts.noise_nat is None else f"; first tokens within {facts.noise_nat:.4f} nat"
        )
        learn("repeats", f"yes{noise}")


async def _who_repeats(trail: Trail, facts: Facts, warm: Sequence[Seen], learn: Told) -> None:
    """Where warm answers differ from each other, see whether those without the cache do too."""
    if facts.repeats or facts.way_round is None:
        return
    way, request = facts.way_round, warm[-1].request
    said = {
        (await trail.reference(request, way.headers, way.fields())).reply.said
        for _ in range(ASKS_AGAIN)
    }
    if len(said) == 1:
        facts.repeats = True
        learn("repeats", "without the cache; with it the same request gets other answers")


def _cold_of(trail: Trail, seen: Seen) -> Seen:
    return next(one for one in trail.of(Role.COLD) if one.request == seen.request)


async def _knows_salts(asker: Asker) -> bool:
    """Whether ``cache_salt`` is taken, and one that is no string is refused."""
    body = {"messages": [message("user", ASK)], "max_tokens": 1}
    taken = await asker.ask({**body, "cache_salt": "probe"})
    misused = await asker.ask({**body, "cache_salt": 7})
    return taken.ok and misused.status in MISUSED


async def _way_round(trail: Trail, facts: Facts, warm: Sequence[Seen]) -> WayRound | None:
    ways: list[WayRound] = []
    if "receipt" in facts.counters:
        ways.append(WayRound("x-surefoot-cache: bypass", headers={"x-surefoot-cache": "bypass"}))
    if facts.salts:
        fields: Callable[[], dict[str, object]] = partial(_fresh_salt, trail)
        ways.append(WayRound("a fresh cache_salt", fields=fields))
    if "timings.cache_n" in facts.counters:
        ways.append(WayRound("cache_prompt: false", fields=lambda: {"cache_prompt": False}))
    for way in ways:
        if await _goes_round(trail, way, warm):
            return way
    return None


def _fresh_salt(trail: Trail) -> dict[str, object]:
    return {"cache_salt": trail.plants.opening().removeprefix("File ").rstrip(".")}


async def _goes_round(trail: Trail, way: WayRound, warm: Sequence[Seen]) -> bool:
    round_: list[Seen] = []
    for one in (one for one in warm[:2] if one.reply.ok):
        round_.append(await trail.reference(one.request, way.headers, way.fields()))
    cold = median(_cold_of(trail, one).reply.ttft_s for one in warm)
    # Nearer to a new prompt's time than to a warm one's, as a ratio.
    least = (cold * median(one.reply.ttft_s for one in warm)) ** 0.5
    return bool(round_) and all(
        one.reply.ok and not one.reused_tokens and one.reply.ttft_s >= least for one in round_
    )


async def _takes_images(asker: Asker, tasks: Tasks) -> bool:
    """Whether a request with a picture is answered, and the picture takes tokens."""
    said = {"type": "text", "text": f"{tasks.plants.opening()} {ASK}"}
    shown: dict[str, Any] = pictures.shown(pictures.solid((255, 0, 0)))
    without = await asker.ask({"messages": [message("user", [said])]})
    reply = await asker.ask({"messages": [message("user", [shown, said])]})
    if not reply.ok:
        if reply.status == 0:
            raise CapacityError(f"{asker.url} does not answer a picture: {reply.error}")
        return False
    if reply.prompt_tokens is None or without.prompt_tokens is None:
        return True
    return reply.prompt_tokens > without.prompt_tokens
