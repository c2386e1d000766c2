"""Text to bury a code in: prose, lists, records, numbers, and plain noise.

Variety matters more than sense. What is asked for later must be found by how it was introduced, so
everything else that text may hold is here too: sentences from templates, word salad, letters at
random, JSON-like records, facts in the manner of ``facts``, and numbers of every length, six digits
among them, introduced in other words.
"""

import string
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from models.spark import words

PATTERNS = tuple(
    """
    The {a} {n} {v} the {n}.
    {d}, the {n} {v} a {a} {n} and {v} the {n}.
    {P} {v} the {n} in {L}.
    It was a {a} {n}, but the {n} was {a}.
    When the {n} {v} the {n}, {P} {v} it {d}.
    There are {s} {n}s in the {a} {n}.
    {P} said that the {n} is {a}.
    "The {n} is {a}," said {P}, "and the {n} {v} it."
    Why is the {n} so {a}?
    We {v} the {n} because the {n} was {a}.
    In {y}, the {n} of {L} {v} more than {k} {n}s.
    The {n} costs ${s}.{t} at the {n}.
    At {s}:{t} the {a} {n} {v} the {n}.
    Please send the {n} to {P} before the {n}.
    About {t} percent of the {n}s are {a}.
    No {n} has ever {v} such a {a} {n}!
    {P} and {P} {v} the {n} {d}.
    If you have a {n}, you should not open the {n}.
    Chapter {s}: The {a} {n}
    First the {n}, then the {n}, and {d} the {n}.
    The {n} (see page {h}) was {v} by {P}.
    You can find the {n} between the {n} and the {n}.
    My {n} is {a}. My {n} is not.
    What is the {n} of the {n}?
    The {n} is {a}; the {n} is {a}.
    Nobody knew where the {n} was.
    They {v} it {d} - a {a} {n}.
    Each of the {h} {n}s {v} its own {n}.
    My {n} is in {L}, and my {n} is {a}.
    I do not know what the {n} is.
    """.strip().splitlines()
)
NUMBERED = tuple(
    """
    Order {x} has shipped.
    The ticket number is {x}.
    Invoice {x} was paid in {y}.
    Call {h}-{h}-{k} for help.
    The population of {L} is {x}.
    Serial number: {x}.
    Reference {x} is closed.
    The total was {x} in {y}.
    Between {h} and {k} people came.
    Version {s}.{s}.{t} was released on {y}-{t}-{t}.
    Temperature {s}.{t}, pressure {k}.
    Room {h}, seat {t}, gate {s}.
    {x} is a number, and so is {k}.
    The account {x} belongs to {P}.
    It sold {h},{h} copies.
    My phone number is {x}.
    The part number is {x}.
    error {h}: {n} not found
    id={x} status={h}
    """.strip().splitlines()
)
MARKS = ",,,,;:.....!?-"


def prose(rng: Random, characters: int) -> str:
    """Return about this many characters of text, from one to three kinds mixed."""
    kinds = rng.choices(tuple(KINDS), tuple(KINDS.values()), k=rng.choice((1, 1, 2, 3)))
    joint = rng.choice((" ", " ", " ", "\n", "\n\n", "  "))
    pieces: list[str] = []
    length = 0
    while length < characters:
        piece = rng.choice(kinds)(rng)
        pieces.append(piece)
        length += len(piece) + len(joint)
    return joint.join(pieces)


def sentence(rng: Random) -> str:
    """Fill one of the patterns; one sentence in eight is about a number."""
    return _filled(rng.choice(NUMBERED if rng.random() < 0.12 else PATTERNS), rng)


def number_line(rng: Random) -> str:
    """Return a sentence about a number; one in two has six digits."""
    return _filled(rng.choice(NUMBERED), rng)


def salad(rng: Random) -> str:
    """Return common words in any order, with marks."""
    lists = (words.SMALL, words.SMALL, words.NOUNS, words.VERBS, words.ADJECTIVES, words.NAMES)
    chosen = [rng.choice(rng.choice(lists)) for _ in range(rng.randint(4, 14))]
    text = "".join(
        (" " if index else "") + word + (rng.choice(MARKS) if rng.random() < 0.15 else "")
        for index, word in enumerate(chosen)
    )
    return text.capitalize() if rng.random() < 0.6 else text


def invented(rng: Random) -> str:
    """Return words that nobody knows, by syllables or letter by letter."""
    if rng.random() < 0.5:
        parts = ["".join(rng.choices(words.SYLLABLES, k=rng.randint(1, 4))) for _ in range(6)]
    else:
        letters = string.ascii_lowercase + "etaoinshr" * 3
        parts = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(6)]
    if rng.random() < 0.5:
        parts = [part.capitalize() if rng.random() < 0.3 else part for part in parts]
    return " ".join(parts) + rng.choice(("", ".", ",", "!"))


def noise(rng: Random) -> str:
    """Return printable characters at random."""
    return "".join(
        rng.choices(
            string.ascii_letters + string.digits + string.punctuation + "   ", k=rng.randint(8, 30)
        )
    )


def record(rng: Random) -> str:
    """Return a JSON-like line."""
    fields = [
        f'"id": {rng.randint(1, 999999)}',
        f'"name": "{rng.choice(words.NAMES)}"',
        f'"{rng.choice(words.NOUNS)}": {rng.choice(("true", "false", "null"))}',
        f'"{rng.choice(words.NOUNS)}": {rng.randint(0, 99)}.{rng.randint(0, 9)}',
        f'"{rng.choice(words.NOUNS)}": "{rng.choice(words.ADJECTIVES)}"',
    ]
    return "{" + ", ".join(rng.sample(fields, rng.randint(1, 4))) + "}"


def note(rng: Random) -> str:
    """Return a line as lists have them."""
    mark = rng.choice(("- ", "* ", "1. ", "## ", "> ", "[x] ", "TODO: ", ""))
    letters = "".join(rng.choices(string.ascii_uppercase, k=2))
    kinds = (
        f"{rng.choice(words.NAMES)} task {letters}-{rng.randint(100, 999)} "
        f"due {rng.choice(words.DAYS)}",
        f"{rng.choice(words.NOUNS)}: {rng.choice(words.ADJECTIVES)}",
        f"{rng.choice(words.NOUNS)} = {rng.randint(0, 9999)}",
        f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}",
    )
    return mark + rng.choice(kinds)


Kind: TypeAlias = Callable[[Random], str]
KINDS: dict[Kind, float] = {
    sentence: 8,
    number_line: 2,
    salad: 3,
    invented: 1.5,
    noise: 0.5,
    record: 1,
    note: 1.5,
}


def _filled(pattern: str, rng: Random) -> str:
    fill = {
        "n": lambda: rng.choice(words.NOUNS),
        "v": lambda: rng.choice(words.VERBS),
        "a": lambda: rng.choice(words.ADJECTIVES),
        "d": lambda: rng.choice(words.ADVERBS),
        "P": lambda: rng.choice(words.PEOPLE),
        "L": lambda: rng.choice(words.PLACES),
        "s": lambda: str(rng.randint(1, 12)),
        "t": lambda: f"{rng.randint(10, 99)}",
        "h": lambda: str(rng.randint(100, 999)),
        "k": lambda: str(rng.randint(1000, 9999)),
        "x": lambda: str(rng.randint(100000, 999999)),
        "y": lambda: str(rng.randint(1800, 2040)),
    }
    parts = pattern.strip().split("{")
    text = parts[0] + "".join(fill[part[0]]() + part[2:] for part in parts[1:])
    return text[:1].upper() + text[1:]
