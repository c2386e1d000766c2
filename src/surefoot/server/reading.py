"""A request's body and headers to a ``TurnRequest``, and the form its answer must have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from surefoot.chat.request import ChatInput, TextInput, TokensInput
from surefoot.errors import ModelNotFound, RequestError
from surefoot.identity import KeyId
from surefoot.scheduler import CacheMode, Sampling, TurnRequest
from surefoot.server import fields
from surefoot.server.config import ServerConfig
from surefoot.server.fields import ChatFields, Generation, TextFields
from surefoot.server.images import ImageReader
from surefoot.server.messages import read_messages, read_tools
from surefoot.server.values import only, parse_fields, rule_of, shown, wrong

CACHE_HEADER = "x-surefoot-cache"
DEFAULT_TEXT_TOKENS = 16  # what OpenAI's /v1/completions gives when 'max_tokens' is absent
SAMPLING_NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
UINT32 = 2**32  # the room that a token id has in a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A turn to run, and how to show it; ``images`` knows which of its images are to be fetched."""

    turn: TurnRequest
    stream: bool
    usage_chunk: bool
    echo: str = ""
    images: ImageReader | None = None


def read_chat(
    body: Mapping[str, Any],
    headers: Headers,
    config: ServerConfig,
    key: KeyId | None,
    *,
    takes_images: bool,
) -> Asked:
    """Read the body of ``/v1/chat/completions``.

    Raises:
        RequestError: a field is wrong, refused or unknown; the message names it.
        TooLarge: there are too many messages or images, or an image is too large.
    """
    left = fields.sort_out(
        body,
        fixed=fields.CHAT_FIXED,
        without_effect=fields.CHAT_WITHOUT_EFFECT,
        refused=fields.CHAT_REFUSED,
    )
    wire = parse_fields(ChatFields, left)
    check_model(wire.model, config)
    if wire.max_tokens is not None and wire.max_completion_tokens is not None:
        raise RequestError(
            "'max_tokens' and 'max_completion_tokens' mean the same; send one of them",
            param="max_completion_tokens",
        )
    if wire.top_logprobs is not None and not wire.logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs': true", param="top_logprobs")
    fetches = config.fetcher is not None
    images = ImageReader(config.limits, takes_images=takes_images, fetches=fetches)
    messages = read_messages(wire.messages, config.limits.messages, images)
    tools = read_tools(wire.tools or [])
    if wire.tool_choice == "auto" and not tools:
        raise RequestError("'tool_choice' 'auto' needs 'tools'", param="tool_choice")
    # With 'none' the tools stay out of the prompt: what a model has not read it does not call.
    chat = ChatInput(messages, () if wire.tool_choice == "none" else tools)
    most = wire.max_tokens if wire.max_completion_tokens is None else wire.max_completion_tokens
    turn = TurnRequest(
        id=f"chatcmpl-{config.random_id()}",
        input=chat,
        sampling=_sampling(wire, config, (wire.top_logprobs or 0) if wire.logprobs else None),
        max_tokens=most,
        key=key,
        **_shared(wire, headers),
    )
    return Asked(turn=turn, stream=bool(wire.stream), usage_chunk=_usage_chunk(wire), images=images)


def read_text(
    body: Mapping[str, Any], headers: Headers, config: ServerConfig, key: KeyId | None
) -> Asked:
    """Read the body of ``/v1/completions``.

    Raises:
        RequestError: a field is wrong, refused or unknown; the message names it.
    """
    left = fields.sort_out(
        body,
        fixed=fields.TEXT_FIXED,
        without_effect=fields.WITHOUT_EFFECT,
        refused=fields.TEXT_REFUSED,
    )
    wire = parse_fields(TextFields, left)
    check_model(wire.model, config)
    prompt = _prompt(wire.prompt)
    turn = TurnRequest(
        id=f"cmpl-{config.random_id()}",
        input=prompt,
        sampling=_sampling(wire, config, wire.logprobs),
        max_tokens=DEFAULT_TEXT_TOKENS if wire.max_tokens is None else wire.max_tokens,
        key=key,
        **_shared(wire, headers),
    )
    echo = _echo(wire, prompt)
    return Asked(turn=turn, stream=bool(wire.stream), usage_chunk=_usage_chunk(wire), echo=echo)


def check_model(model: str, config: ServerConfig) -> None:
    """Refuse any model but the served one.

    Raises:
        ModelNotFound: it is another one.
    """
    if model != config.model:
        raise ModelNotFound(
            f"the model {shown(model)} is not served here; {shown(config.model)} is", param="model"
        )


def _shared(wire: Generation, headers: Headers) -> dict[str, Any]:
    """Read what both endpoints take alike."""
    return {
        "stop": _stop(wire.stop),
        "ignore_eos": bool(wire.ignore_eos),
        "mode": _mode(headers),
        "cache_salt": wire.cache_salt,
    }


def _sampling(wire: Generation, config: ServerConfig, top_logprobs: int | None) -> Sampling:
    numbers = wire.model_dump(include=set(SAMPLING_NUMBERS), exclude_none=True)
    return Sampling(
        **numbers,
        seed=config.random_seed() if wire.seed is None else wire.seed,
        logit_bias=_logit_bias(wire.logit_bias),
        top_logprobs=top_logprobs,
    )


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    listed = [value] if isinstance(value, str) else value
    sized = isinstance(listed, list) and len(listed) <= fields.MOST_STOPS
    if not sized or not all(_is_stop(one) for one in listed):
        wrong("stop", value, rule_of(Generation, "stop"))
    return tuple(listed)


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= fields.MOST_STOP_CHARACTERS


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    rule = rule_of(Generation, "logit_bias")
    if not isinstance(value, dict):
        wrong("logit_bias", value, rule)
    biases = {}
    for token, bias in value.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_number or not -100 <= bias <= 100:
            wrong(f"logit_bias.{token[:20]}", bias, "a number from -100 to 100", param="logit_bias")
        if not (token.isascii() and token.isdecimal()) or int(token[:11]) >= UINT32:
            wrong("logit_bias", value, rule)
        biases[int(token)] = float(bias)
    return biases


def _prompt(value: Any) -> TextInput | TokensInput:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        [value] = value
    if isinstance(value, str):
        return TextInput(value)
    if isinstance(value, list) and value and all(_is_token(one) for one in value):
        return TokensInput(tuple(value))
    wrong("prompt", value, rule_of(TextFields, "prompt"))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < UINT32


def _echo(wire: TextFields, prompt: TextInput | TokensInput) -> str:
    if not wire.echo:
        return ""
    if wire.logprobs is not None:
        raise RequestError(
            "'echo' with 'logprobs' is not supported: log-probabilities are of the answer only",
            param="echo",
        )
    if not isinstance(prompt, TextInput):
        raise RequestError("'echo' needs 'prompt' to be a string", param="echo")
    return prompt.text


def _usage_chunk(wire: Generation) -> bool:
    options = wire.stream_options
    if options is None:
        return False
    if not isinstance(options, dict):
        wrong("stream_options", options, rule_of(Generation, "stream_options"))
    if not wire.stream:
        raise RequestError("'stream_options' needs 'stream': true", param="stream_options")
    # Padding against eavesdroppers is a form of OpenAI's that hides nothing here; false asks for
    # none.
    only("stream_options", options, ("include_usage", "include_obfuscation"))
    for name, allowed in (("include_usage", (True, False)), ("include_obfuscation", (False,))):
        value = options.get(name)
        if value is not None and (not isinstance(value, bool) or value not in allowed):
            rule = " or ".join(shown(one) for one in allowed)
            wrong(f"stream_options.{name}", value, rule, param="stream_options")
    return bool(options.get("include_usage"))


def _mode(headers: Headers) -> CacheMode:
    sent: Sequence[str] = headers.getlist(CACHE_HEADER)
    modes = [mode.value for mode in CacheMode]
    if not sent:
        return CacheMode.USE
    if len(sent) > 1 or sent[0] not in modes:
        wrong(CACHE_HEADER, ", ".join(sent), f"one of {', '.join(modes)}")
    return CacheMode(sent[0])
