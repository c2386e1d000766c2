"""What the probe plants: codes, openings and filler, drawn from one seed.

A canary is a six-digit code that no model says by chance: no run up or down, no digit three times.
The register knows every request that was told a code, so that a code in an answer can be traced.
"""

import itertools
import re
from collections.abc import Mapping
from random import Random
from typing import Any

CODE_DIGITS = 6
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_STOPS = re.compile(r"(?<=\d)[\s,._\-\u202f\u00a0]+(?=\d)")

# Plain sentences without digits, colours or codes: what the model has to look past.
SENTENCES = (
    "The ferry leaves the north pier when the tide turns and the harbour bell has rung.",
    "A gardener who waters in the evening loses less to the sun than one who waters at noon.",
    "Bread that rests under a damp cloth keeps its crust soft until the oven is hot.",
    "The library lends maps of the valley, but the oldest of them may only be read at the desk.",
    "Every spring the river carries gravel past the mill and leaves a new bank below the bridge.",
    "Two carpenters can hang a door in the time that one of them needs to find his glasses.",
    "Letters for the upper village are left with the baker, who knows every family by name.",
    "A good rope is dry, evenly laid, and never left lying in the bottom of a boat.",
    "The choir practises in the old school because the church has no stove.",
    "Whoever walks the ridge path after rain should take a stick and mind the roots.",
    "Cheese from the summer pastures is turned each day and rubbed with salt water.",
    "The clock on the market hall is slow, and nobody minds, for all the others follow it.",
    "Apples that fall before the harvest are pressed, and the rest are stored in straw.",
    "An engineer measured the dam for a week and found that it leans with the seasons.",
    "Travellers ask for the inn with the heron on its sign and are sent the long way round.",
    "The printer keeps a drawer of broken type and swears that one day he will mend it.",
    "Snow on the pass closes the road for as long as the wind comes from the lake.",
    "Children learn the names of the stars from the lighthouse keeper on clear nights.",
    "A kettle sings before it boils, and a patient cook listens instead of looking.",
    "The orchard wall was built without mortar and has outlived three orchards.",
    "Sailors mend their nets on the steps while their dogs sleep in the shade of the crates.",
    "Nobody remembers why the street is called Long, since it is the shortest in town.",
    "The potter throws a bowl each morning before breakfast, to see what the clay is like.",
    "A bicycle with one gear climbs the hill as well as the legs that push it.",
    "Honey from the heath is dark and thick and must be warmed before it can be poured.",
    "The mayor opened the new well and drank the first cup, and then asked for a second.",
    "Old windows whistle in a storm, each with its own note, so that a house has a voice.",
    "The miller pays in flour and the smith in nails, and both think they have the better deal.",
    "On the last day of the fair the tents come down faster than anyone can say goodbye.",
    "A lamp in the window means that there is soup, and no lamp means come tomorrow.",
)
PAD = "yes"  # one token for most tokenizers, with the space before it


class Plants:
    """Draws codes, openings and filler, and remembers who was told what."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = Random(seed)
        self._codes: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        self._openings: set[str] = set()

    def code(self) -> str:
        """Draw a code that was never drawn before."""
        while True:
            digits = [self._random.randrange(10) for _ in range(CODE_DIGITS)]
            code = "".join(map(str, digits))
            if digits[0] and _unlikely(digits) and code not in self._codes:
                self._codes[code] = []
                return code

    def told(self, label: str, body: Mapping[str, Any]) -> None:
        """Note that the request called ``label`` holds every code that its body holds."""
        for code in codes_in(texts_of(body)):
            if code in self._codes:
                self._codes[code].append((label, body))

    def foreign(self, answer: str, body: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return the codes in an answer that its own request never held, with who was told them."""
        own = codes_in(texts_of(body))
        return {
            code: list(dict.fromkeys(label for label, _ in self._codes[code]))
            for code in codes_in(answer)
            if self._codes.get(code) and code not in own
        }

    def holder(self, code: str) -> tuple[str, Mapping[str, Any]]:
        """Return the first request that was told a code: its label and its body."""
        return self._codes[code][0]

    def opening(self) -> str:
        """Draw a first sentence that no other text begins with."""
        while True:
            word = "".join(self._random.choice(_LETTERS) for _ in range(7))
            if word not in self._openings:
                self._openings.add(word)
                return f"File {word}."

    def filler(self, words: int) -> str:
        """Draw sentences of exactly so many words; the last one may end early."""
        drawn: list[str] = []
        last = ""
        while len(drawn) < words:
            sentence = self._random.choice(SENTENCES)
            if sentence != last:
                drawn += sentence.split()
                last = sentence
        return " ".join(drawn[:words])

    def shuffled(self, count: int) -> list[int]:
        """Draw an order of ``range(count)``."""
        order = list(range(count))
        self._random.shuffle(order)
        return order

    def number(self, below: int) -> int:
        """Draw a whole number below ``below``."""
        return self._random.randrange(below)


def codes_in(text: str) -> set[str]:
    """Return every run of six digits that stands alone; separators inside numbers are ignored."""
    exact = set(re.findall(r"(?<!\d)\d{6}(?!\d)", text))
    return exact | set(re.findall(r"(?<!\d)\d{6}(?!\d)", _STOPS.sub("", text)))


def texts_of(value: Any) -> str:
    """Return all the text in a JSON value, images left out."""
    if isinstance(value, str):
        return "" if value.startswith("data:") else value
    if isinstance(value, Mapping):
        return "\n".join(map(texts_of, value.values()))
    if isinstance(value, list | tuple):
        return "\n".join(map(texts_of, value))
    return ""


def _unlikely(digits: list[int]) -> bool:
    """Whether no one would type this: three different digits, no run of steps, no triple."""
    steps = [after - before for before, after in itertools.pairwise(digits)]
    runs = any(a == b for a, b in itertools.pairwise(steps))
    return len(set(digits)) >= 4 and not runs
