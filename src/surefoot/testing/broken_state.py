"""The broken server's model: what it keeps of a prompt, and how it reads an answer out of that.

State is like a hybrid model's, in three forms:

| state | one per | law |
|---|---|---|
| rows | token or patch of a picture | all before a boundary |
| pooled index, with a length of its own | ``STRIDE`` rows | all before a boundary |
| recurrent: a number, a phase, the statement under way | boundary | the last alone |

A look-up goes through the pooled index and, for what that does not cover yet, through the rows. A
recalled code is decoded with the recurrent phase, which must agree with the position of the run: a
recurrent state of another boundary garbles it. Logits are a function of all three, to the last
digit. Arithmetic is on small integers, whose tuples Python hashes alike in every process.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from surefoot.testing.broken_faults import Skills
from surefoot.testing.broken_prompt import COLOURS, Patch, Picture, Token

STRIDE = 8  # tokens of one pooled row
UNKNOWN = "I do not know."
STATEMENTS: dict[tuple[str, ...], str] = {
    ("secret", "code", "is"): "secret",
    ("my", "code", "is"): "mine",
}
SHAPES = ("wide", "tall")
THOUGHT = "<think>\nI look at the text.\n</think>\n\n"
_MASK = (1 << 64) - 1
_PRIME = (1 << 61) - 1
_WORDS = (
    *("amber", "birch", "cedar", "dune", "eagle", "fern", "grove", "heath", "inlet", "jade"),
    *("kelp", "lark", "moss", "north", "oak", "pine", "quay", "reed", "stone", "tide", "willow"),
)
_LIKELY = ("I", "The", "It", *COLOURS, "Wide", "Tall", "Square", "No", "Yes", *"0123456789")
TOP_MOST = 20


class Fact(NamedTuple):
    """What one token's row says beyond itself: a code that ended here, a question, a turn."""

    kind: str
    value: str


class Row(NamedTuple):
    """One token's row, or one pooled row."""

    number: int
    facts: tuple[Fact, ...] = ()


BLANK = Row(0)


class Reading(NamedTuple):
    """The statement under way: the last words, and the digits of a code that has begun."""

    words: tuple[str, ...] = ()
    kind: str = ""
    digits: str = ""


class Recurrent(NamedTuple):
    """The recurrent state: a fold over all tokens, how many those were, and what is being read."""

    number: int = 1
    phase: int = 0
    reading: Reading = Reading()


class Said(NamedTuple):
    """One token of an answer with its logprob and the likeliest in its place, itself first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]


class Found(NamedTuple):
    """A fact and about how many tokens into the prompt it stands."""

    fact: Fact
    place: int


@dataclass(slots=True)
class State:
    """What a run has of its prompt; mutable, and its own."""

    rows: list[Row] = field(default_factory=list)
    pooled: list[Row] = field(default_factory=list)
    recurrent: Recurrent = field(default_factory=Recurrent)
    position: int = 0

    def feed(self, tokens: Sequence[Token], weights: int) -> None:
        """Consume tokens: a row each, a pooled row where a stride is full, the recurrent fold."""
        reading = self.recurrent.reading
        for token in tokens:
            row, reading = _row(token, reading, weights)
            self.rows.append(row)
        self.recurrent = folded(self.recurrent, tokens, weights)._replace(reading=reading)
        self.position += len(tokens)
        while (len(self.pooled) + 1) * STRIDE <= len(self.rows):
            start = len(self.pooled) * STRIDE
            self.pooled.append(pooled_row(self.rows[start : start + STRIDE]))

    @property
    def number(self) -> int:
        """Return a number that any change of any part changes."""
        rows = [row.number for row in self.rows]
        pooled = [row.number for row in self.pooled]
        whole = (self.recurrent.number, self.recurrent.phase, *rows, len(rows), *pooled)
        return hash(whole) & _MASK

    def found(self) -> Iterator[Found]:
        """Yield every fact that a look-up sees, in order."""
        for place, row in enumerate(self.pooled):
            yield from (Found(fact, place * STRIDE) for fact in row.facts)
        covered = len(self.pooled) * STRIDE
        for place, row in enumerate(self.rows[covered:], covered):
            yield from (Found(fact, place) for fact in row.facts)


def folded(recurrent: Recurrent, tokens: Iterable[Token], weights: int) -> Recurrent:
    """Return the recurrent state after more tokens, what is being read left as it was."""
    number, phase = recurrent.number, recurrent.phase
    for token in tokens:
        number = hash((number, _token_number(token), weights))
        phase += 1
    return Recurrent(number, phase, recurrent.reading)


def pooled_row(rows: Sequence[Row]) -> Row:
    """Return the pooled row over a stride of rows."""
    facts = tuple(fact for row in rows for fact in row.facts)
    return Row(hash(tuple(row.number for row in rows)), facts)


def answer(state: State, skills: Skills, weights: int) -> str:
    """Return what the model says to the last user turn, out of its state alone."""
    found = [*state.found()]
    turns = [place for place, one in enumerate(found) if one.fact == Fact("turn", "user")]
    asked = [one.fact for one in found[turns[-1] if turns else 0 :]]
    questions = [fact.value for fact in asked if fact.kind == "asks"]
    shapes = _shapes_asked(questions)
    questions = [one for one in questions if not one.startswith(SHAPES)] if not shapes else []
    off = state.recurrent.phase - state.position
    if shapes:
        text = _shape(found, shapes, skills, weights)
    elif not questions:
        return _thought(found) + _sentence(state)
    elif questions[-1] == "colour":
        text = _colour(found, asked, skills, weights)
    else:
        text = _code(state, found, questions[-1], skills, weights)
    return _thought(found) + (_garbled(text, off) if off else text)


def spoken(tokens: Sequence[str], number: int, *, jitter: float = 0.0, cut: int = 0) -> list[Said]:
    """Return an answer's tokens with their logprobs, a function of the state's number.

    Args:
        tokens: of the answer.
        number: of the state after the prompt.
        jitter: the most that a logit moves, in nat.
        cut: where the prompt was cut; decides how logits move.
    """
    return [_said(token, hash((number, place)), jitter, cut) for place, token in enumerate(tokens)]


def _said(token: str, number: int, jitter: float, cut: int) -> Said:
    others = [one for one in _LIKELY if one != token][: TOP_MOST - 1]
    logits = {one: 6 * share(number, place + 1) for place, one in enumerate(others)}
    logits = {token: max(logits.values()) + 0.2 + 3 * share(number, 0)} | logits
    if jitter:
        noise = {one: share(number, cut, place) for place, one in enumerate(logits)}
        logits = {one: logit + jitter * (2 * noise[one] - 1) for one, logit in logits.items()}
    whole = math.log(sum(map(math.exp, logits.values())))
    ranked = sorted(logits, key=lambda one: (one != token, -logits[one]))
    top = tuple((one, logits[one] - whole) for one in ranked)
    return Said(token, top[0][1], top)


def share(*numbers: int) -> float:
    """Return a number of [0, 1) that the arguments decide: splitmix64's finish over their hash."""
    mixed = hash(numbers) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) / (1 << 64)


# --- reading -------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def _token_number(token: Token) -> int:
    if isinstance(token, str):
        return int.from_bytes(token.encode(), "little") % _PRIME
    return hash((_pixels_number(token.picture), token.place))


@lru_cache(maxsize=256)
def _pixels_number(picture: Picture) -> int:
    return hash((picture.width, picture.height, int.from_bytes(picture.rgb, "little") % _PRIME))


@lru_cache(maxsize=1 << 18)
def _row(token: Token, reading: Reading, weights: int) -> tuple[Row, Reading]:
    """Return a token's row and what is being read after it."""
    number = hash((_token_number(token), weights))
    if isinstance(token, Patch):
        return Row(number, _seen(token, weights)), Reading()
    word = token.strip().lower()
    if not word:
        return Row(number), reading
    digits = word.isascii() and word.isdecimal()
    if digits and reading.kind and (not reading.digits or token[0] == word[0]):
        return Row(number), reading._replace(digits=reading.digits + word)
    facts = []
    if reading.digits:
        facts.append(Fact(reading.kind, shifted(reading.digits, weights)))
    words = (*reading.words[-3:], word)
    kind = STATEMENTS.get(words[-3:], "")
    facts += _said_by(words)
    return Row(number, tuple(facts)), Reading(words, kind)


def _said_by(words: tuple[str, ...]) -> Iterator[Fact]:
    """Yield the turn, the tag or the question that ends with the last of these words."""
    word = words[-1]
    if word.startswith("<|"):
        name = word.strip("<|>")
        yield Fact("tag", name) if name.endswith("think") else Fact("turn", name)
    elif words[-3:] == ("secret", "code", "?"):
        yield Fact("asks", "secret")
    elif words[-3:] == ("my", "code", "?"):
        yield Fact("asks", "mine")
    elif word in ("color", "colour"):
        yield Fact("asks", "colour")
    elif word.startswith(SHAPES):
        yield Fact("asks", word)
    elif words[-2:] in (("first", "image"), ("second", "image")):
        yield Fact("which", words[-2])


def _seen(patch: Patch, weights: int) -> tuple[Fact, ...]:
    if patch.place == 0:
        return (Fact("colour", shifted(patch.picture.colour, weights)),)
    if patch.place == 1:
        return (Fact("shape", shifted(patch.picture.shape, weights)),)
    return ()


# --- answering -----------------------------------------------------------------------------------


def shifted(text: str, by: int) -> str:
    """Return a text with every digit and letter moved on by so many."""
    return "".join(_moved(one, by) for one in text)


def _moved(one: str, by: int) -> str:
    for first, count in (("0", 10), ("a", 26), ("A", 26)):
        place = ord(one) - ord(first)
        if 0 <= place < count:
            return chr(ord(first) + (place + by) % count)
    return one


def _garbled(text: str, off: int) -> str:
    """Return what is left of an answer when the phase is off: nobody's digits, or no answer."""
    if not text.isdecimal():
        return UNKNOWN
    return "".join(
        str((int(one) + 1 + hash((off, place)) % 9) % 10) for place, one in enumerate(text)
    )


def _code(state: State, found: Sequence[Found], kind: str, skills: Skills, weights: int) -> str:
    able = skills.secret if kind == "secret" else skills.mine
    known = [one for one in found if one.fact.kind == kind]
    if not known or not able:
        return UNKNOWN
    newest = known[-1]
    far = state.position - newest.place
    if skills.recall_tokens is not None and far > skills.recall_tokens:
        return UNKNOWN
    return shifted(newest.fact.value, -weights)


def _colour(found: Sequence[Found], asked: Sequence[Fact], skills: Skills, weights: int) -> str:
    colours: list[str] = []  # of the newest turn that has any
    turn: list[str] = []
    for one in found:
        if one.fact.kind == "turn":
            turn = []
        elif one.fact.kind == "colour":
            turn.append(shifted(one.fact.value, -weights))
            colours = turn
    which = [fact.value for fact in asked if fact.kind == "which"]
    place = {"first": 0, "second": 1}[which[-1]] if which else len(colours) - 1
    able = skills.colour and (skills.ordinal or not which)
    if not able or place >= len(colours) or place < 0:
        return UNKNOWN
    return colours[place]


def _shapes_asked(questions: Sequence[str]) -> dict[str, str]:
    """Return the words of a question that holds wide and tall, by shape; empty for any other."""
    words = {word[:4]: word for word in questions if word.startswith(SHAPES)}
    newest = bool(questions) and questions[-1].startswith(SHAPES)
    return words if newest and len(words) == len(SHAPES) else {}


def _shape(found: Sequence[Found], words: dict[str, str], skills: Skills, weights: int) -> str:
    shapes = [shifted(one.fact.value, -weights) for one in found if one.fact.kind == "shape"]
    if not shapes or not skills.shape:
        return UNKNOWN
    return words.get(shapes[-1], shapes[-1]).capitalize()


def _thought(found: Sequence[Found]) -> str:
    tags = [one.fact.value for one in found if one.fact.kind == "tag"]
    return THOUGHT if tags and tags[-1] == "think" else ""


def _sentence(state: State) -> str:
    number = state.number
    count = 16 + int(16 * share(number, -1))
    words = [_WORDS[int(len(_WORDS) * share(number, place))] for place in range(count)]
    return f"{' '.join(words).capitalize()}."
