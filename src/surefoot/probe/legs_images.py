"""Legs of pictures: the text stays the same to the byte, and only what is shown changes.

A picture stands before the long text, so that even large blocks reuse it with the text, or after
it, where weak models still see it: each leg takes the first place and question of its table that
fresh prompts show to work. Fresh are the opening and the pixels, never the colours or the question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from surefoot.pictures import COLOURS, raw, said, shown, speckled, user
from surefoot.probe.legs import Facts, Leg, Run
from surefoot.probe.plants import Plants
from surefoot.probe.proofs import first_proven
from surefoot.probe.tasks import PHRASINGS, Phrasing, message
from surefoot.probe.trail import NotApplicable, Request, Trail, Unsettled

# How much of the text stands before the pictures.
EARLY, MIDDLE, LATE = 0.0, 0.5, 1.0
COLOUR_ASKS = ("What color is this image? Answer with one word.", "One word: what color?")
ORDER_ASKS = (
    "What color is the {nth} image?",
    "What color is the {nth} image? Answer with one word.",
)
SHAPE_ASK = "Is this picture wider than it is tall? Answer wide or tall."
# A picture that is not there has an answer too, for models that can say so.
ABSENT_ASK = "What color is the picture? If there is no picture, answer: I do not know."
ABSENT = "know"
SWAPPED = ("red", "green", "blue")
PAIRS = (("red", "green"), ("blue", "yellow"))
TURNS = (("Hello", "Hello!"), ("Ping", "Pong"))  # the two turns of text before a picture's
# Width and height; the same bytes are also shown with these exchanged. Small ones may be refused.
SIZES = ((6, 4), (12, 8), (96, 64))
REMOVED_ROUNDS = (True, True, False)  # whether the picture is there first
_PIXELS = 1_000_000  # so many pictures of a colour are told apart
_SHADES = 16


@dataclass(frozen=True, slots=True)
class Look:
    """How pictures are shown: how much of the text stands before them, and what is asked."""

    share: float
    ask: str


# --- other pictures under one text ---------------------------------------------------------------


async def swap(run: Run, trail: Trail) -> None:
    """Show red, green and blue under one text, in turns."""
    look = await _colour_look(run, trail)
    text = run.tasks.body_text(run.facts.length)
    red, green, blue = (
        _coloured(look, text, [_picture(run.plants, colour)], colour, SWAPPED, label=colour)
        for colour in SWAPPED
    )
    await trail.cold(red)
    await trail.plain(green)
    await trail.warm(red)
    await trail.plain(blue)
    for one in (green, red, blue, green, red):
        await trail.warm(one)


async def _colour_look(run: Run, trail: Trail) -> Look:
    """Return how the model sees one picture's colour; the leg's controls are like its proofs."""
    _takes_images(run)

    def fresh(look: Look, proof: int) -> Request:
        colour = SWAPPED[proof % len(SWAPPED)]
        text = run.tasks.body_text(run.facts.length)
        label = f"proof {proof + 1} of a color, {_where(look)}"
        picture = _picture(run.plants, colour)
        return _coloured(look, text, [picture], colour, SWAPPED, label=label)

    looks = [Look(share, ask) for share in (EARLY, LATE) for ask in COLOUR_ASKS]
    task = f"a picture's color in {run.facts.length:,} tokens"
    return await first_proven(trail, looks, fresh, task=task)


# --- the same bytes in other dimensions ----------------------------------------------------------


async def same_bytes(run: Run, trail: Trail) -> None:
    """Show the same RGB bytes as a wide and as a tall picture, in both orders.

    A model need not tell wide from tall: where it does not, the answers' bits must still differ.
    """
    _takes_images(run)
    sizes = await _sizes_taken(run, trail)
    tells = True
    try:
        look = await _shape_look(run, trail, sizes)
    except Unsettled:
        tells, look = False, await _colour_look(run, trail)
    for number, (width, height) in enumerate(sizes, 1):
        text = run.tasks.body_text(run.facts.length)
        pixels = _halves(run.plants, width, height)
        first, second = (
            _shaped(look, text, pixels, size, tells=tells, label=f"pixels {number} as ")
            for size in _in_order(width, height, wide_first=number % 2 == 1)
        )
        donor = await trail.cold(first)
        accused = await trail.plain(second)
        why = f"one picture is {width}x{height} pixels, the other {height}x{width}"
        trail.twins.append((accused, donor, why))
        for one in (first, second, first):
            await trail.warm(one)


async def _shape_look(run: Run, trail: Trail, sizes: Sequence[tuple[int, int]]) -> Look:
    def fresh(look: Look, proof: int) -> Request:
        width, height = sizes[proof // 2 % len(sizes)]
        text = run.tasks.body_text(run.facts.length)
        pixels = _halves(run.plants, width, height)
        size = _in_order(width, height, wide_first=proof % 2 == 0)[0]
        label = f"proof {proof + 1} of a shape, {_where(look)}: "
        return _shaped(look, text, pixels, size, tells=True, label=label)

    looks = [Look(share, SHAPE_ASK) for share in (EARLY, LATE)]
    return await first_proven(trail, looks, fresh, task="whether a picture is wide or tall")


async def _sizes_taken(run: Run, trail: Trail) -> list[tuple[int, int]]:
    """Return as many sizes as there are in the table, those that are refused replaced by others.

    Raises:
        NotApplicable: the server takes none.
    """
    taken = []
    for width, height in SIZES:
        picture = shown(raw(_halves(run.plants, width, height), width, height))
        messages = [user(picture, said(f"{run.plants.opening()} {COLOUR_ASKS[0]}"))]
        label = f"whether {width}x{height} is taken"
        reply = await trail.measured({"messages": messages}, label=label)
        if reply.ok:
            taken.append((width, height))
    if not taken:
        raise NotApplicable(f"the server takes no picture of {width}x{height}: {reply.error}")
    return [taken[place % len(taken)] for place in range(len(SIZES))]


def _shaped(
    look: Look, text: str, pixels: bytes, size: tuple[int, int], *, tells: bool, label: str
) -> Request:
    width, height = size
    body = {"messages": _messages(look, text, [raw(pixels, width, height)])}
    right, other = ("wide", "tall") if width > height else ("tall", "wide")
    label = f"{label}{width}x{height}"
    return Request(label, body, right, (other,)) if tells else Request(label, body)


def _in_order(width: int, height: int, *, wide_first: bool) -> list[tuple[int, int]]:
    sizes = [(width, height), (height, width)]
    return sizes if wide_first else sizes[::-1]


def _halves(plants: Plants, width: int, height: int) -> bytes:
    """Return RGB bytes, ``height`` rows of ``width``: a left and a right half of two colours."""
    names = [*COLOURS]
    left = plants.number(len(names))
    right = (left + 1 + plants.number(len(names) - 1)) % len(names)
    half = width // 2
    row = _shade(plants, names[left]) * half + _shade(plants, names[right]) * (width - half)
    return row * height


def _shade(plants: Plants, name: str) -> bytes:
    """Draw a shade of a colour that is told from its others by its bytes alone."""
    return bytes(
        value - moved if value > 127 else value + moved
        for value in COLOURS[name]
        for moved in (plants.number(_SHADES),)
    )


# --- a picture late in a chat --------------------------------------------------------------------


async def later(run: Run, trail: Trail) -> None:
    """Show a picture in the third turn of a chat of text, then another one there."""
    _takes_images(run)

    def asked(look: Look, text: str, colour: str, label: str) -> Request:
        picture = _picture(run.plants, colour)
        return _coloured(look, text, [picture], colour, SWAPPED, label=label, turns=TURNS)

    def fresh(look: Look, proof: int) -> Request:
        colour = SWAPPED[proof % len(SWAPPED)]
        label = f"proof {proof + 1} of a color in turn 3, {_where(look)}"
        return asked(look, run.tasks.body_text(run.facts.length), colour, label)

    # What is asked first must be longer than a block, or nothing is restored before the picture.
    looks = [Look(share, ask) for share in (MIDDLE, LATE) for ask in COLOUR_ASKS]
    task = "the color of a picture in the third turn"
    look = await first_proven(trail, looks, fresh, task=task)
    text = run.tasks.body_text(run.facts.length)
    red, green, blue = (asked(look, text, one, f"{one} in turn 3") for one in SWAPPED)
    await trail.plain(_turn(red, 1))
    await trail.plain(_turn(red, 2))
    await trail.plain(red)
    await trail.plain(green)
    for one in (red, green, red):
        await trail.warm(one)
    await trail.plain(blue)
    for one in (green, blue, red):
        await trail.warm(one)


def _turn(request: Request, turn: int) -> Request:
    """Return a chat as it was asked in an earlier turn."""
    messages: Sequence[Any] = request.body["messages"]
    return Request(f"turn {turn}", {"messages": messages[: 2 * turn]})


# --- a picture that is taken out -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Removal:
    """How a history with and without its picture is asked about: for the colour, or for a code."""

    share: float
    phrasing: Phrasing | None = None  # None: for the colour, or that there is none

    def asked(
        self, text: str, picture: bytes | None, colour: str, code: str, label: str
    ) -> Request:
        """Return the history with the picture, or without it and the same to the byte otherwise."""
        if self.phrasing is None:
            messages = _messages(Look(self.share, ABSENT_ASK), text, [picture] if picture else [])
            expected = colour if picture else ABSENT
        else:
            told = Look(self.share, self.phrasing.said(code))
            messages = [
                *_messages(told, text, [picture] if picture else []),
                message("assistant", "OK"),
                message("user", self.phrasing.asks),
            ]
            expected = code
        others = () if picture else (colour,)
        return Request(label, {"messages": messages}, expected, others)


async def removed(run: Run, trail: Trail) -> None:
    """Take a picture out of a history, and put it back."""
    _takes_images(run)
    plants = run.plants

    def drawn(way: Removal, colour: str, name: str) -> tuple[Request, Request]:
        text, code = run.tasks.body_text(run.facts.length), plants.code()
        picture = _picture(plants, colour)
        return (
            way.asked(text, picture, colour, code, f"{name} with its picture"),
            way.asked(text, None, colour, code, f"{name} without its picture"),
        )

    def fresh(way: Removal, proof: int) -> Request:
        colour = SWAPPED[proof % len(SWAPPED)]
        return drawn(way, colour, f"proof {proof + 1}: a history")[proof % 2]

    phrasings = (None, *PHRASINGS[:2])
    ways = [Removal(share, phrasing) for phrasing in phrasings for share in (EARLY, LATE)]
    task = "a color, or that there is no picture, or a code beside one"
    way = await first_proven(trail, ways, fresh, task=task)
    for number, there_first in enumerate(REMOVED_ROUNDS):
        both = drawn(way, SWAPPED[number], f"history {number + 1}")
        first, second = both if there_first else both[::-1]
        await trail.cold(first)
        await trail.plain(second)
        await trail.warm(second)
        await trail.warm(first)


# --- the order of two pictures -------------------------------------------------------------------


async def order(run: Run, trail: Trail) -> None:
    """Show two pictures in one message, then in the other order, and ask for either."""
    _takes_images(run)
    plants = run.plants

    def asked(
        look: Look, text: str, colours: Sequence[str], pictures: Sequence[bytes], nth: int
    ) -> Request:
        asks = replace(look, ask=look.ask.format(nth=("first", "second")[nth]))
        label = f"{' and '.join(colours)}, {('first', 'second')[nth]}"
        return _coloured(asks, text, pictures, colours[nth], colours, label=label)

    def fresh(look: Look, proof: int) -> Request:
        colours = PAIRS[proof % 2][:: 1 if proof < 3 else -1]
        pictures = [_picture(plants, colour) for colour in colours]
        text = run.tasks.body_text(run.facts.length)
        request = asked(look, text, colours, pictures, proof // 2 % 2)
        label = f"proof {proof + 1} of two pictures, {_where(look)}: {request.label}"
        return replace(request, label=label)

    looks = [Look(share, ask) for share in (EARLY, LATE) for ask in ORDER_ASKS]
    task = "the colors of two pictures in their order"
    look = await first_proven(trail, looks, fresh, task=task)
    for colours in PAIRS:
        text = run.tasks.body_text(run.facts.length)
        pictures = [_picture(plants, colour) for colour in colours]
        ways = ((colours, pictures), (colours[::-1], pictures[::-1]))
        (there, back), (there_2, back_2) = (
            [asked(look, text, names, shown_now, nth) for names, shown_now in ways]
            for nth in (0, 1)
        )
        await trail.cold(there)
        await trail.plain(back)
        for one in (there_2, back_2, there, back):
            await trail.warm(one)


# --- what is sent --------------------------------------------------------------------------------


def _takes_images(run: Run) -> None:
    if not run.facts.images:
        raise NotApplicable("the server takes no images")


def _picture(plants: Plants, colour: str) -> bytes:
    """Draw a picture of a colour that no other one equals to the byte."""
    return speckled(COLOURS[colour], plants.number(_PIXELS))


def _coloured(
    look: Look,
    text: str,
    pictures: Sequence[bytes],
    colour: str,
    colours: Sequence[str],
    *,
    label: str,
    turns: Sequence[tuple[str, str]] = (),
) -> Request:
    """Return a request whose right answer is ``colour``, and no other of ``colours``."""
    others = tuple(one for one in colours if one != colour)
    body = {"messages": _messages(look, text, pictures, turns)}
    return Request(label, body, colour, others)


def _messages(
    look: Look, text: str, pictures: Sequence[bytes], turns: Sequence[tuple[str, str]] = ()
) -> list[dict[str, Any]]:
    """Return a text cut at the pictures: what stands before them first, then turns, then they."""
    words = text.split()
    before = max(2, round(len(words) * look.share))  # the opening is two words
    rest = " ".join((*words[before:], look.ask))
    return [
        message("system", " ".join(words[:before])),
        *(
            message(role, told)
            for turn in turns
            for role, told in zip(("user", "assistant"), turn, strict=True)
        ),
        user(*map(shown, pictures), said(rest)),
    ]


def _where(look: Look) -> str:
    return {EARLY: "before the text", MIDDLE: "in the text", LATE: "after the text"}[look.share]


def _asks(count: int) -> Callable[[Facts], int]:
    return lambda facts: count * facts.length if facts.images else 0


IMAGE_LEGS = (
    Leg(
        "image-swap",
        "Three pictures are shown in turns under the same text; each keeps its own color.",
        _asks(9),
        swap,
    ),
    Leg(
        "image-bytes",
        "The same pixels are shown as a wide and as a tall picture; they must not be confused.",
        _asks(5 * len(SIZES)),
        same_bytes,
    ),
    Leg(
        "image-later",
        "A picture comes in the third turn of a chat, then another one in its place.",
        _asks(11),
        later,
    ),
    Leg(
        "image-removed",
        "A picture is taken out of a history and put back; without it nothing of it may show.",
        _asks(4 * len(REMOVED_ROUNDS)),
        removed,
    ),
    Leg(
        "image-order",
        "Two pictures change places; first and second must follow them.",
        _asks(6 * len(PAIRS)),
        order,
    ),
)
