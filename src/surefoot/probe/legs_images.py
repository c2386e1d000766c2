"""Legs of pictures: the text stays the same to the byte, and only what is shown changes.

A picture stands before the long text, so that even large blocks reuse it with the text, or after
it, where weak models still see it: each leg takes the first place and question of its table that
fresh prompts show to work. Fresh are the opening and the pixels, never the colours or the question.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from surefoot.pictures import COLOURS, raw, said, shown, speckled, user
from surefoot.probe.legs import Facts, Leg, Run
from surefoot.probe.plants import Plants
from surefoot.probe.proofs import first_proven, never_seen
from surefoot.probe.tasks import PHRASINGS, Phrasing, message, salted
from surefoot.probe.trail import BudgetEnded, NotApplicable, Request, Trail, Unsettled

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
PAIRED = tuple(colour for pair in PAIRS for colour in pair)
PLACES = ("first", "second")
# The upper half of a picture, and the two quarters under it that change places.
BANDS = (("white", "red", "blue"), ("black", "green", "yellow"))
SIDE = 64  # pixels
SMALL_BLOCK = 16  # tokens; a question behind a picture takes as many
# Some servers keep the features of some pictures only: more than the eight of a small memo.
ROW_PICTURES = 12
ROW_TOKENS = 80
ROW_SALT = "tenant-b"
TURNS = (("Hello", "Hello!"), ("Ping", "Pong"))  # the two turns of text before a picture's
# Width and height; the same bytes are also shown with these exchanged. Small ones may be refused.
SIZES = ((6, 4), (12, 8), (96, 64))
SHAPE_CONTROLS = 2  # of the sizes, where the model cannot tell wide from tall
PIXEL = 3  # bytes
REMOVED_ROUNDS = (True, True, False)  # whether the picture is there first
_PIXELS = 1_000_000  # so many pictures of a colour are told apart
_SHADES = 16


@dataclass(frozen=True, slots=True)
class Look:
    """How pictures are shown: how much of the text stands before them, and what is asked."""

    share: float
    ask: str


@dataclass(frozen=True, slots=True)
class Coloured:
    """A picture, and the name of its colour."""

    colour: str
    picture: bytes


# --- other pictures under one text ---------------------------------------------------------------


async def swap(run: Run, trail: Trail) -> None:
    """Show red, green and blue under one text, in turns; then what else pictures are confused by.

    That is what differs only further down, what is asked at once, and what was shown long before.
    """
    look = await _colour_look(run, trail)
    red, green, blue = _one_text(run, look, SWAPPED)
    await trail.cold(red)
    await trail.plain(green)
    await trail.warm(red)
    await trail.plain(blue)
    for one in (green, red, blue, green, red):
        await trail.warm(one)
    if run.facts.noise_nat is not None:
        await _further_down(run, trail, look)
    at_once = _one_text(run, look, SWAPPED, " of three at once")
    await trail.together(at_once)
    for one in at_once:
        await trail.warm(one)
    await _in_a_row(run, trail, look)


async def _further_down(run: Run, trail: Trail, look: Look) -> None:
    """Show pictures of the same upper half and the same average; only logprobs tell them apart."""
    for colours in BANDS:
        text = run.tasks.body_text(run.facts.length)
        over, one, other = (_shade(run.plants, colour) * (SIDE * SIDE // 4) for colour in colours)
        names = colours[1:]
        donor, accused = (
            Request(
                f"{colours[0]} over {' over '.join(ordered)}",
                {"messages": _messages(look, text, [raw(over * 2 + lower, SIDE, SIDE)])},
            )
            for ordered, lower in ((names, one + other), (names[::-1], other + one))
        )
        first, second = await trail.cold(donor), await trail.plain(accused)
        trail.twins.append((second, first, "the pictures differ in their lower half"))


async def _in_a_row(run: Run, trail: Trail, look: Look) -> None:
    """Show many pictures once each, then again where their features are kept and no prefix is."""
    row = [
        _drawn(run.plants, SWAPPED[run.plants.number(len(SWAPPED))]) for _ in range(ROW_PICTURES)
    ]

    def asked(one: Coloured, label: str) -> Request:
        text = run.tasks.body_text(ROW_TOKENS)
        return _coloured(look, text, [one.picture], one.colour, SWAPPED, label=label)

    again = []
    for number, one in enumerate(row, 1):
        first = asked(one, f"picture {number} of a row")
        seen = await trail.cold(never_seen(first, label=first.label))
        if first.right(seen.reply):
            again.append(
                salted(first, ROW_SALT) if run.facts.salts else asked(one, f"{first.label} again")
            )
    for place in run.plants.shuffled(len(again)):
        await trail.plain(again[place])


def _one_text(run: Run, look: Look, colours: Sequence[str], more: str = "") -> list[Request]:
    """Draw pictures of these colours, and one text that they are shown under."""
    text = run.tasks.body_text(run.facts.length)
    return [
        _coloured(look, text, [picture_of(run.plants, one)], one, SWAPPED, label=f"{one}{more}")
        for one in colours
    ]


async def _colour_look(run: Run, trail: Trail) -> Look:
    """Return how the model sees one picture's colour; the leg's controls are like its proofs."""
    _takes_images(run)

    def fresh(look: Look, proof: int) -> Request:
        colour = SWAPPED[proof % len(SWAPPED)]
        text = run.tasks.body_text(run.facts.length)
        label = f"proof {proof + 1} of a color, {_where(look)}"
        picture = picture_of(run.plants, colour)
        return _coloured(look, text, [picture], colour, SWAPPED, label=label)

    looks = [Look(share, ask) for share in _shares(run.facts) for ask in COLOUR_ASKS]
    task = f"a picture's color in {run.facts.length:,} tokens"
    return await first_proven(trail, looks, fresh, task=task)


def _shares(facts: Facts) -> tuple[float, float]:
    """Return where to show a picture: late, where models see best, if a block ends behind it."""
    if facts.block_tokens and facts.block_tokens <= SMALL_BLOCK:
        return LATE, EARLY
    return EARLY, LATE


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
        for width, height in sizes[:SHAPE_CONTROLS]:
            await _show_that_shapes_count(run, trail, look, (width, height))
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


async def _show_that_shapes_count(
    run: Run, trail: Trail, look: Look, size: tuple[int, int]
) -> None:
    """Show a wide picture, then a tall one of almost the same bytes, which no digest confuses."""
    width, height = size
    text, pixels = run.tasks.body_text(run.facts.length), _halves(run.plants, width, height)
    left, right = pixels[:PIXEL], pixels[PIXEL * (width - 1) : PIXEL * width]
    almost = right + pixels[PIXEL : PIXEL * (width - 1)] + left + pixels[PIXEL * width :]
    one, other = (
        _shaped(look, text, shown_bytes, shape, tells=False, label="whether shapes count: ")
        for shown_bytes, shape in ((pixels, size), (almost, size[::-1]))
    )
    trail.reaching.append((await trail.cold(one), await trail.plain(other)))


async def _shape_look(run: Run, trail: Trail, sizes: Sequence[tuple[int, int]]) -> Look:
    def fresh(look: Look, proof: int) -> Request:
        width, height = sizes[proof // 2 % len(sizes)]
        text = run.tasks.body_text(run.facts.length)
        pixels = _halves(run.plants, width, height)
        size = _in_order(width, height, wide_first=proof % 2 == 0)[0]
        label = f"proof {proof + 1} of a shape, {_where(look)}: "
        return _shaped(look, text, pixels, size, tells=True, label=label)

    looks = [Look(share, SHAPE_ASK) for share in _shares(run.facts)]
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
    """Show a picture in the third turn of a chat of text, then another one there.

    Then the same where one more turn of text follows, if the model still knows the color there.
    """
    _takes_images(run)

    def asked(look: Look, text: str, colour: str, label: str) -> Request:
        picture = picture_of(run.plants, colour)
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
    await _before_the_last_turn(run, trail, look)


async def _before_the_last_turn(run: Run, trail: Trail, look: Look) -> None:
    """Exchange a picture that a whole turn of text follows."""
    greeting, greeted = TURNS[0]

    def asked(look: Look, text: str, colour: str, label: str) -> Request:
        told, picture = replace(look, ask=greeting), picture_of(run.plants, colour)
        before = _coloured(told, text, [picture], colour, SWAPPED, label=label, turns=TURNS)
        after = [message("assistant", greeted), message("user", look.ask)]
        return replace(before, body={"messages": [*before.body["messages"], *after]})

    def fresh(look: Look, proof: int) -> Request:
        text = run.tasks.body_text(run.facts.length)
        label = f"proof {proof + 1} of an earlier turn, {_where(look)}"
        return asked(look, text, SWAPPED[proof % len(SWAPPED)], label)

    looks = [replace(look, share=share) for share in dict.fromkeys((look.share, LATE))]
    task = "the color of a picture in an earlier turn"
    proven = await _also(trail, first_proven(trail, looks, fresh, task=task))
    if proven is not None:
        text = run.tasks.body_text(run.facts.length)
        for colour in SWAPPED:
            await trail.plain(asked(proven, text, colour, f"{colour} in turn 3, asked in turn 4"))


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
        picture = picture_of(plants, colour)
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
    """Show two pictures in one message, in either order, then one of them with another one.

    Text stands before them and after them where the model can: what is restored then ends before
    the pictures at first, and behind them later.
    """
    _takes_images(run)

    def fresh(look: Look, proof: int) -> Request:
        colours = PAIRS[proof % 2][:: 1 if proof < 3 else -1]
        pair = [_drawn(run.plants, colour) for colour in colours]
        request = _paired(look, run.tasks.body_text(run.facts.length), pair, proof // 2 % 2)
        label = f"proof {proof + 1} of two pictures, {_where(look)}: {request.label}"
        return replace(request, label=label)

    looks = [Look(share, ask) for share in (MIDDLE, LATE, EARLY) for ask in ORDER_ASKS]
    task = "the colors of two pictures in their order"
    look = await first_proven(trail, looks, fresh, task=task)
    for colours, (strange, _) in zip(PAIRS, PAIRS[::-1], strict=True):
        text = run.tasks.body_text(run.facts.length)
        one, other, new = (_drawn(run.plants, colour) for colour in (*colours, strange))
        (there, back), (there_2, back_2) = (
            [_paired(look, text, pair, nth) for pair in ((one, other), (other, one))]
            for nth in (0, 1)
        )
        await trail.cold(there)
        await trail.plain(back)
        for request in (there_2, back_2, there, back):
            await trail.warm(request)
        await trail.plain(_paired(look, text, (one, new), 1))
        await trail.plain(_paired(look, text, (new, other), 0))


def _paired(look: Look, text: str, pair: Sequence[Coloured], nth: int) -> Request:
    """Return a request for the colour of one of two pictures."""
    asks = replace(look, ask=look.ask.format(nth=PLACES[nth]))
    colours, pictures = [one.colour for one in pair], [one.picture for one in pair]
    label = f"{' and '.join(colours)}, {PLACES[nth]}"
    return _coloured(asks, text, pictures, colours[nth], PAIRED, label=label)


# --- for the leg that restarts the server --------------------------------------------------------


async def over_a_restart(run: Run, trail: Trail) -> list[Request]:
    """Return red, to be asked before a restart, and blue and another red, to be asked after it.

    There are none if the server takes no pictures, or the model cannot tell their colours.
    """
    look = await _also(trail, _colour_look(run, trail))
    if look is None:
        return []
    return [
        replace(one, label=label)
        for one, label in zip(
            _one_text(run, look, ("red", "blue", "red")),
            ("a red picture", "a blue picture", "another red picture"),
            strict=True,
        )
    ]


async def _also(trail: Trail, proving: Awaitable[Look]) -> Look | None:
    """Return a look that is proven besides a leg's own task, None if there is none."""
    fresh = trail.fresh
    try:
        return await proving
    except BudgetEnded:
        raise
    except (NotApplicable, Unsettled):
        return None
    finally:
        trail.fresh = fresh


# --- what is sent --------------------------------------------------------------------------------


def _takes_images(run: Run) -> None:
    if not run.facts.images:
        raise NotApplicable("the server takes no images")


def picture_of(plants: Plants, colour: str) -> bytes:
    """Draw a picture of a colour that no other one equals to the byte."""
    return speckled(COLOURS[colour], plants.number(_PIXELS))


def _drawn(plants: Plants, colour: str) -> Coloured:
    return Coloured(colour, picture_of(plants, colour))


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


def _swap_cost(facts: Facts) -> int:
    judged_by_bits = 0 if facts.noise_nat is None else 2 * len(BANDS)
    in_a_row = 2 * ROW_PICTURES * ROW_TOKENS if facts.images else 0
    return _asks(15 + judged_by_bits)(facts) + in_a_row


IMAGE_LEGS = (
    Leg(
        "image-swap",
        "Pictures are shown in turns, at once and in a row; each keeps its own color.",
        _swap_cost,
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
        "A picture comes in the third of several turns, then another one in its place.",
        _asks(14),
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
        "Two pictures change places, and one is exchanged; first and second must follow them.",
        _asks(8 * len(PAIRS)),
        order,
    ),
)
