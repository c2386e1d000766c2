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


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; ``content`` is text (a list of text parts is joined, null becomes '')."""

    role: Role
    content: str
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


Input: TypeAlias = ChatInput | TextInput | TokensInput
