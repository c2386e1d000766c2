"""OpenAI's shapes for the broken server: a body becomes a turn, tokens become chunks or a body."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.testing.broken_engine import Turn
from surefoot.testing.broken_faults import Behaviour
from surefoot.testing.broken_prompt import BadRequestError, Patch, rendered
from surefoot.testing.broken_state import TOP_MOST, Said

MODEL = "broken"
ANSWER_TOKENS = 128  # where the request does not say
SALT_MOST = 128  # characters


class RefusedError(Exception):
    """The request is refused; ``shown`` is the body in OpenAI's shape."""

    def __init__(self, status: int, message: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status != 401 else "authentication_error"
        self.shown = {"error": {"message": message, "type": kind, "param": param, "code": None}}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, understood.

    Attributes:
        turn: for the engine.
        id: of the completion.
        stream: whether it comes in chunks.
        usage: whether a stream ends with its usage.
        top: how many likely tokens to show, None for no logprobs at all.
    """

    turn: Turn
    id: str
    stream: bool
    usage: bool
    top: int | None


def read_ask(body: bytes, behaviour: Behaviour, *, key: str | None, number: int) -> Ask:
    """Return what a body asks for.

    Raises:
        RefusedError: it cannot be understood, or this server does not do it.
    """
    try:
        fields = json.loads(body)
    except ValueError:
        raise RefusedError(400, "the body is no JSON", None) from None
    if not isinstance(fields, dict):
        raise RefusedError(400, "the body is no object", None)
    if fields.get("model", MODEL) != MODEL:
        raise RefusedError(404, f"the model {fields['model']!r} is not served here", "model")
    top = fields.get("top_logprobs") or 0
    if not isinstance(top, int) or not 0 <= top <= TOP_MOST:
        raise RefusedError(400, f"top_logprobs is 0 to {TOP_MOST}", "top_logprobs")
    options = fields.get("stream_options") or {}
    shows = behaviour.offers_logprobs and fields.get("logprobs") is True
    return Ask(
        turn=_turn(fields, behaviour, key),
        id=f"chatcmpl-{number}",
        stream=fields.get("stream") is True,
        usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        top=top if shows else None,
    )


def _turn(fields: Mapping[str, Any], behaviour: Behaviour, key: str | None) -> Turn:
    messages, tools = fields.get("messages"), fields.get("tools") or []
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages is a list of at least one", "messages")
    if not isinstance(tools, list) or (tools and not behaviour.knows_tools):
        raise RefusedError(400, "tools are not supported", "tools")
    kwargs = fields.get("chat_template_kwargs") or {}
    thinking = kwargs.get("enable_thinking") if behaviour.knows_thinking else None
    if thinking not in (None, True, False):
        raise RefusedError(400, "enable_thinking is true or false", "chat_template_kwargs")
    most = fields.get("max_completion_tokens") or fields.get("max_tokens") or ANSWER_TOKENS
    if not isinstance(most, int) or most < 1:
        raise RefusedError(400, "max_tokens is a whole number above 0", "max_tokens")
    try:
        prompt = rendered(
            messages, tools=tools, thinking=thinking, digits=behaviour.digits_together
        )
    except BadRequestError as error:
        raise RefusedError(400, str(error), error.param) from error
    if not behaviour.sees_images and any(isinstance(one, Patch) for one in prompt.tokens):
        raise RefusedError(400, "this model does not take images", "messages")
    count = len(prompt.tokens)
    if count > behaviour.context:
        message = f"the prompt has {count} tokens, the longest has {behaviour.context}"
        raise RefusedError(400, message, "messages")
    return Turn(prompt, (key, _salt(fields, behaviour)), most)


def _salt(fields: Mapping[str, Any], behaviour: Behaviour) -> str | None:
    salt = fields.get("cache_salt")
    if salt is None or not behaviour.knows_salts:
        return None
    if not isinstance(salt, str) or not 1 <= len(salt) <= SALT_MOST:
        message = f"cache_salt is a string of 1 to {SALT_MOST} characters"
        raise RefusedError(400, message, "cache_salt")
    return salt


async def chunks(ask: Ask, said: AsyncIterator[Said], behaviour: Behaviour) -> AsyncIterator[bytes]:
    """Yield a streamed answer's events; closed early, it cancels the turn."""
    closing: Any = said
    try:
        first = True
        async for one in said:
            if first:
                yield _event(ask, _choice({"role": "assistant", "content": ""}))
            first = False
            yield _event(ask, _choice({"content": one.token}, logprobs=_shown([one], ask.top)))
        if first:
            yield _event(ask, _choice({"role": "assistant", "content": ""}))
        yield _event(ask, _choice({}, finish=ask.turn.finish))
        if ask.usage:
            yield _event(ask, None, usage=_usage(ask.turn, behaviour))
        yield b"data: [DONE]\n\n"
    finally:
        await closing.aclose()


def plain_body(ask: Ask, said: Sequence[Said], behaviour: Behaviour) -> bytes:
    """Return a whole answer's body."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(one.token for one in said)},
        "logprobs": _shown(said, ask.top),
        "finish_reason": ask.turn.finish,
    }
    head = {"id": ask.id, "object": "chat.completion", "created": 0, "model": MODEL}
    return as_json(head | {"choices": [choice], "usage": _usage(ask.turn, behaviour)})


def as_json(value: Any) -> bytes:
    """Return a value's JSON, without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def _event(ask: Ask, choice: dict[str, Any] | None, *, usage: Any = None) -> bytes:
    head = {"id": ask.id, "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    whole = head | {"choices": [] if choice is None else [choice], "usage": usage}
    return b"data: " + as_json(whole) + b"\n\n"


def _choice(
    delta: dict[str, Any], *, logprobs: Any = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _shown(said: Sequence[Said], top: int | None) -> dict[str, Any] | None:
    if top is None:
        return None
    content = [
        _token(one.token, one.logprob)
        | {"top_logprobs": [_token(*likely) for likely in one.top[:top]]}
        for one in said
    ]
    return {"content": content}


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": [*text.encode()]}


def _usage(turn: Turn, behaviour: Behaviour) -> dict[str, Any]:
    prompt, said = len(turn.prompt.tokens), turn.said_tokens
    cached = {"cached_tokens": turn.cached_tokens} if behaviour.offers_counters else None
    return {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": cached,
    }
