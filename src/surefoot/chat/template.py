"""Messages to text, by the template that came with the model.

A template may leave out what it has no place for: tools, tool calls, a message's name, a message of
a role it does not know. Leaving it out would change the answer without a word, so before the real
rendering a small one is made in which every such thing is a canary, and a canary that does not come
out is refused by name. The canaries are short, so this costs little even for a long conversation.
Where there are images, theirs and the texts' places around them are looked at too: an image that is
missing, or that comes out elsewhere than it was sent, is refused.

``tool_call_id``, and the name of a tool message, are passed on and not demanded of a template: many
tell which call a result answers by the order alone.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from surefoot.chat.request import ChatInput, Image, Message, Role, ToolCall
from surefoot.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# What a template that was not written for such a request may raise besides its own error.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError)


class Template:
    """One model's chat template."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        self._tokenizer = tokenizer

    def check(
        self,
        chat: ChatInput,
        *,
        mark: Callable[[Any], Any] = lambda value: value,
        placeholder: str = "",
    ) -> None:
        """Refuse what the template would not render, or not where it was sent.

        Args:
            chat: messages and tools.
            mark: applied to everything that came from the client.
            placeholder: what the template writes for an image; not '' where there are images.

        Raises:
            RequestError: the message names the field.
        """
        canaries = _Canaries()
        small = canaries.of(chat)
        text = self.render(small, mark=mark)
        if canaries.sight:
            _check_sight(canaries.sight, text, placeholder)
        for canary, field in canaries.fields.items():
            if canary not in text:
                raise RequestError(
                    f"this model's chat template does not render '{field}'; the answer would be "
                    "given as if it had not been sent",
                    param=field,
                )

    def render(
        self,
        chat: ChatInput,
        *,
        mark: Callable[[Any], Any] = lambda value: value,
        generation_prompt: bool = True,
    ) -> str:
        """Return the conversation as the model reads it.

        Args:
            chat: messages and tools.
            mark: applied to everything that came from the client.
            generation_prompt: whether the model is to speak next.

        Raises:
            RequestError: the model has no template, or its template refuses the messages.
        """
        if self._tokenizer.chat_template is None:
            raise RequestError(
                "this model has no chat template, so it cannot read 'messages'; send 'prompt' to "
                "/v1/completions",
                param="messages",
            )
        tools = [mark(dict(tool)) for tool in chat.tools] or None
        try:
            template = str(self._tokenizer.get_chat_template(tools=tools))
            knows_developer = "developer" in template
            text: str = self._tokenizer.apply_chat_template(
                [_wire(one, mark, knows_developer=knows_developer) for one in chat.messages],
                tools=tools,
                add_generation_prompt=generation_prompt,
                tokenize=False,
            )
        except _TEMPLATE_ERRORS as error:
            raise RequestError(
                f"this model's chat template refuses 'messages': {error}", param="messages"
            ) from error
        return text


def client_values(chat: ChatInput) -> list[Any]:
    """Return every JSON value of a conversation that a template may render."""
    messages = [_wire(one, lambda value: value, knows_developer=True) for one in chat.messages]
    return [*messages, *(dict(tool) for tool in chat.tools)]


def _wire(message: Message, mark: Callable[[Any], Any], *, knows_developer: bool) -> dict[str, Any]:
    """Return a message in the form that templates read."""
    role = message.role
    if role is Role.DEVELOPER and not knows_developer:
        role = Role.SYSTEM
    wire: dict[str, Any] = {"role": role.value, "content": _content(message, mark)}
    if message.name is not None:
        wire["name"] = mark(message.name)
    if message.tool_call_id is not None:
        wire["tool_call_id"] = mark(message.tool_call_id)
    if message.tool_calls:
        wire["tool_calls"] = [mark(_call(one)) for one in message.tool_calls]
    return wire


def _content(message: Message, mark: Callable[[Any], Any]) -> Any:
    if isinstance(message.content, str):
        return mark(message.content)
    return [
        {"type": "image"} if isinstance(part, Image) else {"type": "text", "text": mark(part)}
        for part in message.content
    ]


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call.arguments)}
    return {"type": "function", "id": call.id, "function": function}


def _arguments(text: str) -> Any:
    """Return the arguments as an object, which is what templates expect; text that is none stays.

    The order of keys is the client's.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or deeper than Python nests
        return text
    return value if isinstance(value, dict) else text


def _check_sight(sight: Sequence[str | Image], text: str, placeholder: str) -> None:
    """Refuse a rendering in which images and the texts of their messages changed places."""
    assert placeholder, "a model that has no placeholder takes no images"
    expected = [placeholder if isinstance(one, Image) else one for one in sight]
    known = "|".join(map(re.escape, dict.fromkeys(expected)))
    found = [one[0] for one in re.finditer(known, text)]
    for at, (wanted, rendered) in enumerate(zip_longest(expected, found)):
        if wanted != rendered:
            nearest = next(
                one for one in chain(sight[at:], reversed(sight[:at])) if isinstance(one, Image)
            )
            raise RequestError(
                f"this model's chat template does not render '{nearest.path}' where it was sent; "
                "the model would see other images there, or none",
                param=nearest.path,
            )


class _Canaries:
    """Stand-ins for what a template must render, and the field each stands for.

    ``sight`` is the order in which the messages that hold images must come out: canaries of their
    texts, and the images themselves.
    """

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.sight: list[str | Image] = []

    def of(self, chat: ChatInput) -> ChatInput:
        """Return a small conversation of the same build."""
        messages = tuple(self._message(index, one) for index, one in enumerate(chat.messages))
        return ChatInput(messages, tuple(self._tool(tool) for tool in chat.tools))

    def _message(self, index: int, message: Message) -> Message:
        path = f"messages[{index}]"
        small = message
        if isinstance(message.content, tuple):
            small = replace(small, content=self._parts(message.content, f"{path}.content"))
        elif message.content:
            small = replace(small, content=self._new(f"{path}.content"))
        if message.name is not None and message.role is not Role.TOOL:
            small = replace(small, name=self._new(f"{path}.name"))
        return replace(small, tool_calls=self._calls(message.tool_calls, f"{path}.tool_calls"))

    def _parts(self, parts: Sequence[str | Image], path: str) -> tuple[str | Image, ...]:
        small = tuple(one if isinstance(one, Image) else self._new(path) for one in parts)
        if not any(isinstance(one, str) for one in small):
            # Images alone look alike: without a text, two messages could change places.
            small = (*small, self._new(path))
        self.sight += small
        return small

    def _calls(self, calls: Sequence[ToolCall], path: str) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                call.id,
                self._new(f"{path}[{index}]"),
                json.dumps({self._new(f"{path}[{index}].function.arguments"): 1}),
            )
            for index, call in enumerate(calls)
        )

    def _tool(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**tool, "function": {**tool["function"], "name": self._new("tools")}}

    def _new(self, field: str) -> str:
        canary = f"canary{len(self.fields):06}"
        self.fields[canary] = field
        return canary
