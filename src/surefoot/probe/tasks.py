"""What the model is asked, and the proof that it can.

A task is a shape (where the code stands) with a phrasing (how it is said and asked). Weak models
know some phrasings and not others, and at some lengths only, so a leg takes the first phrasing of
the table that fresh prompts show to work, ``PROOFS`` of ``PROOFS``. What was proven once holds for
the run: the proofs are never-seen prompts, so they are controls of the time test too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from surefoot.probe.plants import Plants
from surefoot.probe.proofs import PROOFS, answered_right
from surefoot.probe.trail import BudgetEnded, Request, Trail, Unsettled


class Shape(StrEnum):
    """Where in a conversation the code stands, and where the long text."""

    EARLY = "early"  # the code first, then the text, in the system message; the last turn asks
    LATE = "late"  # the text in the system message; the code and the question in the last turn
    EARLIER_TURN = "earlier turn"  # the text, then a turn that says the code, then one that asks


@dataclass(frozen=True, slots=True)
class Phrasing:
    """How a code is said and asked for."""

    says: str
    asks: str

    def said(self, code: str) -> str:
        """Return the sentence that says the code."""
        return self.says.format(code=code)


# In the order they are tried. A model of 135 million weights needs to be told more than once where
# a long text follows: 6 of 6 at 2,100 tokens with the second, and 1 of 5 at 1,300 with the first.
PHRASINGS = (
    Phrasing(
        "The secret code is {code}.", "What is the secret code? Reply with the six digits only."
    ),
    Phrasing(
        "Secret code: {code}. Secret code: {code}. Secret code: {code}.",
        "What is the secret code? Reply with the six digits only.",
    ),
    Phrasing("My code is {code}.", "What is my code?"),
    Phrasing("The code is {code}.", "What is the code? Answer with the number only."),
    Phrasing(
        "Please remember the number {code}.",
        "Which number did I ask you to remember? Answer with the number and nothing else.",
    ),
)


# Long, so that salts differ only at their end: a part of one, or its letters' case, may be lost.
SALT_STEM = "the-salt-of-one-house-with-many-tenants-"
STORY = "Tell me a long story about a harbour."  # what is answered at length


def message(role: str, content: object) -> dict[str, Any]:
    """Return one message of a conversation."""
    return {"role": role, "content": content}


def conversation(shape: Shape, phrasing: Phrasing, *, code: str, text: str) -> list[dict[str, Any]]:
    """Return the messages that say ``code``, hold ``text`` and ask for the code at the end."""
    match shape:
        case Shape.EARLY:
            return [
                message("system", f"{phrasing.said(code)} {text}"),
                message("user", phrasing.asks),
            ]
        case Shape.LATE:
            return [
                message("system", text),
                message("user", f"{phrasing.said(code)} {phrasing.asks}"),
            ]
        case Shape.EARLIER_TURN:
            return [
                message("system", text),
                message("user", phrasing.said(code)),
                message("assistant", "OK"),
                message("user", phrasing.asks),
            ]


def told(shape: Shape, phrasing: Phrasing, code: str, text: str, label: str) -> Request:
    """Return a request that says ``code`` where the shape has it, and asks for it."""
    messages = conversation(shape, phrasing, code=code, text=text)
    return Request(label, {"messages": messages}, expected=code)


def salted(request: Request, tenant: str) -> Request:
    """Return a request under a tenant's salt, the same to the byte otherwise."""
    body = dict(request.body) | {"cache_salt": SALT_STEM + tenant}
    return replace(request, label=f"{request.label} under {tenant}", body=body)


class Tasks:
    """Draws requests, and proves on fresh prompts that the model can answer their like.

    Args:
        plants: codes and text.
        words_per_token: words of filler that make one token of prompt, for this server.
        overhead_tokens: what the template, a code and a question add to a text, about.
    """

    def __init__(
        self, plants: Plants, *, words_per_token: float = 0.75, overhead_tokens: int = 40
    ) -> None:
        self.plants = plants
        self.words_per_token = words_per_token
        self.overhead_tokens = overhead_tokens
        self._proven: dict[tuple[Shape, int], Phrasing] = {}
        self._failed: dict[tuple[Shape, int], str] = {}

    def text(self, tokens: int) -> str:
        """Draw a text of about so many tokens, which begins like no other."""
        return f"{self.plants.opening()} {self.more(tokens)}"

    def more(self, tokens: int) -> str:
        """Draw sentences of about so many tokens, to go on with."""
        return self.plants.filler(max(1, round(tokens * self.words_per_token)))

    def body_text(self, tokens: int) -> str:
        """Draw the text of a request that is to have about so many tokens in all."""
        return self.text(max(1, tokens - self.overhead_tokens))

    async def able(self, trail: Trail, shape: Shape, tokens: int) -> Phrasing:
        """Return a phrasing that works for ``shape`` in prompts of ``tokens``, proving it once.

        Raises:
            Unsettled: none of the table does; the text says what was tried.
        """
        known = (shape, tokens)
        if known in self._failed:
            raise Unsettled(self._failed[known])
        if known not in self._proven:
            for phrasing in PHRASINGS:
                if await self._proves(trail, shape, phrasing, tokens):
                    self._proven[known] = phrasing
                    break
            else:
                self._failed[known] = (
                    f"the model cannot do the task ({shape}: a code in {tokens:,} tokens) on fresh "
                    f"prompts in any of {len(PHRASINGS)} phrasings; a stronger model settles it"
                )
                raise Unsettled(self._failed[known])
        return self._proven[known]

    async def first_able(
        self, trail: Trail, shapes: Sequence[Shape], tokens: int
    ) -> tuple[Shape, Phrasing]:
        """Return the first of these shapes that the model can do, with its phrasing.

        Raises:
            Unsettled: it can do none.
        """
        for shape in shapes[:-1]:
            try:
                return shape, await self.able(trail, shape, tokens)
            except BudgetEnded:
                raise
            except Unsettled:
                continue
        return shapes[-1], await self.able(trail, shapes[-1], tokens)

    def fresh(self, shape: Shape, phrasing: Phrasing, tokens: int, *, label: str) -> Request:
        """Draw a never-seen request of this kind, about so many tokens long."""
        code = self.plants.code()
        return told(shape, phrasing, code, self.body_text(tokens), label)

    def told_last(self, phrasing: Phrasing, text: str, *, label: str) -> Request:
        """Return a request with a code of its own in its last turn, after ``text``."""
        return told(Shape.LATE, phrasing, self.plants.code(), text, label)

    async def _proves(self, trail: Trail, shape: Shape, phrasing: Phrasing, tokens: int) -> bool:
        number = PHRASINGS.index(phrasing) + 1

        def fresh(proof: int) -> Request:
            label = f"proof {proof + 1} of {shape}, phrasing {number}"
            return self.fresh(shape, phrasing, tokens, label=label)

        return len(await answered_right(trail, fresh)) == PROOFS
