"""A code said once, text after it, and the question what it was.

The needle of the haystack tests: the answer is right only when the state of all tokens between is
right. The code may stand in the question's own message, in the system prompt or in an earlier turn.
"""

from dataclasses import dataclass
from random import Random

from models.spark import facts
from models.spark.conversation import Conversation, Exchange, Turn, sometimes_a_system_prompt
from models.spark.prose import number_line, prose


@dataclass(frozen=True, slots=True)
class Wording:
    """How a code is introduced and asked for."""

    says: str
    asks: str


MINE = Wording("My code is {code}.", "What is my code?")
SECRET = Wording(
    "The secret code is {code}.", "What is the secret code? Reply with the six digits only."
)
WORDINGS = (
    MINE,
    MINE,
    SECRET,
    SECRET,
    Wording("My code is {code}.", "What is my code? Reply with the code only."),
    Wording("The secret code is {code}.", "What is the secret code?"),
)
LAYOUTS = ("one message", "system", "earlier turn")


def six_digits(rng: Random) -> str:
    """Return six random digits, the first of them possibly zero."""
    return "".join(rng.choices("0123456789", k=6))


def hidden_code(
    rng: Random,
    characters: int,
    *,
    wording: Wording | None = None,
    layout: str | None = None,
    text: str | None = None,
) -> Conversation:
    """Hide one code before this many characters of text, or before the text given."""
    wording = wording or rng.choice(WORDINGS)
    layout = layout or rng.choices(LAYOUTS, (0.6, 0.2, 0.2))[0]
    code = six_digits(rng)
    if wording is MINE and rng.random() < 0.15:
        code = facts.code(rng)
    text = prose(rng, characters) if text is None else text
    gap = rng.choice((" ", " ", "\n", "\n\n"))
    said = wording.says.format(code=code) + gap + text
    return Conversation(_laid_out(rng, layout, said, Exchange(wording.asks, code), gap))


def two_codes(rng: Random, characters: int) -> Conversation:
    """Hide both a code of mine and a secret one, and ask for each: only the wording tells them."""
    both = [(wording, six_digits(rng)) for wording in rng.sample((MINE, SECRET), 2)]
    before, between, after = (prose(rng, characters // 3) for _ in range(3))
    said = [wording.says.format(code=code) for wording, code in both]
    gap = rng.choice((" ", "\n"))
    parts = (
        [before, said[0], between, said[1], after]
        if rng.random() < 0.5
        else [said[0], between, said[1], after]
    )
    first, second = rng.sample([Exchange(wording.asks, code) for wording, code in both], 2)
    turns = _laid_out(rng, rng.choice(LAYOUTS), gap.join(parts), first, gap)
    return Conversation((*turns, *second.turns))


def _laid_out(
    rng: Random, layout: str, said: str, exchange: Exchange, gap: str
) -> tuple[Turn, ...]:
    if layout == "one message":
        prompt = sometimes_a_system_prompt(rng, 0.2)
        return (*prompt, *Exchange(said + gap + exchange.question, exchange.answer).turns)
    if layout == "system":
        return (Turn("system", said), *exchange.turns)
    between: tuple[Turn, ...] = ()
    if rng.random() < 0.3:
        between = Exchange(number_line(rng), "OK").turns
    return (*Exchange(said, "OK").turns, *between, *exchange.turns)
