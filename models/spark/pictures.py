"""Small synthetic pictures, each with the facts that a question may ask for.

Eight colours, four shapes, ten digits. A colour's name covers a box of RGB values; boxes do not
touch, and pairs that look alike never meet in one picture.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from models.spark.fonts import Fonts, sized

RGB: TypeAlias = tuple[int, int, int]
Range: TypeAlias = tuple[int, int]

COLORS = ("red", "green", "blue", "yellow", "black", "white", "orange", "purple")
SHAPES = ("circle", "square", "triangle", "cross")

# What a person types for a colour: drawn in three pictures of ten, the ranges below otherwise.
CANONICAL: dict[str, tuple[RGB, ...]] = {
    "red": ((255, 0, 0), (220, 20, 20)),
    "green": ((0, 255, 0), (0, 128, 0), (20, 160, 40)),
    "blue": ((0, 0, 255), (30, 60, 220)),
    "yellow": ((255, 255, 0), (240, 220, 20)),
    "black": ((0, 0, 0),),
    "white": ((255, 255, 255),),
    "orange": ((255, 165, 0), (255, 128, 0), (255, 140, 0)),
    "purple": ((128, 0, 128), (160, 32, 240), (110, 20, 140)),
}
RANGES: dict[str, tuple[Range, Range, Range]] = {
    "red": ((190, 255), (0, 45), (0, 50)),
    "green": ((0, 60), (115, 255), (0, 70)),
    "blue": ((0, 60), (0, 90), (170, 255)),
    "yellow": ((225, 255), (210, 255), (0, 60)),
    "black": ((0, 35), (0, 35), (0, 35)),
    "white": ((225, 255), (225, 255), (225, 255)),
    "orange": ((235, 255), (115, 172), (0, 40)),
    "purple": ((100, 170), (0, 50), (120, 240)),
}
ALIKE = (
    {"red", "orange"},
    {"orange", "yellow"},
    {"blue", "purple"},
    {"black", "purple"},
    {"white", "yellow"},
)

# Five by seven dots, the digits of a small display.
DOTS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


@dataclass(frozen=True, slots=True)
class Picture:
    """An RGB image and what it shows; what it does not show is None."""

    image: Image.Image
    color: str
    background: str | None = None
    shape: str | None = None
    digit: int | None = None


Painter: TypeAlias = Callable[[Random, Fonts], Picture]


def solid(rng: Random, fonts: Fonts) -> Picture:
    """Paint one colour over everything, from 4x4 to 256x256 pixels."""
    del fonts
    color = rng.choice(COLORS)
    if rng.random() < 0.5:
        width = height = rng.choice((32, 48, 64, 64, 96, 128, 200, 256, 4, 8, 16))
    else:
        width, height = rng.randint(8, 256), rng.randint(8, 256)
    if max(width, height) / min(width, height) > 6:
        width = height
    image = Image.new("RGB", (width, height), tint(color, rng))
    return Picture(_grainy(image, rng, share=0.175), color)


def shape(rng: Random, fonts: Fonts) -> Picture:
    """Paint one shape of one colour on a background of another."""
    del fonts
    width, height = _canvas(rng, square=0.6, smallest=40)
    color, background = _two_colors(rng)
    name = rng.choice(SHAPES)
    image = Image.new("RGB", (width, height), tint(background, rng))
    radius = min(width, height) * rng.uniform(0.24, 0.46)
    centre = _somewhere(rng, width, radius), _somewhere(rng, height, radius)
    if rng.random() < 0.3:
        centre = width / 2, height / 2
    _paint_shape(ImageDraw.Draw(image), name, centre, radius, fill=tint(color, rng), rng=rng)
    return Picture(_grainy(image, rng, share=0.35), color, background, shape=name)


def digit(rng: Random, fonts: Fonts) -> Picture:
    """Paint one digit: dots or one of the fonts, anywhere, in any two colours, large or small."""
    width, height = _canvas(rng, square=0.75, smallest=48)
    value = rng.randrange(10)
    if rng.random() < 0.5:
        color, background = rng.choice((("black", "white"), ("white", "black")))
    else:
        color, background = _two_colors(rng)
    image = Image.new("RGB", (width, height), tint(background, rng))
    ink, shortest = tint(color, rng), min(width, height)
    if rng.random() < 0.25:
        dot_px = max(2, int(shortest * rng.uniform(0.6, 0.95) / 7))
        mask = _dots(value, dot_px)
        place = _place(rng, width - mask.width), _place(rng, height - mask.height)
        image.paste(ink, (int(place[0]), int(place[1])), mask)
    else:
        size_px = max(8, int(shortest * rng.uniform(0.7, 1.05)) // 4 * 4)
        font = sized(rng.choice(fonts), size_px)
        left, top, right, bottom = font.getbbox(str(value))
        place = _place(rng, width - (right - left)), _place(rng, height - (bottom - top))
        corner = place[0] - left, place[1] - top
        ImageDraw.Draw(image).text(corner, str(value), font=font, fill=ink)
    return Picture(_grainy(image, rng, share=0.35), color, background, digit=value)


def tint(color: str, rng: Random) -> RGB:
    """Return an RGB value that bears the colour's name."""
    if rng.random() < 0.3:
        return rng.choice(CANONICAL[color])
    red, green, blue = (int(rng.uniform(low, high)) for low, high in RANGES[color])
    return red, green, blue


def _two_colors(rng: Random) -> tuple[str, str]:
    while True:
        first, second = rng.sample(COLORS, 2)
        if {first, second} not in ALIKE:
            return first, second


def _canvas(rng: Random, *, square: float, smallest: int, largest: int = 160) -> tuple[int, int]:
    if rng.random() < 0.35:
        side = rng.choice((32, 48, 64, 64, 96, 128, 128, 256))
        return side, side
    if rng.random() < square:
        side = rng.randint(smallest, largest)
        return side, side
    return rng.randint(smallest, largest), rng.randint(smallest, largest)


def _somewhere(rng: Random, length: int, radius: float) -> float:
    if length <= 2 * radius + 2:
        return length / 2
    return rng.uniform(radius + 1, length - radius - 1)


def _place(rng: Random, room: float) -> float:
    """Return an offset within the room: anywhere or in the middle, evenly."""
    return rng.uniform(0, max(0.0, room)) if rng.random() < 0.5 else room / 2


def _paint_shape(
    draw: ImageDraw.ImageDraw,
    name: str,
    centre: tuple[float, float],
    radius: float,
    *,
    fill: RGB,
    rng: Random,
) -> None:
    x, y = centre

    def box(half_width: float, half_height: float) -> tuple[float, float, float, float]:
        return x - half_width, y - half_height, x + half_width, y + half_height

    if name == "circle":
        draw.ellipse(box(radius, radius), fill=fill)
    elif name == "square":
        half = radius * rng.uniform(0.8, 1)
        draw.rectangle(box(half, half), fill=fill)
    elif name == "triangle":
        low = y + radius * 0.9
        draw.polygon(((x, y - radius), (x - radius, low), (x + radius, low)), fill=fill)
    else:
        half = radius * rng.uniform(0.22, 0.4)
        draw.rectangle(box(radius, half), fill=fill)
        draw.rectangle(box(half, radius), fill=fill)


def _dots(value: int, dot_px: int) -> Image.Image:
    rows = [[int(dot) for dot in row] for row in DOTS[value].split()]
    return Image.fromarray(
        np.kron(np.array(rows, np.uint8), np.ones((dot_px, dot_px), np.uint8)) * 255
    )


def _grainy(image: Image.Image, rng: Random, *, share: float) -> Image.Image:
    """Add normal noise of 2 to 12 levels to this share of the pictures."""
    if rng.random() >= share:
        return image
    noise = np.random.default_rng(rng.getrandbits(32))
    levels = np.asarray(image).astype(np.int16)
    levels = levels + noise.normal(0, rng.uniform(2, 12), levels.shape).astype(np.int16)
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))
