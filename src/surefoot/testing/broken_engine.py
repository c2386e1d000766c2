"""A small deterministic engine with real state, for proving the prober: whole, or with one fault.

Unbroken, a warm answer is the cold answer to the last digit of its logprobs. Every fault is a fault
of state handling: of keys, restores, commits or counters. No answer is ever made up for it; what
the model says is read out of whatever state it was left with. Everything is a function of the
requests and their order; time passes only through the function that the engine is given.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from surefoot.testing.broken_faults import Behaviour, Fault
from surefoot.testing.broken_prompt import Picture, Prompt, Token, cut_text
from surefoot.testing.broken_state import (
    BLANK,
    STRIDE,
    Said,
    State,
    answer,
    folded,
    share,
    spoken,
)
from surefoot.testing.broken_store import Block, Plan, Rung, Store, Tenant

COMPUTE_S = 0.001  # per token of a prompt
RESTORE_S = 0.000_02  # per token of a prompt
DECODE_S = 0.002  # per token of an answer
OTHER_WEIGHTS = 3
CROWD = 8  # requests in flight
LONG_ANSWER_TOKENS = 16
LEFT_TOKENS = 2
WORDINGS = ("", "It is ", "Sure: ", "Here you are: ", "The answer is ")

PassTime = Callable[[float], Awaitable[None]]


class NeverAnsweredError(Exception):
    """The engine never answers this request; who carries it decides how that looks."""


@dataclass(slots=True, eq=False)
class Turn:
    """One request in flight, and its account.

    Attributes:
        prompt: what is consumed.
        tenant: whose it is.
        most_tokens: the longest answer.
        cached_tokens: as the server counts them; known once the first token is.
        restored_tokens: as they were.
        finish: ``stop`` or ``length``, None before the end.
        said_tokens: how long the answer is so far.
        pace: what its times are multiplied by.
    """

    prompt: Prompt
    tenant: Tenant
    most_tokens: int
    cached_tokens: int = 0
    restored_tokens: int = 0
    finish: str | None = None
    said_tokens: int = 0
    pace: float = 1.0


@dataclass(slots=True, eq=False)
class _Run:
    """A prompt being consumed: its whole blocks by key, where it was taken up, what there is."""

    rungs: tuple[Rung, ...]
    plan: Plan
    state: State
    blocks: list[Block] = field(default_factory=list)


class BrokenEngine:
    """Answers turns, as its behaviour and its fault have it.

    Args:
        behaviour: what it offers.
        fault: the one thing that is wrong with it, None for nothing.
        pass_time: waits so many seconds; requests in flight take turns there.
    """

    def __init__(self, behaviour: Behaviour, fault: Fault | None, pass_time: PassTime) -> None:
        self.behaviour = behaviour
        self._fault = fault
        self._pass_time = pass_time
        self._store = Store(behaviour, fault)
        self._live: list[_Run] = []
        self._whole: dict[object, State] = {}
        self._weights = 0
        self._features: dict[bytes, Picture] = {}
        self._turns = 0

    def restart(self) -> None:
        """Start anew over the same disk."""
        self._store.restart()
        self._whole.clear()
        self._features.clear()
        if self._fault is Fault.OTHER_WEIGHTS:
            self._weights += OTHER_WEIGHTS

    async def answer(self, turn: Turn) -> AsyncIterator[Said]:
        """Yield the answer's tokens; close the iterator to cancel the turn.

        Raises:
            NeverAnsweredError: the fault says so.
        """
        self._turns += 1
        number = self._turns
        turn.pace = 1 + self.behaviour.unsteady * (2 * share(number) - 1)
        finished, said = False, list[Said]()
        try:
            state = await self._prefilled(turn)
            if turn.restored_tokens * 2 > len(turn.prompt.tokens):
                if self._fault is Fault.HANGS_ON_HIT:
                    raise NeverAnsweredError
                if self._fault is Fault.EMPTY_ON_HIT:
                    turn.finish, finished = "stop", True
                    return
            tokens, seed = self._words(state, number)
            jitter = self.behaviour.jitter
            said = spoken(tokens, seed, jitter=jitter, cut=turn.restored_tokens)
            turn.finish = "stop" if len(said) <= turn.most_tokens else "length"
            for one in said[: turn.most_tokens]:
                await self._wait(turn, DECODE_S)
                turn.said_tokens += 1
                yield one
            finished = True
        finally:
            words = [one.token for one in said[: turn.said_tokens]]
            self._kept(turn, words, finished=finished)

    def _kept(self, turn: Turn, words: Sequence[str], *, finished: bool) -> None:
        """Leave in the store what the fault leaves there of an answer that ended."""
        if not self.behaviour.caches:
            return
        prompt, tenant = turn.prompt, turn.tenant
        if self._fault is Fault.POISONED and not finished:
            self._store.commit_half(prompt, tenant, self._store.rungs(prompt, tenant))
        elif self._fault is Fault.POISONED_IN_DECODE:
            if not finished and len(words) >= LEFT_TOKENS:
                self._store.overwrite_last(prompt, tenant, [BLANK] * self.behaviour.block_tokens)
        elif self._fault is Fault.LONG_ANSWER_OVERWRITES and len(words) >= LONG_ANSWER_TOKENS:
            answered = State()
            answered.feed(words, self._weights)
            self._store.overwrite_last(prompt, tenant, answered.rows)
        elif self._fault is Fault.ANSWER_SHIFTED and finished:
            self._keep_shifted(turn, words)

    def _keep_shifted(self, turn: Turn, words: Sequence[str]) -> None:
        """Hold an answer's blocks as well, of its first token twice and the others behind it."""
        told = turn.prompt.tokens
        prompt = replace(turn.prompt, tokens=(*told, *words, "<|end|>"))
        late, state = (*told, *words[:1], *words), State()
        rungs = self._store.rungs(prompt, turn.tenant)
        ends = [rung.end for rung in rungs]
        blocks = [
            self._gained(state, late[start:end])
            for start, end in zip([0, *ends], ends, strict=False)
        ]
        self._store.commit(prompt, turn.tenant, rungs, blocks, state)

    async def _wait(self, turn: Turn, seconds: float) -> None:
        await self._pass_time(seconds * turn.pace)

    def _words(self, state: State, number: int) -> tuple[list[str], int]:
        """Return the answer's tokens, and the number that its logprobs are drawn from."""
        behaviour = self.behaviour
        text, seed = answer(state, behaviour.skills, self._weights), state.number
        if not behaviour.repeats:
            seed = hash((seed, number))
            text = WORDINGS[seed % len(WORDINGS)] + text
        return cut_text(text, behaviour.digits_together), seed

    async def _prefilled(self, turn: Turn) -> State:
        """Return the state after a turn's prompt, restored as far as it can be."""
        if not self.behaviour.caches:
            run = _Run((), Plan(0), State())
            await self._compute(turn, run)
            return run.state
        whole_key = self._whole_key(turn)
        if whole_key in self._whole:
            turn.restored_tokens = turn.cached_tokens = len(turn.prompt.tokens) - 1
            await self._wait(turn, RESTORE_S * turn.restored_tokens)
            return self._whole[whole_key]
        run = self._taken_up(turn)
        self._live.append(run)
        try:
            await self._wait(turn, RESTORE_S * turn.restored_tokens)
            await self._compute(turn, run)
        finally:
            self._live.remove(run)
        if run.plan.record is None:
            self._store.commit(turn.prompt, turn.tenant, run.rungs, run.blocks, run.state)
        if self._fault is Fault.THINKING_IGNORED_IN_KEY:
            self._whole[whole_key] = run.state
        return run.state

    def _taken_up(self, turn: Turn) -> _Run:
        """Plan and restore, and count what was restored."""
        prompt = turn.prompt
        rungs = self._store.rungs(prompt, turn.tenant)
        plan = self._store.plan(prompt, turn.tenant, rungs)
        turn.cached_tokens = turn.restored_tokens = min(plan.tokens, len(prompt.tokens) - 1)
        if self._fault is Fault.COUNTER_ZERO:
            turn.cached_tokens = 0
        if self._fault is Fault.COUNTER_TOO_HIGH:
            turn.restored_tokens, plan = 0, Plan(0)
        run = _Run(rungs, plan, *self._store.restore(plan, prompt, turn.tenant))
        crowd = self._fault is Fault.SHARED_ENTRY_FROM_8 and len(self._live) + 1 >= CROWD
        if (crowd or self._fault is Fault.SHARED_ENTRY) and plan.rungs:
            self._borrow(run)
        if self._fault is Fault.STRANGERS_IN_FLIGHT and rungs:
            self._take_a_strangers(run)
        if self._fault is Fault.LAST_TOKEN_TWICE and plan.tokens:
            self._stand_before_the_last(prompt, run)
        return run

    def _borrow(self, run: _Run) -> None:
        """Have a run append to the rows and the index of another in flight, if one has its prefix.

        The recurrent state stays its own.
        """
        deepest = run.plan.rungs[-1]
        for other in self._live:
            if deepest in other.rungs and len(other.state.rows) >= deepest.end:
                run.state.rows, run.state.pooled = other.state.rows, other.state.pooled
                return

    def _take_a_strangers(self, run: _Run) -> None:
        """Have a run append to the rows and the index of one in flight that begins otherwise."""
        for other in self._live:
            if other.rungs and other.rungs[0] != run.rungs[0]:
                run.state.rows, run.state.pooled = other.state.rows, other.state.pooled
                return

    def _stand_before_the_last(self, prompt: Prompt, run: _Run) -> None:
        """On a full hit, have the recurrent state hold the last token before it is computed."""
        state, last = run.state, prompt.tokens[-1:]
        if run.plan.tokens == len(prompt.tokens):
            del state.rows[-1]
            state.pooled = state.pooled[: len(state.rows) // STRIDE]
            state.position -= 1
        elif run.plan.tokens == len(prompt.tokens) - 1:
            state.recurrent = folded(state.recurrent, last, self._weights)

    async def _compute(self, turn: Turn, run: _Run) -> None:
        """Feed what was not restored, to each block's end and to the prompt's."""
        prompt, state = turn.prompt, run.state
        at = min(run.plan.tokens, len(prompt.tokens) - 1)
        ends = [rung.end for rung in run.rungs if rung.end > run.plan.tokens]
        for end in (*ends, len(prompt.tokens)):
            gained = self._gained(state, prompt.tokens[at:end])
            if end in ends and len(run.blocks) < len(run.rungs):
                run.blocks.append(gained)
            await self._wait(turn, COMPUTE_S * (end - at))
            at = end

    def _gained(self, state: State, tokens: Sequence[Token]) -> Block:
        """Feed tokens and return what the state gained."""
        rows, pooled = len(state.rows), len(state.pooled)
        state.feed([self._featured(token) for token in tokens], self._weights)
        return Block(tuple(state.rows[rows:]), tuple(state.pooled[pooled:]), state.recurrent)

    def _featured(self, token: Token) -> Token:
        """Return a patch with the picture that the memo of features has for it."""
        if isinstance(token, str) or self._fault is not Fault.DIGEST_IGNORES_DIMENSIONS:
            return token
        picture = self._features.setdefault(token.picture.rgb, token.picture)
        return token._replace(picture=picture)

    def _whole_key(self, turn: Turn) -> object:
        tokens = turn.prompt.tokens
        tag = len(tokens) - 1 - turn.prompt.tag
        return turn.tenant, tokens[:tag]
