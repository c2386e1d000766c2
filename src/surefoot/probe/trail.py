"""What a leg sees: every exchange, in the role it was made in.

| role | what it says of a request | used for |
|---|---|---|
| cold | nothing like it was ever sent | a reference for the same body; a control of the time test |
| warm | its prefix was sent before, and should be reused | a witness of reuse; judged |
| plain | it may or may not share state with what came before | judged |
| apart | it shares a prefix with another tenant's request only | judged; reuse is a fault |
| left | the probe hung up on it | shown: what came before |
| measured | it asks what the server makes of a body, for one token | shown |

A leg only makes exchanges. What they mean is decided in ``judge.py``, for all legs alike.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from surefoot.probe.asking import NEVER, Asker, Reply
from surefoot.probe.plants import Plants, codes_in, texts_of
from surefoot.probe.verdicts import Shown
from surefoot.probe.witnesses import Timed

TENANT_FIELDS = ("cache_salt", "user")
REUSED_LEAST = 64  # tokens; all prompts begin with the template's, and some servers count those


class Role(StrEnum):
    """Why a request was made."""

    COLD = "cold"
    WARM = "warm"
    PLAIN = "plain"
    APART = "apart"
    LEFT = "left"
    MEASURED = "measured"
    REFERENCE = "reference"  # asked so that the cache is left out, after the leg's own requests


@dataclass(frozen=True, slots=True)
class Request:
    """What a leg asks, and what a right answer holds.

    Attributes:
        label: what it is called in the report; unique in its leg.
        body: the fields that are this request's own; see ``Asker.wire`` for the others.
        expected: a right answer holds this (a code, or a word in any case); None: anything but
            silence is right, and only equality with the reference is judged.
        others: what a right answer to other requests of this leg holds, where no code says it (an
            image's colour): an answer that holds one of these instead is another request's.
        key: which API key it is sent with.
        prompt: the body as text, without who asks (key, salt, user): requests with the same one
            have the same right answer.
    """

    label: str
    body: Mapping[str, Any]
    expected: str | None = None
    others: tuple[str, ...] = ()
    key: int = 0
    prompt: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        said = {name: value for name, value in self.body.items() if name not in TENANT_FIELDS}
        object.__setattr__(self, "prompt", json.dumps(said, sort_keys=True))

    def right(self, reply: Reply) -> bool:
        """Whether a whole answer holds what is expected."""
        if not reply.ok or not reply.said.strip():
            return False
        return self.expected is None or holds(reply.said, self.expected)


@dataclass(frozen=True, slots=True)
class Seen:
    """One exchange."""

    request: Request
    reply: Reply
    role: Role

    @property
    def timed(self) -> Timed | None:
        """Its place in the time test."""
        if not self.reply.ok:
            return None
        # Words stand for tokens where a server counts none: only equal lengths are compared.
        length = self.reply.prompt_tokens or len(texts_of(self.request.body).split())
        return Timed(length, self.reply.ttft_s)

    @property
    def reused_tokens(self) -> int:
        """The most tokens that a counter names as reused; 0 for what templates have in common."""
        most = max(self.reply.counters.values(), default=0)
        return most if most >= REUSED_LEAST else 0

    def shown(self) -> Shown:
        """Return the exchange as a report shows it."""
        reply = self.reply
        first = reply.tokens[0].top if reply.tokens else ()
        facts: dict[str, Any] = {
            "role": self.role.value,
            "key": self.request.key + 1,
            "expected": self.request.expected,
            "status": reply.status,
            "error": reply.error,
            "finish": reply.finish,
            "prompt_tokens": reply.prompt_tokens,
            "counters": dict(reply.counters),
            "ttft_ms": round(reply.ttft_s * 1000, 3),
            "first_token": [[text, logprob] for text, logprob in first],
        }
        return Shown(self.request.label, self.request.body, reply.said, facts)


class NotApplicable(Exception):
    """End a leg as SKIPPED; the text is the reason."""


class Unsettled(Exception):
    """End a leg as INCONCLUSIVE; the text says why, and what would settle it."""


class BudgetEnded(Unsettled):
    """End a leg because the run's tokens or seconds are spent."""


@dataclass(slots=True)
class Budget:
    """What a run may spend; ``started_s`` is on the asker's clock."""

    tokens: int
    seconds: float
    started_s: float

    def check(self, asker: Asker) -> None:
        """End the leg if nothing is left.

        Raises:
            BudgetEnded: tokens or seconds are spent.
        """
        if asker.spent_tokens >= self.tokens:
            raise BudgetEnded(
                f"the budget of {self.tokens:,} tokens ended; a larger --budget-tokens settles it"
            )
        if asker.clock() - self.started_s >= self.seconds:
            raise BudgetEnded(
                f"the budget of {self.seconds:g} s ended; a larger --budget-seconds settles it"
            )

    def seconds_left(self, asker: Asker) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.seconds - (asker.clock() - self.started_s))

    def tokens_left(self, asker: Asker) -> int:
        """Return the tokens that are left, at least 0."""
        return max(0, self.tokens - asker.spent_tokens)


Watch = Callable[[Seen], None]


@dataclass(slots=True)
class Trail:
    """One leg's exchanges, in order.

    Attributes:
        asker: the server.
        plants: who was told which code.
        budget: checked before every request.
        watch: called after every exchange.
        controls: never-seen requests of the whole run, for the time test; a cold one is added.
        fresh: makes one more never-seen request like the leg's own, for the time test's second
            stage; the leg sets it, and without it there is no second stage.
        seen: what was exchanged.
        twins: pairs of exchanges whose answers cannot be equal to all digits unless the first was
            decided by the other's content, and why.
        reaching: pairs that differ alike and share nothing: unequal answers show that it counts.
    """

    asker: Asker
    plants: Plants
    budget: Budget
    watch: Watch
    controls: list[Timed]
    name: str = ""
    fresh: Callable[[], Request] | None = None
    seen: list[Seen] = field(default_factory=list)
    twins: list[tuple[Seen, Seen, str]] = field(default_factory=list)
    reaching: list[tuple[Seen, Seen]] = field(default_factory=list)

    async def cold(self, request: Request) -> Seen:
        """Ask what was never asked, nor anything that begins like it."""
        return await self._ask(request, Role.COLD)

    async def warm(self, request: Request) -> Seen:
        """Ask what should reuse state."""
        return await self._ask(request, Role.WARM)

    async def plain(self, request: Request) -> Seen:
        """Ask what is judged, and is neither a control nor a witness of reuse."""
        return await self._ask(request, Role.PLAIN)

    async def apart(self, request: Request) -> Seen:
        """Ask what may share state with nobody, though another tenant asked the same."""
        return await self._ask(request, Role.APART)

    async def together(self, requests: Sequence[Request]) -> list[Seen]:
        """Ask all of these at once; as ``plain``, since their times are not comparable."""
        self.budget.check(self.asker)
        for request in requests:
            self._told(request)
        replies = await asyncio.gather(
            *(self.asker.ask(request.body, key=request.key) for request in requests)
        )
        seen = [
            Seen(request, reply, Role.PLAIN)
            for request, reply in zip(requests, replies, strict=True)
        ]
        for one in seen:
            self._note(one)
        for one in seen:
            self._must_come(one)
        return seen

    async def leave(self, request: Request, *, pieces: int, within_s: float | None = None) -> None:
        """Send a request and hang up after so many pieces or seconds (``Asker.leave``)."""
        self.budget.check(self.asker)
        self._told(request)
        reply = await self.asker.leave(
            request.body, pieces=pieces, within_s=within_s, key=request.key
        )
        self._note(Seen(request, reply, Role.LEFT))

    async def measured(self, body: Mapping[str, Any], *, label: str) -> Reply:
        """Ask for one token, for what the server makes of a body."""
        self.budget.check(self.asker)
        request = Request(label, dict(body) | {"max_tokens": 1})
        reply = await self.asker.ask(request.body)
        self._note(Seen(request, reply, Role.MEASURED))
        return reply

    async def reference(
        self, request: Request, headers: Mapping[str, str], fields: Mapping[str, Any]
    ) -> Seen:
        """Ask a request's body with the cache left out, by header or fields."""
        self.budget.check(self.asker)
        body = dict(request.body) | dict(fields)
        reply = await self.asker.ask(body, key=request.key, headers=headers)
        one = Seen(request, reply, Role.REFERENCE)
        self._note(one)
        self._must_come(one)
        return one

    def controls_like(self, tokens: int) -> list[Timed]:
        """Return the never-seen requests that were at least half so long."""
        return [one for one in self.controls if one.prompt_tokens >= tokens // 2]

    def of(self, *roles: Role) -> list[Seen]:
        """Return the exchanges in these roles, in order."""
        return [one for one in self.seen if one.role in roles]

    async def _ask(self, request: Request, role: Role) -> Seen:
        self.budget.check(self.asker)
        self._told(request)
        one = Seen(request, await self.asker.ask(request.body, key=request.key), role)
        self._note(one)
        self._must_come(one)
        return one

    def _must_come(self, one: Seen) -> None:
        """End the leg at the first answer that never comes: what it proves, it has proven."""
        if one.reply.error == NEVER:
            raise Unsettled(f"{one.request.label} was not answered in {self.asker.patience_s:g} s")
        if one.reply.busy:
            raise Unsettled(
                f"the server is too busy ({one.reply.error}); probe again when it is not"
            )

    @property
    def of_this_leg(self) -> str:
        """How the label of every request of this leg begins, where the plants note it."""
        return f"{self.name}: "

    def _told(self, request: Request) -> None:
        self.plants.told(f"{self.of_this_leg}{request.label}", request.body)

    def _note(self, one: Seen) -> None:
        self.seen.append(one)
        if one.role is Role.COLD and one.timed is not None:
            self.controls.append(one.timed)
        self.watch(one)


def holds(answer: str, expected: str) -> bool:
    """Whether an answer holds a code, or a word in any case."""
    if expected.isdigit():
        return expected in codes_in(answer)
    words = "".join(letter if letter.isalnum() else " " for letter in answer.lower()).split()
    return expected.lower() in words
