"""Legs about a prompt's length: exactly at the boundaries of blocks, and as long as can be."""

from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any

from surefoot.probe.legs import HANG_UP_SHARE, Facts, Leg, Run
from surefoot.probe.plants import PAD
from surefoot.probe.proofs import PROOFS, answered_right
from surefoot.probe.tasks import (
    PHRASINGS,
    Phrasing,
    Shape,
    Tasks,
    conversation,
    message,
    salted,
    told,
)
from surefoot.probe.trail import NotApplicable, Request, Role, Seen, Trail, Unsettled

UNIT_TOKENS = 256  # smaller blocks are taken together until there are about so many tokens
LENGTH_TRIES = 3
REPLAYS = 2
WITNESS_REPLAYS = 3
WITNESS_SHARE = 0.75  # of a prompt, in whole blocks
PADS = (PAD, "and", "the")  # words that take one token each, for one tokenizer or another
PADS_TRIED = 8  # of a word at once
SHORT_TOKENS = 90  # about what a measurement of a code and an opening asks for

LADDER = (6_000, 4_000, 3_000, 2_100, 1_500, 1_000)  # tokens, tried in this order
LONG_PHRASINGS = 2  # tried on each rung
LONG_ANSWER_TOKENS = 128  # left free of the context
LONG_ORDER = (-1, -2)  # which of the proofs are asked again, twice each
LEAVES = 0.5  # a fork leaves a long text after so much of it
ENDS = 0.6  # and is so much as long
LONG_ASKS = PROOFS + 2 * len(LONG_ORDER) + (1 + 2 * ENDS) + 2  # a fork's, and one that was left
APART_MORE = 3  # salts asked with after one that shared, so that time can tell it too
LONG_COLD_S = 18.0  # most that a rung's proofs may take together, but those of the shortest
LONG_SHARE = 3  # one such part of what is left of the budget may be spent


# --- at the boundaries ---------------------------------------------------------------------------


async def boundaries(run: Run, trail: Trail) -> None:
    """Ask prompts that end one token before, at, and one token after a block, and replay them."""
    tasks, facts = run.tasks, run.facts
    shape, phrasing = await tasks.first_able(trail, (Shape.EARLY, Shape.LATE), facts.length)
    ends, pad = _ends(facts), await _pad(trail)
    for end in ends:
        ruler = await Ruler.measured(trail, tasks, shape, phrasing, tokens=end, pad=pad)
        trail.fresh = ruler.control
        for tokens in (end - 1, end, end + 1):
            cold = await ruler.cold(trail, tokens)
            real = cold.reply.prompt_tokens or tokens
            again = replace(cold.request, label=f"{cold.request.label} ({real:,} long) again")
            if _mostly_reused(facts, real):
                for _ in range(WITNESS_REPLAYS):
                    await trail.warm(again)
            else:
                for _ in range(REPLAYS):
                    await trail.plain(again)


def _mostly_reused(facts: Facts, tokens: int) -> bool:
    """Whether a replay computes so little that time can tell; the last token always is computed."""
    block = facts.block_tokens or UNIT_TOKENS
    return (tokens - 1) // block * block >= WITNESS_SHARE * tokens


def _ends(facts: Facts) -> tuple[int, ...]:
    """Return the lengths to replay around: one and two units, and one of about the usual length."""
    block = facts.block_tokens or UNIT_TOKENS
    unit = block * max(1, round(UNIT_TOKENS / block))
    usual = facts.length // unit
    return (unit, 2 * unit, usual * unit) if usual > 2 else (unit, 2 * unit)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A never-seen beginning, and what its request takes without any filler."""

    code: str
    opening: str
    short_tokens: int | None


@dataclass(slots=True)
class Ruler:
    """Builds never-seen prompts of an exact length.

    All have the same filler, then some words of one token each. Only the code and the opening
    differ, and how many tokens those take is learned from a short request, which begins otherwise
    so that the long one stays unseen.

    Attributes:
        pad: the word that takes one token.
        filler: of all prompts alike.
        known: the beginning of the newest prompt; with ``known_words`` after the filler it took
            ``known_tokens``, which is a guess where the server counts none.
    """

    tasks: Tasks
    shape: Shape
    phrasing: Phrasing
    pad: str
    filler: str
    known: _Drawn
    known_tokens: int
    known_words: int

    @classmethod
    async def measured(
        cls,
        trail: Trail,
        tasks: Tasks,
        shape: Shape,
        phrasing: Phrasing,
        *,
        tokens: int,
        pad: str,
    ) -> "Ruler":
        """Return a ruler for prompts of about so many tokens; asks a twin of them."""
        words = 8 + tokens // 16
        filler = tasks.more(max(1, tokens - words - tasks.overhead_tokens))
        twin = await _draw(trail, tasks, shape, phrasing)
        ruler = cls(tasks, shape, phrasing, pad, filler, twin, tokens, words)
        seen = await trail.cold(ruler.request(twin, words, f"twin of {tokens:,} tokens"))
        ruler.known_tokens = seen.reply.prompt_tokens or tokens
        return ruler

    async def cold(self, trail: Trail, tokens: int) -> Seen:
        """Ask a never-seen prompt of so many tokens; the last one tried if none hits it."""
        for _ in range(LENGTH_TRIES):
            drawn = await _draw(trail, self.tasks, self.shape, self.phrasing)
            words = self._words(drawn, tokens)
            seen = await trail.cold(self.request(drawn, words, f"prompt for {tokens:,} tokens"))
            real = seen.reply.prompt_tokens
            self.known, self.known_tokens, self.known_words = drawn, real or tokens, words
            if real is None or real == tokens:
                break
        return seen

    def control(self) -> Request:
        """Draw a never-seen prompt of about the newest one's length, unmeasured."""
        drawn = _Drawn(self.tasks.plants.code(), self.tasks.plants.opening(), None)
        return self.request(drawn, self.known_words, "control")

    def request(self, drawn: _Drawn, words: int, label: str) -> Request:
        """Return the request with a drawn beginning and so many words of one token."""
        text = " ".join((drawn.opening, self.filler, *[self.pad] * words))
        messages = conversation(self.shape, self.phrasing, code=drawn.code, text=text)
        return Request(label, {"messages": messages}, expected=drawn.code)

    def _words(self, drawn: _Drawn, tokens: int) -> int:
        words = self.known_words + tokens - self.known_tokens
        if drawn.short_tokens is not None and self.known.short_tokens is not None:
            words -= drawn.short_tokens - self.known.short_tokens
        return max(0, words)


async def _draw(trail: Trail, tasks: Tasks, shape: Shape, phrasing: Phrasing) -> _Drawn:
    code, opening = tasks.plants.code(), tasks.plants.opening()
    messages = conversation(shape, phrasing, code=code, text=opening)
    messages[0]["content"] = f"Note. {messages[0]['content']}"
    return _Drawn(code, opening, await _counted(trail, messages))


async def _pad(trail: Trail) -> str:
    """Return a word that takes one token for this server; the usual one if none was found."""
    opening = trail.plants.opening()
    before = await _counted(trail, [message("user", opening)])
    for word in PADS:
        padded = " ".join((opening, *[word] * PADS_TRIED))
        after = await _counted(trail, [message("user", padded)])
        if before is None or after is None or after - before == PADS_TRIED:
            return word
    return PAD


async def _counted(trail: Trail, messages: list[dict[str, Any]]) -> int | None:
    """Return how many tokens a prompt takes, None if the server does not say; nobody judges it."""
    return (await trail.measured({"messages": messages}, label="a length")).prompt_tokens


def _boundaries_cost(facts: Facts) -> int:
    ends = _ends(facts)
    asked = sum(
        tokens * (1 + (WITNESS_REPLAYS if _mostly_reused(facts, tokens) else REPLAYS))
        for end in ends
        for tokens in (end - 1, end, end + 1)
    )
    return sum(ends) + asked + 4 * (len(ends) + 1) * SHORT_TOKENS


# --- as long as can be ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rung:
    """A length at which the model finds a fact, how it is asked there, and what it answered."""

    tokens: int
    phrasing: Phrasing
    proofs: list[Request]


async def long(run: Run, trail: Trail) -> None:
    """Keep a fact in the first tokens of the longest prompts that the model can do.

    They are replayed, forked, left before they are computed, and asked under another salt.
    """
    rung = await _longest(run, trail)
    usual_s = median(one.reply.ttft_s for one in trail.of(Role.COLD)[-PROOFS:])
    newest = True
    for place in LONG_ORDER:
        # Only the newest has had no other long prompt after it, which may have taken its place.
        await (trail.warm if newest else trail.plain)(rung.proofs[place])
        await trail.warm(rung.proofs[place])
        newest = False
    donor, leaver = _fork(run, rung)
    await trail.cold(donor)
    await trail.warm(leaver)
    await trail.warm(leaver)
    left = run.tasks.fresh(Shape.EARLY, rung.phrasing, rung.tokens, label="left in its prefill")
    await trail.leave(left, pieces=1, within_s=HANG_UP_SHARE * usual_s)
    await trail.plain(left)
    await trail.warm(left)
    if run.facts.salts:
        await _under_other_salts(trail, rung.proofs[-1])


def _fork(run: Run, rung: _Rung) -> tuple[Request, Request]:
    """Return a long prompt that ends with another code, and one that leaves it before that."""
    tasks, phrasing = run.tasks, rung.phrasing
    code, other = tasks.plants.code(), tasks.plants.code()
    text = tasks.body_text(rung.tokens - tasks.overhead_tokens)
    messages = conversation(Shape.EARLY, phrasing, code=code, text=text)
    messages[-1] = message("user", f"{phrasing.said(other)} {phrasing.asks}")
    words = text.split()
    kept = " ".join(words[: round(len(words) * LEAVES)])
    rest = tasks.plants.filler(round(len(words) * (ENDS - LEAVES)))
    return (
        Request("a long text that ends with another code", {"messages": messages}),
        told(Shape.EARLY, phrasing, code, f"{kept} {rest}", "one that leaves the long text"),
    )


async def _under_other_salts(trail: Trail, proof: Request) -> None:
    """Ask what is known under a salt that is not; if it counts as reused, under more of them."""
    apart = await trail.apart(salted(proof, "tenant-1"))
    if apart.reused_tokens:
        for number in range(2, 2 + APART_MORE):
            await trail.apart(salted(proof, f"tenant-{number}"))


async def _longest(run: Run, trail: Trail) -> _Rung:
    """Return the longest rung that the model can do, with its proofs, which were just asked.

    Raises:
        NotApplicable: the server's context ends before any rung.
        Unsettled: every rung is beyond the model, the time or the budget.
    """
    facts = run.facts
    most = None if facts.context_tokens is None else facts.context_tokens - LONG_ANSWER_TOKENS
    longer = [rung for rung in LADDER if rung > facts.length]
    rungs = [rung for rung in longer if most is None or rung <= most]
    if not rungs:
        raise NotApplicable(
            f"no prompt much longer than the usual {facts.length:,} tokens fits this server"
        )
    phrasing = await run.tasks.able(trail, Shape.EARLY, facts.length)
    found = []
    for rung in rungs:
        why = _too_dear(run, trail, rung, inf if rung == rungs[-1] else LONG_COLD_S)
        for tried in () if why else _from(phrasing):
            proofs = await _proofs(run, trail, tried, rung)
            if len(proofs) == PROOFS:
                return _Rung(rung, tried, proofs)
        why = why or trail.seen[-1].reply.error or "the model misses the fact"
        found.append(f"{rung:,}: {why}")
    raise Unsettled(
        f"no prompt longer than {facts.length:,} tokens could be tried ({'; '.join(found)}); "
        "a stronger model, or a larger budget, settles it"
    )


def _from(phrasing: Phrasing) -> tuple[Phrasing, ...]:
    """Return the phrasings that are tried on a rung: what works for shorter prompts, and next."""
    first = PHRASINGS.index(phrasing)
    return PHRASINGS[first : first + LONG_PHRASINGS]


def _too_dear(run: Run, trail: Trail, rung: int, most_s: float) -> str | None:
    """Return why a rung is not tried, None if it can be paid, with its proofs in ``most_s``."""
    asked, left = round(rung * LONG_ASKS), trail.budget.tokens_left(run.asker) // LONG_SHARE
    if asked > left:
        return f"it asks for about {asked:,} tokens, and this leg's share is {left:,}"
    known = trail.controls_like(run.facts.length)
    # The median, since one that was held up by something else must not decide.
    taken_s = median([one.ttft_s / one.prompt_tokens for one in known] or [0.0]) * rung * PROOFS
    left_s = min(most_s, trail.budget.seconds_left(run.asker) / LONG_SHARE)
    return f"it would take about {taken_s:.0f} s" if taken_s > left_s else None


async def _proofs(run: Run, trail: Trail, phrasing: Phrasing, rung: int) -> list[Request]:
    """Ask never-seen prompts up to the first wrong answer; return those answered right."""
    return await answered_right(
        trail,
        lambda proof: run.tasks.fresh(
            Shape.EARLY, phrasing, rung, label=f"proof {proof + 1} at {rung:,} tokens"
        ),
    )


def _long_cost(facts: Facts) -> int:
    rung = min((rung for rung in LADDER if rung > facts.length), default=LADDER[0])
    return round(rung * (LONG_ASKS + facts.salts))


BOUNDARIES = Leg(
    "boundaries",
    "Prompts that end exactly at a block, a token before and a token after it are replayed.",
    _boundaries_cost,
    boundaries,
)
LONG = Leg(
    "long",
    "A fact stands at the very beginning of the longest prompts that the model can do.",
    _long_cost,
    long,
)
