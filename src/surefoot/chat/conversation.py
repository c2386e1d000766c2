"""``Chat``: everything between messages and tokens, bound to one tokenizer."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from surefoot.chat.answer import AnswerReader
from surefoot.chat.images import ImageLimits
from surefoot.chat.pieces import Pieces
from surefoot.chat.request import (
    ChatInput,
    Input,
    Message,
    Role,
    TextInput,
    TokensInput,
    images_in,
    texts_in,
)
from surefoot.chat.template import Template, client_values
from surefoot.chat.tokenizer import Encoder, Marker, strings_in
from surefoot.chat.vision import TextOnly, Vision, load_vision
from surefoot.errors import RequestError, SetupError
from surefoot.prompt import MediaItem, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Two next messages that begin differently: what both renderings share, any next turn begins with.
_NEXT = ("a", "\n1")


def load_chat(source: str, *, limits: ImageLimits | None = None, sees: bool = True) -> "Chat":
    """Load a model's tokenizer, and its image processor where it has one.

    Args:
        source: a local folder, or a hub id.
        limits: of one request's images; the defaults where None.
        sees: whether the model's vision tower, if it has one, can be run.

    Raises:
        SetupError: there is no tokenizer that can be used.
    """
    # Imported late: transformers takes seconds to load, and most of the rooms above never need it.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: PLC0415

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise SetupError(f"{source}: no tokenizer could be loaded: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise SetupError(
            f"{source}: the tokenizer is a {type(tokenizer).__name__}; Surefoot needs one that has "
            "a tokenizer.json"
        )
    if not sees:
        return Chat(tokenizer)
    return Chat(tokenizer, load_vision(source, tokenizer, limits or ImageLimits()))


class Chat:
    """Makes prompts of requests and text of tokens; for one thread at a time."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", vision: Vision | TextOnly | None = None
    ) -> None:
        self._vision = vision or TextOnly()
        self._template = Template(tokenizer)
        self._encoder = Encoder(tokenizer.backend_tokenizer)
        self._pieces = Pieces(tokenizer.backend_tokenizer)

    @property
    def tokens(self) -> int:
        """The number that every token id is below."""
        return self._encoder.tokens

    @property
    def takes_images(self) -> bool:
        """Whether messages may hold images."""
        return isinstance(self._vision, Vision)

    def least_tokens(self, request: Input) -> int:
        """Return how many tokens a request makes at least, at the cost of looking at lengths.

        Encoding megabytes takes seconds; what cannot fit is known before.
        """
        match request:
            case ChatInput():
                images = len(images_in(request))
                return self._encoder.least_tokens(texts_in(request)) + images
            case TextInput(text):
                return self._encoder.least_tokens([text])
            case TokensInput(tokens):
                return len(tokens)

    def media(self, request: Input) -> Iterator[MediaItem]:
        """Yield what the vision tower consumes of each image, in order; nothing for text.

        Each ``next`` decodes and preprocesses one image.

        Raises:
            TooLarge: an image, or their count, exceeds a limit.
            RequestError: an image cannot be read, or the model takes none; ``param`` is its path.
        """
        images = images_in(request) if isinstance(request, ChatInput) else []
        if isinstance(self._vision, TextOnly):
            self._vision.refuse(images)
        else:
            yield from self._vision.items(images)

    def prompt(self, request: Input, media: Sequence[MediaItem] = ()) -> Prompt:
        """Return the tokens a model will see; it may be empty for an empty raw prompt.

        Args:
            request: what was asked.
            media: what ``media`` yielded for it.

        Raises:
            RequestError: the request cannot become a prompt; ``param`` names the field.
        """
        match request:
            case ChatInput():
                return self._conversation(request, media)
            case TextInput(text):
                return self._raw(self._encoder.raw(text, param="prompt"))
            case TokensInput(tokens):
                return self._raw(self._given(tokens))

    def history(
        self, request: Input, answer: str, media: Sequence[MediaItem] = ()
    ) -> Prompt | None:
        """Return what the next turn of this conversation will begin with.

        Rendered as a next turn will render it, with a message of the user's after the answer, since
        a template may treat the last answer differently. None for a raw prompt, or where the
        template has no such rendering.

        Args:
            request: what was asked.
            answer: what was said.
            media: what ``media`` yielded for the request.
        """
        if not isinstance(request, ChatInput):
            return None
        said = (*request.messages, Message(role=Role.ASSISTANT, content=answer))
        asked = [(*said, Message(role=Role.USER, content=text)) for text in _NEXT]
        try:
            one, other = (self._rendered(ChatInput(turns, request.tools)) for turns in asked)
        except RequestError:
            return None
        pairs = zip(one, other, strict=False)
        shared = [left for left, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        if isinstance(self._vision, TextOnly):
            return Prompt.of(shared)
        if self._vision.places(one) != len(media):
            return None
        return self._vision.expanded(shared, media)

    def reader(self, stop: tuple[str, ...]) -> AnswerReader:
        """Start reading an answer that ends at any of these strings."""
        return AnswerReader(self._pieces.decoding(), stop)

    def token_text(self, token: int) -> tuple[str, bytes]:
        """Return one token's text and the bytes it stands for; half a character reads as U+FFFD."""
        return self._pieces.shown(token)

    def _conversation(self, chat: ChatInput, media: Sequence[MediaItem]) -> Prompt:
        images = images_in(chat)
        marker = self._marker(chat)
        if isinstance(self._vision, TextOnly):
            self._vision.refuse(images)
            self._template.check(chat, mark=marker.put)
            return Prompt.of(self._tokens(chat, marker))
        assert len(media) == len(images), (len(media), len(images))
        placeholder = self._vision.placeholder.spelled
        self._template.check(chat, mark=marker.put, placeholder=placeholder)
        tokens = self._tokens(chat, marker)
        if self._vision.places(tokens) != len(images):
            raise RequestError(
                f"this model's chat template writes {self._vision.places(tokens)} images where "
                f"'messages' holds {len(images)}",
                param="messages",
            )
        return self._vision.expanded(tokens, media)

    def _rendered(self, chat: ChatInput) -> list[int]:
        return self._tokens(chat, self._marker(chat))

    def _marker(self, chat: ChatInput) -> Marker:
        strings = (one for value in client_values(chat) for one in strings_in(value))
        return self._encoder.marker(strings, param="messages")

    def _tokens(self, chat: ChatInput, marker: Marker) -> list[int]:
        text = self._template.render(chat, mark=marker.put)
        return self._encoder.rendered(text, marker, param="messages")

    def _raw(self, tokens: list[int]) -> Prompt:
        if isinstance(self._vision, Vision):
            self._vision.refuse_reserved(tokens)
        return Prompt.of(tokens)

    def _given(self, tokens: Sequence[int]) -> list[int]:
        for index, token in enumerate(tokens):
            if not 0 <= token < self.tokens:
                raise RequestError(
                    f"'prompt[{index}]' is {token}; this model's tokens are 0 to {self.tokens - 1}",
                    param="prompt",
                )
        return list(tokens)
