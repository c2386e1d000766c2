"""What a client asked to be answered, before it becomes a prompt: plain values, already checked.

The server builds these from wire shapes; ``Chat.prompt`` turns them into tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias


class Role(StrEnum):
    """Who speaks; a closed set, in the words of the API."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call an assistant message made; ``arguments`` is the JSON text as it was sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image file as the client sent it; ``path`` is its place in the request, for refusals.

    Nothing that the client calls it (a URL, a file name, a media type) is kept: it is what it is.
    """

    data: bytes
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; ``content`` is text, or text and images in their order where there are images.

    A list of text parts alone is joined; null becomes ''.
    """

    role: Role
    content: str | tuple[str | Image, ...]
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages and the tools offered with them (JSON schemas as the client sent them)."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class TextInput:
    """A raw text prompt; no template is applied."""

    text: str


@dataclass(frozen=True, slots=True)
class TokensInput:
    """A raw prompt of token ids."""

    tokens: tuple[int, ...]


def images_in(chat: ChatInput) -> list[Image]:
    """Return a conversation's images, in their order."""
    return [
        part
        for message in chat.messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, Image)
    ]


def texts_in(chat: ChatInput) -> list[str]:
    """Return what is said in a conversation's messages, images left out."""
    return [
        part
        for message in chat.messages
        for part in ([message.content] if isinstance(message.content, str) else message.content)
        if isinstance(part, str)
    ]


Input: TypeAlias = ChatInput | TextInput | TokensInput
