"""A leg of a chat that grows by its own answers, as real chats do.

What a server stored while it answered (the answer's tokens, the prompt's last part block) is a
prefix of the next turn only if that turn sends the answer back. The other legs never do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median
from typing import Any

from surefoot.probe.asking import Reply
from surefoot.probe.legs import Facts, Leg, Run, lengths
from surefoot.probe.proofs import PROOFS, answered_right
from surefoot.probe.tasks import STORY, Phrasing, Shape, Tasks, message
from surefoot.probe.trail import Request, Seen, Trail

STORY_TOKENS = 64  # the longest that turn 1 is answered
STORY_USUAL_TOKENS = 40  # between a model that is brief and one that is cut off
OPENING_SHARE = 0.7  # of the usual length: turn 1; turn 2 has all of it, so that times compare
CHUNK_LEAST_TOKENS = 60  # text of turn 2; what is looked up by its content is not shorter
NEAR = 0.1  # of the usual length: controls that turn 2 is made as long as
REPLAYS = 3  # of turn 2, which costs little and makes its times speak
STAND_IN = "Noted."  # sent back where nothing was answered: servers refuse an empty turn


async def turns(run: Run, trail: Trail) -> None:
    """Send every answer back, rewind to turn 2 and to turn 1, then drop the first exchange.

    What is left without it is asked for one token first, so an answer that is remembered too short
    shows.
    """
    tasks, facts = run.tasks, run.facts
    phrasing = await tasks.able(trail, Shape.LATE, facts.length)
    trail.fresh = lambda: tasks.fresh(Shape.LATE, phrasing, facts.length, label="control")
    proven = not _told_by_logprobs(facts) and await _proves(trail, tasks, phrasing, facts.length)
    chat = _Chat.drawn(tasks, phrasing, facts.length)
    first = chat.request("turn 1", ())
    story = await trail.cold(first)
    chat = chat.filled(tasks, _usual(trail, facts.length), story.reply)
    answers = [_sent_back(story)]
    second = chat.request("turn 2", answers, proven=proven)
    answers.append(_sent_back(await trail.warm(second)))
    for _ in range(REPLAYS):
        await trail.warm(second)
    await trail.warm(chat.request("turn 3", answers, proven=proven))
    await trail.warm(second)
    await trail.warm(first)
    alone = chat.second_alone("turn 2 without turn 1", proven=proven)
    await trail.measured(alone.body, label=f"{alone.label}, one token of its answer")
    await trail.plain(alone)


@dataclass(frozen=True, slots=True)
class _Chat:
    """What is said in a chat of three turns, but for its answers.

    Attributes:
        phrasing: of the codes.
        codes: told in each turn.
        text: of the system.
        chunk: of the second turn, before its code.
    """

    phrasing: Phrasing
    codes: tuple[str, ...]
    text: str
    chunk: str = ""

    @classmethod
    def drawn(cls, tasks: Tasks, phrasing: Phrasing, tokens: int) -> "_Chat":
        """Draw a chat that nobody held, for a second turn of so many tokens."""
        codes = tuple(tasks.plants.code() for _ in range(3))
        return cls(phrasing, codes, tasks.body_text(round(tokens * OPENING_SHARE)))

    def filled(self, tasks: Tasks, tokens: int, story: Reply | None = None) -> "_Chat":
        """Return the chat with as much text in its second turn as makes that so long.

        ``story``: the answer to the first turn; None for the usual one.
        """
        opening = (story and story.prompt_tokens) or round(tokens * OPENING_SHARE)
        told = (story and story.completion_tokens) or STORY_USUAL_TOKENS
        rest = tokens - opening - told - tasks.overhead_tokens
        return replace(self, chunk=tasks.more(max(CHUNK_LEAST_TOKENS, rest)))

    @property
    def turns(self) -> tuple[str, ...]:
        """What the user says: asks for a story first, then for each turn's own code."""
        told, again, anew = map(self.phrasing.said, self.codes)
        asks = self.phrasing.asks
        return f"{told} {STORY}", f"{self.chunk} {again} {asks}", f"{anew} {asks}"

    def request(self, label: str, answers: Sequence[str], *, proven: bool = False) -> Request:
        """Return the turn that follows these answers.

        ``proven``: whether the model was shown to find the newest code of a chat.
        """
        messages = [message("system", self.text)]
        for said, answer in zip_longest(self.turns[: len(answers) + 1], answers):
            messages.append(message("user", said))
            if answer is not None:
                messages.append(message("assistant", answer))
        body: dict[str, Any] = {"messages": messages}
        if not answers:
            body["max_tokens"] = STORY_TOKENS
        return Request(label, body, expected=self.codes[len(answers)] if proven else None)

    def second_alone(self, label: str, *, proven: bool) -> Request:
        """Return the second turn as if it were the first; ``proven`` as for ``request``."""
        messages = [message("system", self.text), message("user", self.turns[1])]
        return Request(label, {"messages": messages}, expected=self.codes[1] if proven else None)


def _usual(trail: Trail, length: int) -> int:
    """Return how long prompts of about a length really are, for times that compare with theirs."""
    known = [one.prompt_tokens for one in trail.controls]
    return round(median([one for one in known if abs(one - length) <= NEAR * length] or [length]))


def _sent_back(seen: Seen) -> str:
    """Return what a chat goes on with after this answer: as much of it as came."""
    return seen.reply.said if seen.reply.said.strip() else STAND_IN


def _told_by_logprobs(facts: Facts) -> bool:
    """Whether equality with an answer without the cache tells, and so needs no content."""
    return facts.way_round is not None and facts.noise_nat is not None


async def _proves(trail: Trail, tasks: Tasks, phrasing: Phrasing, length: int) -> bool:
    """Whether the model finds the newest code of a chat; if so, such chats are the controls."""

    def fresh(label: str) -> Request:
        second_tokens = length - tasks.overhead_tokens
        chat = _Chat.drawn(tasks, phrasing, second_tokens).filled(tasks, second_tokens)
        answers = (tasks.more(STORY_USUAL_TOKENS), chat.codes[1])
        return chat.request(label, answers, proven=True)

    right = await answered_right(trail, lambda proof: fresh(f"proof {proof + 1} of a chat"))
    if len(right) < PROOFS:
        return False
    trail.fresh = lambda: fresh("control")
    return True


TURNS = Leg(
    "turns",
    "A chat grows by its own answers, is rewound, and loses its oldest turn; each turn is its own.",
    lengths(9.2),
    turns,
)
