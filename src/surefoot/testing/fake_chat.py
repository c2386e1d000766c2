"""A chat room without a tokenizer: one token per byte, so that lengths are plain to see.

An image is its bytes; its first byte says how many placeholder tokens stand for it.
"""

from collections.abc import Iterator, Sequence

from surefoot import identity
from surefoot.chat.request import ChatInput, Image, Input, TextInput, TokensInput, images_in
from surefoot.errors import RequestError
from surefoot.prompt import MediaItem, MediaSpan, Prompt

PLACEHOLDER = 1


class FakeReader:
    """Turns tokens back into letters; a stop string is one letter."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self.stopped = False

    def push(self, token: int) -> str:
        """Return the token's letter, unless it is a stop letter."""
        letter = chr(33 + token % 90)
        self.stopped = letter in self._stop
        return "" if self.stopped else letter

    def finish(self) -> str:
        """Return what was held back: nothing."""
        return ""


class FakeChat:
    """``role:content;`` per message; the last message must be the user's."""

    tokens = 256

    def least_tokens(self, request: Input) -> int:
        """Return what is known before encoding: nothing."""
        return 0

    def media(self, request: Input) -> Iterator[MediaItem]:
        """Yield an item per image; an empty image cannot be read."""
        for image in images_in(request) if isinstance(request, ChatInput) else ():
            if not image.data:
                raise RequestError(f"image at {image.path} is empty", param=image.path)
            yield image_item(image.data)

    def prompt(self, request: Input, media: Sequence[MediaItem] = ()) -> Prompt:
        """Return one token per byte of the rendered messages."""
        match request:
            case ChatInput():
                if not request.messages:
                    raise RequestError("'messages' is empty", param="messages")
                return _laid_out([*_render(request), "a:"], media)
            case TextInput():
                return _laid_out([request.text], ())
            case TokensInput():
                return Prompt.of(request.tokens)

    def history(
        self, request: ChatInput, answer: str, media: Sequence[MediaItem] = ()
    ) -> Prompt | None:
        """Return the messages and the answer, as the next turn will begin."""
        return _laid_out([*_render(request), f"a:{answer};"], media)

    def reader(self, stop: tuple[str, ...]) -> FakeReader:
        """Start reading an answer."""
        return FakeReader(stop)

    def token_text(self, token: int) -> tuple[str, bytes]:
        """Return the token's letter."""
        letter = chr(33 + token % 90)
        return letter, letter.encode()


def image_item(data: bytes) -> MediaItem:
    """Return the item that an image's bytes make."""
    tokens = data[0] % 9 + 1
    name = identity.media_name(b"fake", "uint8", (len(data),), (tokens,), data)
    return MediaItem(name, "image", tokens, "uint8", (len(data),), (tokens,), data)


def _render(request: ChatInput) -> list[str | Image]:
    pieces: list[str | Image] = []
    for one in request.messages:
        content = (one.content,) if isinstance(one.content, str) else one.content
        pieces += [f"{one.role.value[0]}:", *content, ";"]
    return pieces


def _laid_out(pieces: Sequence[str | Image], media: Sequence[MediaItem]) -> Prompt:
    ids: list[int] = []
    spans: list[MediaSpan] = []
    for piece in pieces:
        if isinstance(piece, str):
            ids += piece.encode()
        else:
            item = media[len(spans)]
            spans.append(MediaSpan(len(ids), item.tokens, item.name))
            ids += [PLACEHOLDER] * item.tokens
    return Prompt.of(ids, tuple(spans))
