"""``Chat``: everything between messages and tokens, bound to one tokenizer."""

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from surefoot.chat.answer import AnswerReader
from surefoot.chat.pieces import Pieces
from surefoot.chat.request import ChatInput, Input, Message, Role, TextInput, TokensInput
from surefoot.chat.template import Template, client_values
from surefoot.chat.tokenizer import Encoder, strings_in
from surefoot.errors import RequestError, SetupError
from surefoot.prompt import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Two next messages that begin differently: what both renderings share, any next turn begins with.
_NEXT = ("a", "\n1")


def load_chat(source: str) -> "Chat":
    """Load the tokenizer of a model: a local folder, or a hub id.

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
    return Chat(tokenizer)


class Chat:
    """Makes prompts of requests and text of tokens; for one thread at a time."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        self._template = Template(tokenizer)
        self._encoder = Encoder(tokenizer.backend_tokenizer)
        self._pieces = Pieces(tokenizer.backend_tokenizer)

    @property
    def tokens(self) -> int:
        """The number that every token id is below."""
        return self._encoder.tokens

    def least_tokens(self, request: Input) -> int:
        """Return how many tokens a request makes at least, at the cost of looking at lengths.

        Encoding megabytes takes seconds; what cannot fit is known before.
        """
        match request:
            case ChatInput():
                return self._encoder.least_tokens(one.content for one in request.messages)
            case TextInput(text):
                return self._encoder.least_tokens([text])
            case TokensInput(tokens):
                return len(tokens)

    def prompt(self, request: Input) -> Prompt:
        """Return the tokens a model will see; it may be empty for an empty raw prompt.

        Raises:
            RequestError: the request cannot become a prompt; ``param`` names the field.
        """
        match request:
            case ChatInput():
                self._template.check(request)
                return Prompt.of(self._rendered(request))
            case TextInput(text):
                return Prompt.of(self._encoder.raw(text, param="prompt"))
            case TokensInput(tokens):
                return self._given(tokens)

    def history(self, request: Input, answer: str) -> Prompt | None:
        """Return what the next turn of this conversation will begin with.

        Rendered as a next turn will render it, with a message of the user's after the answer, since
        a template may treat the last answer differently. None for a raw prompt, or where the
        template has no such rendering.
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
        return Prompt.of(left for left, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def reader(self, stop: tuple[str, ...]) -> AnswerReader:
        """Start reading an answer that ends at any of these strings."""
        return AnswerReader(self._pieces.decoding(), stop)

    def token_text(self, token: int) -> tuple[str, bytes]:
        """Return one token's text and the bytes it stands for; half a character reads as U+FFFD."""
        return self._pieces.shown(token)

    def _rendered(self, chat: ChatInput) -> list[int]:
        strings = (one for value in client_values(chat) for one in strings_in(value))
        marker = self._encoder.marker(strings, param="messages")
        text = self._template.render(chat, mark=marker.put)
        return self._encoder.rendered(text, marker, param="messages")

    def _given(self, tokens: Sequence[int]) -> Prompt:
        for index, token in enumerate(tokens):
            if not 0 <= token < self.tokens:
                raise RequestError(
                    f"'prompt[{index}]' is {token}; this model's tokens are 0 to {self.tokens - 1}",
                    param="prompt",
                )
        return Prompt.of(tokens)
