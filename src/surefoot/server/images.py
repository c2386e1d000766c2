"""Images on the wire: a data URL is the file itself, an http(s) URL is where to fetch it.

Every refusal names the image, by its number from 1 in the request's order and by its place. A data
URL is read strictly: base64 of the standard alphabet, with its padding and without line breaks. The
media type must be an image's and is not believed otherwise: what a file is, its own bytes say.
Nothing else is read: no path, no other scheme.
"""

import re
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from surefoot.chat.request import ChatInput, Image, Role
from surefoot.errors import RequestError, TooLarge
from surefoot.server.limits import Limits
from surefoot.server.values import only, shown

SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,30}):", re.IGNORECASE)
IMAGE_TYPE = re.compile(r"image/[a-z0-9.+-]{1,80}", re.IGNORECASE)
NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=]")
HEAD_CHARACTERS = 200  # of a data URL, before its data: a media type and its parameters
DETAIL = "the model's own processor decides the resolution, so only 'auto' is honoured"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an image stands in its request; it reads as refusals name it."""

    number: int
    path: str

    def __str__(self) -> str:
        return f"image {self.number} ({self.path})"

    def refusal(self, why: str) -> RequestError:
        """Return the error that refuses this image; the sentence begins with its name."""
        return RequestError(f"{self} {why}", param=self.path)

    def too_large(self, why: str) -> TooLarge:
        """Return the error that refuses this image for its size."""
        return TooLarge(f"{self} {why}", param=self.path)


@dataclass(frozen=True, slots=True)
class Remote:
    """An image that is still to be fetched; its URL is where it is, never what it is."""

    place: Place
    url: str


class ImageReader:
    """Reads the images of one request, one by one, in their order."""

    def __init__(self, limits: Limits, *, takes_images: bool, fetches: bool) -> None:
        self._limits = limits
        self._takes_images = takes_images
        self._fetches = fetches
        self._number = 0
        self._file_bytes = 0
        self.remote: list[Remote] = []
        self.characters = 0  # of the body, in data URLs

    def read_part(self, path: str, part: Mapping[str, Any], role: Role) -> Image:
        """Return the image of a part of type ``image_url``; one to be fetched is still empty.

        Raises:
            RequestError: it is refused; the message names it and the reason.
            TooLarge: it is over a limit, or one too many.
        """
        place = self._next(path)
        if role is not Role.USER:
            raise place.refusal(f"is in a message of role '{role}': only a user's are read")
        only(path, part, ("type", "image_url"))
        url = self._url(place, part.get("image_url"))
        scheme = SCHEME.match(url)
        match scheme[1].lower() if scheme else None:
            case "data":
                return self._data_url(place, url)
            case "http" | "https":
                return self._remote(place, url)
            case "file" | None:
                raise place.refusal(
                    "is no data: URL, and this server reads no files: send the picture itself, as "
                    "'data:image/png;base64,' followed by its bytes in base64"
                )
            case other:
                raise place.refusal(f"is a {other}: URL: send data:image/...;base64,")

    def read_base64(self, path: str, data: str, media_type: str) -> Image:
        """Return an image that was sent as base64 beside its media type.

        Raises:
            RequestError: it is refused; the message names it and the reason.
            TooLarge: it is over a limit, or one too many.
        """
        return self._file(self._next(path), data, media_type)

    def take(self, place: Place, nbytes: int) -> None:
        """Count bytes of an image file.

        Raises:
            TooLarge: this request's files are over their limit together.
        """
        self._file_bytes += nbytes
        most = self._limits.files_bytes
        if self._file_bytes > most:
            raise place.too_large(f"is too much: one request's images have at most {most:,} bytes")

    def _next(self, path: str) -> Place:
        if not self._takes_images:
            raise RequestError(f"this model takes text only: '{path}' is an image", param=path)
        self._number += 1
        place = Place(self._number, path)
        if self._number > self._limits.images:
            raise place.too_large(f"is one too many: at most {self._limits.images} are read")
        return place

    def _url(self, place: Place, value: Any) -> str:
        path = f"{place.path}.image_url"
        if isinstance(value, str):
            return value
        if not isinstance(value, dict):
            raise place.refusal(
                "has an 'image_url' that is neither a URL nor an object with a 'url'"
            )
        only(path, value, ("url", "detail"))
        if value.get("detail") not in (None, "auto"):
            detail = shown(value["detail"])
            raise place.refusal(f"has the 'detail' {detail}: {DETAIL}")
        if not isinstance(value.get("url"), str):
            raise place.refusal("has an 'image_url' whose 'url' is no string")
        return str(value["url"])

    def _remote(self, place: Place, url: str) -> Image:
        if not self._fetches:
            raise place.refusal(
                "is an http(s) URL, and this server fetches none: send data:image/...;base64, or "
                "start the server with --image-urls public"
            )
        self.remote.append(Remote(place, url))
        return Image(b"", place.path)

    def _data_url(self, place: Place, url: str) -> Image:
        comma = url.find(",", 0, HEAD_CHARACTERS)
        media_type, *parameters = url[len("data:") : max(comma, 0)].split(";")
        if comma < 0 or not parameters or parameters[-1].lower() != "base64":
            raise place.refusal("is a data: URL without base64: send data:image/...;base64,")
        self.characters += len(url)
        return self._file(place, url[comma + 1 :], media_type)

    def _file(self, place: Place, data: str, media_type: str) -> Image:
        if not IMAGE_TYPE.fullmatch(media_type):
            raise place.refusal(
                f"is of the media type {shown(media_type)}, which is not an image's: send a picture"
            )
        if not data:
            raise place.refusal("is empty")
        if len(data) % 4:
            raise _not_base64(place, data)
        nbytes = len(data) // 4 * 3 - data[-2:].count("=")
        if nbytes > self._limits.image_bytes:
            most = self._limits.image_bytes
            raise place.too_large(f"has {nbytes:,} bytes; at most {most:,} are read of one image")
        self.take(place, nbytes)
        return Image(_decoded(place, data), place.path)


def with_files(chat: ChatInput, files: Mapping[str, bytes]) -> ChatInput:
    """Return a chat whose images hold what was fetched for them, by their paths."""
    messages = []
    for message in chat.messages:
        content = message.content
        if not isinstance(content, str):
            content = tuple(
                part
                if isinstance(part, str)
                else replace(part, data=files.get(part.path, part.data))
                for part in content
            )
        messages.append(replace(message, content=content))
    return replace(chat, messages=tuple(messages))


def _decoded(place: Place, data: str) -> bytes:
    try:
        return a2b_base64(data, strict_mode=True)
    except ValueError:
        raise _not_base64(place, data) from None


def _not_base64(place: Place, data: str) -> RequestError:
    found = NOT_BASE64.search(data)
    if found and found[0] in "\r\n":
        why = f"a line break at character {found.start()}: send it in one line"
    elif found:
        why = f"{found[0]!a} at character {found.start()}; its alphabet ends in '+' and '/'"
    elif len(data) % 4:
        why = f"{len(data)} characters, no multiple of 4: it was cut, or its padding was left out"
    else:
        why = "'=' before its end"
    return place.refusal(f"is not base64: it has {why}")
