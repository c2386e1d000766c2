"""Messages and tools on the wire, read one by one; every refusal names its place.

Roles are a closed set, and so are the keys of each. Keys that the API's own answers carry (so that
clients send them back) may be null. A list of text parts is joined without anything in between.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from surefoot.chat.request import Message, Role, ToolCall
from surefoot.errors import RequestError, TooLarge
from surefoot.server.values import only, text, wrong

KEYS: Mapping[Role, frozenset[str]] = {
    Role.SYSTEM: frozenset({"role", "content", "name"}),
    Role.DEVELOPER: frozenset({"role", "content", "name"}),
    Role.USER: frozenset({"role", "content", "name"}),
    Role.ASSISTANT: frozenset({"role", "content", "name", "tool_calls"}),
    Role.TOOL: frozenset({"role", "content", "name", "tool_call_id"}),
}
# An answer of the API carries these; sent back they are null or empty, and mean nothing then.
ECHOED = frozenset({"refusal", "annotations", "audio", "function_call"})
MEDIA_PARTS = frozenset({"image_url", "input_audio", "video_url", "file", "image", "audio"})
FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAME_RULE = "a string of 1 to 64 letters, digits, '_', '.' or '-'"


def read_messages(listed: list[Any], most: int) -> tuple[Message, ...]:
    """Return the messages of a chat request.

    Raises:
        RequestError: one of them is wrong.
        TooLarge: there are more than ``most``.
    """
    if len(listed) > most:
        raise TooLarge(
            f"'messages' holds {len(listed)} messages; at most {most} are read", param="messages"
        )
    return tuple(_message(f"messages[{index}]", one) for index, one in enumerate(listed))


def read_tools(listed: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of a chat request, as they were sent.

    Raises:
        RequestError: one of them is wrong.
    """
    return tuple(_tool(f"tools[{index}]", one) for index, one in enumerate(listed))


def _message(path: str, value: Any) -> Message:
    if not isinstance(value, dict):
        wrong(path, value, "an object")
    role = _role(f"{path}.role", value.get("role"))
    value = {key: one for key, one in value.items() if key not in ECHOED or one not in (None, [])}
    only(path, value, KEYS[role])
    calls = _list(f"{path}.tool_calls", value.get("tool_calls"), _call)
    may_be_null = bool(calls)
    return Message(
        role=role,
        content=_content(f"{path}.content", value.get("content"), may_be_null=may_be_null),
        name=_optional_text(f"{path}.name", value.get("name")),
        tool_calls=calls,
        tool_call_id=_optional_text(f"{path}.tool_call_id", value.get("tool_call_id")),
    )


def _role(path: str, value: Any) -> Role:
    roles = [role.value for role in Role]
    if not isinstance(value, str) or value not in roles:
        wrong(path, value, f"one of {', '.join(roles)}")
    return Role(value)


def _content(path: str, value: Any, *, may_be_null: bool) -> str:
    if value is None and may_be_null:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        wrong(path, value, "a string or a list of text parts")
    return "".join(_part(f"{path}[{index}]", one) for index, one in enumerate(value))


def _part(path: str, value: Any) -> str:
    if not isinstance(value, dict):
        wrong(path, value, "an object")
    kind = value.get("type")
    if kind in MEDIA_PARTS:
        raise RequestError(f"this model takes text only: '{path}' is of type {kind!r}", param=path)
    if kind != "text":
        wrong(f"{path}.type", kind, "'text'")
    only(path, value, ("type", "text"))
    return text(f"{path}.text", value.get("text"))


def _call(path: str, value: Any) -> ToolCall:
    if not isinstance(value, dict):
        wrong(path, value, "an object")
    only(path, value, ("id", "type", "function", "index"))
    if value.get("type", "function") != "function":
        wrong(f"{path}.type", value["type"], "'function'")
    function = value.get("function")
    if not isinstance(function, dict):
        wrong(f"{path}.function", function, "an object")
    only(f"{path}.function", function, ("name", "arguments"))
    return ToolCall(
        id=text(f"{path}.id", value.get("id")),
        name=text(f"{path}.function.name", function.get("name")),
        arguments=text(f"{path}.function.arguments", function.get("arguments")),
    )


def _tool(path: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        wrong(path, value, "an object")
    only(path, value, ("type", "function"))
    if value.get("type") != "function":
        wrong(f"{path}.type", value.get("type"), "'function'")
    function = value.get("function")
    if not isinstance(function, dict):
        wrong(f"{path}.function", function, "an object")
    path = f"{path}.function"
    only(path, function, ("name", "description", "parameters", "strict"))
    name = text(f"{path}.name", function.get("name"), NAME_RULE)
    if not FUNCTION_NAME.fullmatch(name):
        wrong(f"{path}.name", name, NAME_RULE)
    _optional_text(f"{path}.description", function.get("description"))
    if not isinstance(function.get("parameters", {}), dict):
        wrong(f"{path}.parameters", function["parameters"], "an object")
    if function.get("strict") not in (None, False):
        wrong(f"{path}.strict", function["strict"], "false: calls are not constrained to a schema")
    return value


def _list(path: str, value: Any, read: Callable[[str, Any], ToolCall]) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        wrong(path, value, "a list")
    return tuple(read(f"{path}[{index}]", one) for index, one in enumerate(value))


def _optional_text(path: str, value: Any) -> str | None:
    return None if value is None else text(path, value)
