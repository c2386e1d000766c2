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
_NUMBERS = 900_000  # of six digits, the first of them no zero
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_STOPS = re.compile(r"(?<=\d)[\s,._\-\u202f\u00a0]+(?=\d)")

# Rules of a house that is nowhere, without digits or colours: what the model has to look past. A
# model of 135 million weights found a code before such rules more often than before tales.
SENTENCES = (
    "Before any change the clerk must read the booking aloud and wait until the guest agrees.",
    "A refund is paid to the card that was used, unless the guest asks for a voucher.",
    "If a room is not ready, the guest may wait in the lounge and is offered tea without charge.",
    "The clerk should give no opinions, and promise nothing that is not in these rules.",
    "Only one service can be booked in a single call, and every service needs a name and a date.",
    "Guests who travel with children can ask for a quiet room on the garden side at no extra cost.",
    "When the guest is unsure, explain both choices in short words and let the guest decide.",
    "A booking cannot be moved to another person, but a misspelled name may be corrected.",
    "Dogs are welcome in the garden house, and the cleaning fee is added at the end of the stay.",
    "Do not cancel a stay that has begun; offer to end it early and explain the costs.",
    "Breakfast is served in the large hall until late, and on the terrace in summer.",
    "If the system reports an error, tell the guest, wait a moment, and try the same step again.",
    "The shuttle to the airport leaves every hour and must be reserved on the evening before.",
    "Members of the club may bring a friend to the pool, and the friend does not pay.",
    "Parking is free behind the house, but places near the door are for those who need them.",
    "A complaint is written down in the guest's words and passed on to the manager that day.",
    "The clerk may look up a booking by name, by date of arrival, or by the last payment.",
    "When a payment fails, try no other card unless the guest has said which one to use.",
    "Lost items are kept for a month and can be sent home if the guest pays the post.",
    "Large groups need a deposit, which is returned if they cancel at least two weeks ahead.",
    "Answer in the language of the guest, in full sentences, and keep it short.",
    "Never share the details of one guest with another, even if they travel together.",
    "Late arrivals are no problem if the guest calls, since the night porter has every key.",
    "If the guest asks for something that is not allowed, refuse politely and name the rule.",
    "Meeting rooms can be rented by the hour and come with water, paper, and a screen.",
    "The kitchen can prepare meals without nuts, milk or wheat when it is told one day ahead.",
    "Windows on the upper floors open only a little, and this cannot be changed for safety.",
    "A bicycle can be borrowed from the cellar, and the guest signs for it and returns it by dusk.",
    "Extra towels and pillows are brought to the room, and nobody has to ask for them twice.",
    "Hand the call over to a person only when none of these rules covers what the guest needs.",
    "The sauna is open in the evening, and children may use it together with their parents.",
    "If two bookings overlap, keep the older one and find a similar room for the other guest.",
    "Gift cards are valid for three years and can be used for rooms, meals and massages alike.",
    "The clerk must check the weather warning before naming the mountain path.",
    "A guest who stays for a month pays less for each night and gets the room cleaned every week.",
    "Luggage can be left in the locked room next to the lift until the last train has gone.",
    "Prices include the local tax, and the invoice shows it on a line of its own.",
    "When the hall is rented for a wedding, music ends at midnight and the doors stay closed.",
    "Flowers for the table are ordered from the shop across the street, not from the kitchen.",
    "All requests are noted in the log with the time and with the action that was taken.",
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

    def invented(self, answer: str) -> set[str]:
        """Return the codes in an answer that nobody was told."""
        return {code for code in codes_in(answer) if not self._codes.get(code)}

    def hit_chance(self, who: str = "") -> float:
        """Return the probability that a made-up number of six digits is a code that was told.

        ``who``: to a request whose label begins so.
        """
        told = (any(label.startswith(who) for label, _ in one) for one in self._codes.values())
        return sum(told) / _NUMBERS

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
        """Draw sentences, each as rarely as can be, of exactly so many words."""
        drawn: list[str] = []
        while len(drawn) < words:
            for place in self.shuffled(len(SENTENCES)):
                drawn += SENTENCES[place].split()
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
