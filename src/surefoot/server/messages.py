"""Messages and tools on the wire, read one by one; every refusal names its place.

Roles are a closed set, and so are the keys of each. Keys that the API's own answers carry (so that
clients send them back) may be null. Text parts that stand side by side are joined without anything
in between; images keep their places among them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from surefoot.chat.request import Image, Message, Role, ToolCall
from surefoot.errors import RequestError, TooLarge
from surefoot.server.images import ImageReader
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
# Parts of other media, or of other APIs; what they ask for is not done here.
OTHER_PARTS: Mapping[str, str] = {
    "image": "send 'image_url'",
    "input_image": "send 'image_url'",
    "input_audio": "no model here listens",
    "audio": "no model here listens",
    "video_url": "no model here watches videos",
    "file": "files are not read",
}
FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAME_RULE = "a string of 1 to 64 letters, digits, '_', '.' or '-'"


def read_messages(listed: list[Any], most: int, images: ImageReader) -> tuple[Message, ...]:
    """Return the messages of a chat request.

    Raises:
        RequestError: one of them is wrong.
        TooLarge: there are more than ``most``, or more tool calls than that in all of them, or an
            image is over a limit.
    """
    if len(listed) > most:
        raise TooLarge(
            f"'messages' holds {len(listed)} messages; at most {most} are read", param="messages"
        )
    messages = []
    calls = 0
    for index, one in enumerate(listed):
        messages.append(_message(f"messages[{index}]", one, images))
        calls += len(messages[-1].tool_calls)
        if calls > most:
            path = f"messages[{index}].tool_calls"
            raise TooLarge(f"'{path}' is too much: at most {most} calls are read", param=path)
    return tuple(messages)


def read_tools(listed: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of a chat request, as they were sent.

    Raises:
        RequestError: one of them is wrong.
    """
    return tuple(_tool(f"tools[{index}]", one) for index, one in enumerate(listed))


def _message(path: str, value: Any, images: ImageReader) -> Message:
    if not isinstance(value, dict):
        wrong(path, value, "an object")
    role = _role(f"{path}.role", value.get("role"))
    value = {key: one for key, one in value.items() if key not in ECHOED or one not in (None, [])}
    only(path, value, KEYS[role])
    calls = _list(f"{path}.tool_calls", value.get("tool_calls"), _call)
    content = value.get("content")
    if content is None and calls:
        content = ""
    return Message(
        role=role,
        content=_content(f"{path}.content", content, role, images),
        name=_optional_text(f"{path}.name", value.get("name")),
        tool_calls=calls,
        tool_call_id=_optional_text(f"{path}.tool_call_id", value.get("tool_call_id")),
    )


def _role(path: str, value: Any) -> Role:
    roles = [role.value for role in Role]
    if not isinstance(value, str) or value not in roles:
        wrong(path, value, f"one of {', '.join(roles)}")
    return Role(value)


def _content(
    path: str, value: Any, role: Role, images: ImageReader
) -> str | tuple[str | Image, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        wrong(path, value, "a string or a list of text and image parts")
    parts = [_part(f"{path}[{index}]", one, role, images) for index, one in enumerate(value)]
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else tuple(_joined(parts))


def _part(path: str, value: Any, role: Role, images: ImageReader) -> str | Image:
    if not isinstance(value, dict):
        wrong(path, value, "an object")
    kind = value.get("type")
    if kind == "image_url":
        return images.read_part(path, value, role)
    if isinstance(kind, str) and kind in OTHER_PARTS:
        raise RequestError(f"'{path}' is of type {kind!r}: {OTHER_PARTS[kind]}", param=path)
    if kind != "text":
        wrong(f"{path}.type", kind, "'text' or 'image_url'")
    only(path, value, ("type", "text"))
    return text(f"{path}.text", value.get("text"))


def _joined(parts: list[str | Image]) -> Iterator[str | Image]:
    """Yield images and the text between them, where there is any."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        if any(texts):
            yield "".join(texts)
        texts.clear()
        yield part
    if any(texts):
        yield "".join(texts)


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
