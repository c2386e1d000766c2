"""Messages to tokens, for the broken server: a template, a tokenizer, pictures.

A token is its text, or one patch of a picture. Only the template makes special tokens: the
tokenizer cuts what a user wrote into pieces too small to be one.
"""

import base64
import binascii
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from surefoot import pictures

COLOURS = {name.capitalize(): value for name, value in pictures.COLOURS.items()}
PATCHES = 8  # tokens of a picture, whatever its size
THINK = {None: (), True: ("<|think|>",), False: ("<|no_think|>",)}
ROLES = ("system", "developer", "user", "assistant", "tool")
_PIECES = {
    digits: re.compile(rf"\s?(?:[^\W\d]+|\d{{1,{digits}}}|[^\w\s])|\s") for digits in (1, 2, 3)
}


class BadRequestError(Exception):
    """The request is refused; ``param`` names the field."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class Picture(NamedTuple):
    """The pixels of one image: ``rgb`` [height, width, 3], one byte each."""

    width: int
    height: int
    rgb: bytes

    @property
    def shape(self) -> str:
        """Return what the picture is more of: ``wide``, ``tall`` or ``square``."""
        if self.width == self.height:
            return "square"
        return "wide" if self.width > self.height else "tall"

    @property
    def colour(self) -> str:
        """Return the colour that most pixels are nearest to."""
        pixels = Image.frombytes("RGB", (self.width, self.height), self.rgb)
        votes = dict.fromkeys(COLOURS, 0)
        for count, pixel in pixels.getcolors(self.width * self.height) or ():
            assert isinstance(pixel, tuple)
            votes[min(COLOURS, key=lambda name: _distance(COLOURS[name], pixel))] += count
        return max(votes, key=lambda name: votes[name])


class Patch(NamedTuple):
    """One token of a picture."""

    picture: Picture
    place: int


Token = str | Patch


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model consumes.

    Attributes:
        tokens: all of it.
        preface: how many leading tokens are the tools.
        tag: how many tokens before the last one tell whether to think.
    """

    tokens: tuple[Token, ...]
    preface: int
    tag: int

    @property
    def bare(self) -> tuple[str, ...]:
        """Return the tokens that are no picture's."""
        return tuple(token for token in self.tokens if isinstance(token, str))


def cut_text(text: str, digits: int) -> list[str]:
    """Return a text's tokens: words, numbers of at most ``digits``, single marks."""
    return _PIECES[digits].findall(text)


def rendered(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Any] = (),
    thinking: bool | None = None,
    digits: int = 3,
) -> Prompt:
    """Return the prompt of a conversation; tools come first, the thinking tag last but one.

    Raises:
        BadRequestError: a message cannot be understood, or an image cannot be read.
    """
    tokens: list[Token] = []
    if tools:
        listed = json.dumps(tools, sort_keys=True)
        tokens += ["<|tools|>", *cut_text(listed, digits), "<|end|>"]
    preface = len(tokens)
    for place, one in enumerate(messages):
        where = f"messages[{place}]"
        if not isinstance(one, Mapping) or one.get("role") not in ROLES:
            raise BadRequestError(f"{where} has no role that is known", where)
        tokens.append(f"<|{one['role']}|>")
        tokens += _content(one.get("content"), where, digits)
        tokens.append("<|end|>")
    tag = THINK[thinking]
    return Prompt((*tokens, *tag, "<|assistant|>"), preface, len(tag))


def _content(content: object, where: str, digits: int) -> list[Token]:
    if content is None:
        return []
    if isinstance(content, str):
        return [*cut_text(content, digits)]
    if not isinstance(content, list):
        raise BadRequestError(f"{where}.content is neither a string nor a list of parts", where)
    tokens: list[Token] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            tokens += cut_text(part["text"], digits)
        elif kind == "image_url":
            picture = _picture(part.get("image_url"), where)
            tokens += [Patch(picture, place) for place in range(PATCHES)]
        else:
            raise BadRequestError(f"{where} has a part of unknown type {kind!r}", where)
    return tokens


def _picture(image_url: object, where: str) -> Picture:
    url = image_url.get("url") if isinstance(image_url, Mapping) else image_url
    head, comma, data = url.partition(";base64,") if isinstance(url, str) else ("", "", "")
    if not comma or not head.startswith("data:"):
        raise BadRequestError(f"{where}: an image is a data: URL in base64", where)
    try:
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
            whole = image.convert("RGB")
    except (binascii.Error, OSError, ValueError, Image.DecompressionBombError) as error:
        raise BadRequestError(f"{where}: the image cannot be read: {error}", where) from error
    return Picture(*whole.size, whole.tobytes())


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
