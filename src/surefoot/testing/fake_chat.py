"""A chat room without a tokenizer: one token per byte, so that lengths are plain to see."""

from surefoot.chat.request import ChatInput, Input, TextInput, TokensInput
from surefoot.errors import RequestError
from surefoot.prompt import Prompt


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

    def prompt(self, request: Input) -> Prompt:
        """Return one token per byte of the rendered messages."""
        match request:
            case ChatInput():
                if not request.messages:
                    raise RequestError("'messages' is empty", param="messages")
                return _letters(_render(request) + "a:")
            case TextInput():
                return _letters(request.text)
            case TokensInput():
                return Prompt.of(request.tokens)

    def history(self, request: ChatInput, answer: str) -> Prompt | None:
        """Return the messages and the answer, as the next turn will begin."""
        return _letters(_render(request) + f"a:{answer};")

    def reader(self, stop: tuple[str, ...]) -> FakeReader:
        """Start reading an answer."""
        return FakeReader(stop)

    def token_text(self, token: int) -> tuple[str, bytes]:
        """Return the token's letter."""
        letter = chr(33 + token % 90)
        return letter, letter.encode()


def _render(request: ChatInput) -> str:
    return "".join(f"{one.role.value[0]}:{one.content};" for one in request.messages)


def _letters(text: str) -> Prompt:
    return Prompt.of(text.encode("utf-8"))
