"""Generators that training never saw, for the part of the evaluation that is reported apart.

Other fonts, pictures that are no flat colour, other shapes' edges, names that no list has, and real
prose: the repository's licence and paragraphs written by hand.
"""

import math
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from models.spark import words
from models.spark.conversation import IMAGE, Conversation, Exchange
from models.spark.facts import LETTERS, PLAIN, QUESTION
from models.spark.fonts import Fonts, sized
from models.spark.pictures import CANONICAL, COLORS, RGB, SHAPES

LICENSE = Path(__file__).parents[2] / "LICENSE"
PARAGRAPHS = (
    "The tide had gone out further than anyone could remember, leaving boats tilted in the mud. "
    "Two children walked along the sand with a bucket, counting crabs; they stopped at 37 because "
    "the smaller one was tired. Their grandmother waved from the pier at half past six.",
    "To make the dough, mix 500 grams of flour with 320 millilitres of lukewarm water, a spoonful "
    "of salt and a little yeast. Knead it for ten minutes, cover it, and let it rest overnight. "
    "Bake at 230 degrees until the crust sounds hollow when you knock on it.",
    "Dear Ms. Hollander, thank you for your enquiry of 14 March. Your parcel (tracking 882910-44) "
    "left our warehouse on Tuesday and should arrive within three working days. If it does not, "
    "please quote the reference above when you write to us. Kind regards, the dispatch team.",
    "Photosynthesis turns light into chemical energy. Chlorophyll absorbs mostly red and blue; "
    "what is reflected makes leaves look green. A hectare of maize may fix several tonnes of "
    "carbon in a season, although much of it is released again by respiration and decay.",
    "2026-11-03T08:15:42Z WARN scheduler: queue depth 412 exceeds limit 400, shedding load\n"
    "2026-11-03T08:15:43Z INFO scheduler: resumed after 1.27 s\n"
    "2026-11-03T08:16:09Z ERROR disk: write of 65536 bytes failed, device sdb1 is full",
    "He had been the lighthouse keeper for thirty-one years, and in all that time the lamp had "
    "failed only once. On that night, he liked to say, the moon did the work for him. Nobody "
    "believed the story, yet nobody ever asked him to stop telling it either.",
    "def area(width, height):\n    # both in metres\n    if width < 0 or height < 0:\n"
    "        raise ValueError('negative size')\n    return width * height\n\nprint(area(12, 30))",
    "Minutes of the annual meeting. Present: nine members. The treasurer reported an income of "
    "104,250 and expenses of 98,731. It was agreed to repaint the hall, to ask for three quotes, "
    "and to move the summer fair to the second weekend in July. Next meeting: 19:30, room 204.",
    "Q: How far is it to the nearest town?\nA: Roughly eleven kilometres by the valley road, or "
    "seven if you take the old path over the ridge. In winter the path is closed.\n"
    "Q: Is there a bus?\nA: Twice a day, at 7:05 and 16:40, but never on holidays.",
    "The experiment was repeated with larger samples (n = 1,204), and the effect shrank to about a "
    "third of its original size. Whether that is due to chance, to a weaker manipulation, or to "
    "the different population is unclear; we discuss all three possibilities below.",
    "Between the wars the factory made bicycles, then sewing machines, then nothing at all. In "
    "1962 a painter rented the upper floor for a song. By the time the roof was mended, forty "
    "artists worked there and the council had begun to call it a quarter.",
    "| item | qty | unit price |\n| bolts M8 | 250 | 0.12 |\n| brackets | 16 | 3.40 |\n"
    "| paint, grey, 5 l | 2 | 27.95 |\nTotal without tax: 140.30. Delivery in week 48.",
)
NEW_NAMES: tuple[str, ...] = tuple(
    """
    almond buffalo cactus dolphin elbow ferret gravel hornet inkwell jigsaw kayak ladder magnet
    needle otter pepper quiver rabbit saddle turnip urchin velvet wagon yogurt zebra button candle
    donkey feather goblet
    """.split()  # noqa: SIM905
)


def real_prose(rng: Random, characters: int) -> str:
    """Return about this many characters of the licence or of paragraphs written by hand."""
    if rng.random() < 0.4:
        source = " ".join(LICENSE.read_text().split())
        start = source.index(" ", rng.randrange(len(source) - characters - 100)) + 1
        return source[start : source.index(" ", start + characters)]
    text = ""
    while len(text) < characters:
        text += ("\n\n" if text else "") + rng.choice(PARAGRAPHS)
    end = text.find(" ", characters)
    return text if end < 0 else text[:end]


def tinted_scene(rng: Random, fonts: Fonts) -> Conversation:
    """Ask the colour of something like a photograph: one hue, uneven light, blotches, grain."""
    del fonts
    color = rng.choice(COLORS)
    width, height = rng.randint(60, 320), rng.randint(60, 320)
    noise = np.random.default_rng(rng.getrandbits(32))
    # Light from one side, a few levels of blotches, and grain.
    angle, strength = rng.uniform(0, 2 * math.pi), rng.uniform(10, 45)
    down, across = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    light = strength * (down * math.sin(angle) + across * math.cos(angle))
    coarse = noise.normal(128, 40, (8, 8)).clip(0, 255).astype(np.uint8)
    blotches = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    light = light + (blotches.astype(float) - 128) * rng.uniform(0.1, 0.35)
    base = np.array(rng.choice(CANONICAL[color]), float)
    levels = base * 0.9 + 12 + light[..., None] + noise.normal(0, 6, (height, width, 3))
    image = Image.fromarray(levels.clip(0, 255).astype(np.uint8)).filter(
        ImageFilter.GaussianBlur(1)
    )
    return _seen(image, "One word: what color?", color.capitalize())


def other_shape(rng: Random, fonts: Fonts, *, ask: str) -> Conversation:
    """Ask about a shape drawn otherwise: turned, softened, stretched, on a striped background."""
    del fonts
    name = rng.choice(SHAPES)
    ink, paper = rng.choice(
        (("red", "white"), ("blue", "yellow"), ("black", "orange"), ("green", "black"))
    )
    side = rng.randint(64, 200)
    middle, radius = side / 2, side * rng.uniform(0.28, 0.42)
    corners = {
        "circle": [
            (math.cos(turn / 30 * math.pi), math.sin(turn / 30 * math.pi)) for turn in range(60)
        ],
        "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
        "triangle": [(0, -1), (0.9, 0.8), (-0.9, 0.8)],
        "cross": _cross(0.3),
    }[name]
    tilt = math.radians(rng.uniform(-8, 8))
    stretch = rng.uniform(0.9, 1.1)
    placed = [
        (
            middle + radius * stretch * (x * math.cos(tilt) - y * math.sin(tilt)),
            middle + radius / stretch * (x * math.sin(tilt) + y * math.cos(tilt)),
        )
        for x, y in corners
    ]
    image = Image.new("RGB", (side, side), CANONICAL[paper][0])
    draw = ImageDraw.Draw(image)
    for line in range(0, side, 6):
        draw.line((0, line, side, line), fill=_dimmed(CANONICAL[paper][0]))
    draw.polygon(placed, fill=CANONICAL[ink][0])
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.5)))
    if ask == "shape":
        return _seen(image, "What shape?", name.capitalize())
    return _seen(image, "What color is the shape?", ink.capitalize())


def clean_digit(rng: Random, fonts: Fonts) -> Conversation:
    """Ask for a black digit on white, 96 px, within four pixels of the middle."""
    value = rng.randrange(10)
    image = Image.new("RGB", (96, 96), "white")
    font = sized(rng.choice(fonts), 80)
    left, top, right, bottom = font.getbbox(str(value))
    x = (96 - (right - left)) / 2 - left + rng.uniform(-4, 4)
    y = (96 - (bottom - top)) / 2 - top + rng.uniform(-4, 4)
    ImageDraw.Draw(image).text((x, y), str(value), font=font, fill="black")
    return _seen(image, "Which digit?", str(value))


def new_name_facts(rng: Random) -> Conversation:
    """Ask for a name out of ten to thirty lines whose names no training list has."""
    chosen = rng.sample(NEW_NAMES, rng.randint(10, 30))
    codes = {
        name: f"{rng.choice(LETTERS)}{rng.choice(LETTERS)}-{rng.randint(100, 999)}"
        for name in chosen
    }
    lines = [
        PLAIN.format(name=name, code=code, day=rng.choice(words.DAYS))
        for name, code in codes.items()
    ]
    asked = rng.choice(chosen)
    question = "\n".join(lines) + "\n\n" + QUESTION.format(name=asked)
    return Conversation(Exchange(question, codes[asked]).turns)


def _seen(image: Image.Image, question: str, answer: str) -> Conversation:
    return Conversation(Exchange(IMAGE + question, answer).turns, (image,))


def _cross(half: float) -> list[tuple[float, float]]:
    arm = [(-half, -1), (half, -1), (half, -half), (1, -half), (1, half), (half, half)]
    return [*arm, *[(-x, -y) for x, y in arm]]


def _dimmed(color: RGB) -> RGB:
    red, green, blue = (int(level * 0.88) + 8 for level in color)
    return red, green, blue
