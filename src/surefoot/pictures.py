"""Pictures that need no file: what the demo, the benchmarks, the probe and the tests send.

Each is PNG bytes, the same for the same arguments in every process; nothing is drawn by chance.
"""

import io
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from PIL import Image, ImageDraw, ImageFilter

RGB = tuple[int, int, int]
COLOURS: dict[str, RGB] = {
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "orange": (255, 165, 0),
    "purple": (128, 0, 128),
}
_STEP = 1_103_515_245  # a linear congruential step; all that is asked of it is to be fixed


def solid(colour: RGB, width: int = 64, height: int = 64) -> bytes:
    """Return a picture of one colour."""
    return _png(Image.new("RGB", (width, height), colour))


def raw(pixels: bytes, width: int, height: int) -> bytes:
    """Return the picture whose RGB bytes, row by row, are ``pixels``."""
    return _png(Image.frombytes("RGB", (width, height), pixels))


def speckled(colour: RGB, number: int, width: int = 64, height: int = 64) -> bytes:
    """Return a picture of almost one colour: equal for equal numbers, else different pixels."""
    noise = _noise(number, width * height * 3)
    base = bytes(colour) * (width * height)
    moved = bytes(
        max(0, min(255, value + offset % 17 - 8)) for value, offset in zip(base, noise, strict=True)
    )
    return raw(moved, width, height)


def photo(number: int = 1, width: int = 96, height: int = 96) -> bytes:
    """Return a photo-like picture: a lit sky, a soft red disc in it, and grain."""
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    for row in range(height):
        light = row * 60 // height
        draw.line(((0, row), (width, row)), fill=(light, 60 + light, 200 + light // 2))
    radius = min(width, height) // 3
    box = (width // 2 - radius, height // 2 - radius, width // 2 + radius, height // 2 + radius)
    draw.ellipse(box, fill=(225, 25, 20))
    image = image.filter(ImageFilter.GaussianBlur(1))
    grain = Image.frombytes("L", (width, height), _noise(number, width * height))
    return _png(Image.blend(image, grain.convert("RGB"), 0.04))


def shown(picture: bytes) -> dict[str, Any]:
    """Return a picture as a message part."""
    return {"type": "image_url", "image_url": {"url": data_url(picture)}}


def said(text: str) -> dict[str, Any]:
    """Return text as a message part."""
    return {"type": "text", "text": text}


def data_url(picture: bytes) -> str:
    """Return a PNG as a data URL."""
    return "data:image/png;base64," + b64encode(picture).decode("ascii")


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return a user's message of these parts."""
    return {"role": "user", "content": list(parts)}


def _noise(number: int, count: int) -> bytes:
    return bytes(_walk(number, count))


def _walk(number: int, count: int) -> Iterable[int]:
    state = number * 2_654_435_761 + 12345
    for _ in range(count):
        state = (state * _STEP + 12345) % 2**31
        yield state >> 16 & 255


def _png(image: Image.Image) -> bytes:
    written = io.BytesIO()
    image.save(written, "PNG")
    return written.getvalue()
