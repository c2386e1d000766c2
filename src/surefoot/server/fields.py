"""Every request field, in one of four tables; docs/API.md is compared with them.

    honoured         changes the answer or its form, as its rule says (``wire`` models)
    fixed            only the one value that asks for nothing more than we do
    without effect   accepted, since ignoring it changes no answer
    refused          would change the answer and is not honoured: refused by name, with the reason

A field in none of them is unknown and refused by name, too. ``null`` is the same as leaving a field
out.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from surefoot.errors import RequestError
from surefoot.server.values import shown

MOST_STOPS = 16
MOST_STOP_CHARACTERS = 256
MOST_TOP_LOGPROBS = 20
MOST_SEED = 2**63 - 1
MOST_TOOLS = 128
SALT_CHARACTERS = 128


def _rule(text: str, **limits: Any) -> Any:
    return Field(default=None, description=text, **limits)


def _needed(text: str, **limits: Any) -> Any:
    return Field(description=text, **limits)


def _any_of(text: str) -> Any:
    """Describe a field of several shapes; ``reading`` checks it by hand."""
    return Field(default=None, description=text)


class Generation(BaseModel):
    """Fields that both endpoints honour; a description is the rule, as errors and docs say it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str = _needed("the id of the served model")
    max_tokens: int | None = _rule("a whole number of at least 1", ge=1)
    temperature: float | None = _rule("a number from 0 to 2", ge=0, le=2)
    top_p: float | None = _rule("a number above 0 and at most 1", gt=0, le=1)
    top_k: int | None = _rule("a whole number of at least 0 (0: off)", ge=0)
    min_p: float | None = _rule("a number from 0 to 1 (0: off)", ge=0, le=1)
    seed: int | None = _rule(f"a whole number from 0 to {MOST_SEED}", ge=0, le=MOST_SEED)
    stop: Any = _any_of(
        f"a string or a list of at most {MOST_STOPS} strings, each of 1 to "
        f"{MOST_STOP_CHARACTERS} characters"
    )
    presence_penalty: float | None = _rule("a number from -2 to 2", ge=-2, le=2)
    frequency_penalty: float | None = _rule("a number from -2 to 2", ge=-2, le=2)
    repetition_penalty: float | None = _rule("a number above 0 and at most 2", gt=0, le=2)
    logit_bias: Any = _any_of("an object from token ids to numbers from -100 to 100")
    stream: bool | None = _rule("true or false")
    stream_options: Any = _any_of(
        "an object with 'include_usage' true or false, only together with 'stream': true"
    )
    cache_salt: Annotated[str | None, Field(pattern=r"^[^@/\\\x00]+$")] = _rule(
        f"a string of 1 to {SALT_CHARACTERS} characters, without @, /, \\ or NUL",
        min_length=1,
        max_length=SALT_CHARACTERS,
    )
    ignore_eos: bool | None = _rule("true or false")


class ChatFields(Generation):
    """What ``/v1/chat/completions`` honours."""

    messages: list[Any] = _needed("a list of at least one message", min_length=1)
    max_completion_tokens: int | None = _rule(
        "a whole number of at least 1, not together with 'max_tokens'", ge=1
    )
    logprobs: bool | None = _rule("true or false")
    top_logprobs: int | None = _rule(
        f"a whole number from 0 to {MOST_TOP_LOGPROBS}, only together with 'logprobs': true",
        ge=0,
        le=MOST_TOP_LOGPROBS,
    )
    tools: list[Any] | None = _rule(
        f"a list of at most {MOST_TOOLS} function tools", max_length=MOST_TOOLS
    )
    tool_choice: Literal["none", "auto"] | None = _rule(
        "'none' or 'auto', and 'auto' only together with 'tools'"
    )


class TextFields(Generation):
    """What ``/v1/completions`` honours."""

    prompt: Any = _needed("a string, a list of one string, a list of token ids, or a list of one")
    logprobs: int | None = _rule(
        f"a whole number from 0 to {MOST_TOP_LOGPROBS}", ge=0, le=MOST_TOP_LOGPROBS
    )
    echo: bool | None = _rule("true or false; true only with a text prompt and no 'logprobs'")


FIXED: Mapping[str, Any] = {"n": 1, "store": False}
CHAT_FIXED: Mapping[str, Any] = {
    **FIXED,
    "response_format": {"type": "text"},
    "modalities": ["text"],
}
TEXT_FIXED: Mapping[str, Any] = {**FIXED, "best_of": 1}

WITHOUT_EFFECT: Mapping[str, str] = {
    "user": "who asks; tenants are told apart by key and `cache_salt`",
    "metadata": "the client's own notes",
    "safety_identifier": "who asks, for a policy we do not have",
    "service_tier": "there is one",
    "prompt_cache_key": "a prefix is found by what it is",
    "prompt_cache_options": "a prefix is found by what it is",
    "prompt_cache_retention": "what is kept is the operator's choice",
}
CHAT_WITHOUT_EFFECT: Mapping[str, str] = {
    **WITHOUT_EFFECT,
    "parallel_tool_calls": "a permission; how many calls are made is the model's choice",
    "prediction": "a hint for speed",
}

_NO_STRUCTURE = "the answer's form is not constrained"
_NO_AUDIO = "this model answers in text only"
REFUSED: Mapping[str, str] = {
    "min_tokens": "an answer ends where the model ends it",
    "stop_token_ids": "an answer ends at 'stop' strings and at the model's own end",
    "guided_json": _NO_STRUCTURE,
    "guided_regex": _NO_STRUCTURE,
    "guided_choice": _NO_STRUCTURE,
    "guided_grammar": _NO_STRUCTURE,
    "prompt_logprobs": "log-probabilities are of the answer only",
    "skip_special_tokens": "special tokens are never shown",
    "use_beam_search": "tokens are chosen one at a time",
}
CHAT_REFUSED: Mapping[str, str] = {
    **REFUSED,
    "functions": "send 'tools'",
    "function_call": "send 'tool_choice'",
    "audio": _NO_AUDIO,
    "moderation": "answers are not moderated",
    "reasoning_effort": "this model has no such control",
    "verbosity": "this model has no such control",
    "web_search_options": "nothing is searched",
    "chat_template": "the model's own template is used",
    "chat_template_kwargs": "the model's own template is used as it is",
    "add_generation_prompt": "the model always speaks next",
    "continue_final_message": "the model always begins a new message",
    "echo": "only /v1/completions can repeat its prompt",
}
TEXT_REFUSED: Mapping[str, str] = {**REFUSED, "suffix": "text is continued, never filled in"}


def sort_out(
    body: Mapping[str, Any],
    *,
    fixed: Mapping[str, Any],
    without_effect: Mapping[str, str],
    refused: Mapping[str, str],
) -> dict[str, Any]:
    """Return the fields that are left to honour, absent ones and nulls left out.

    Raises:
        RequestError: a field is refused, or fixed and not at its one value.
    """
    left = {}
    for name, value in body.items():
        if value is None and (name in fixed or name in refused):
            continue
        if name in refused:
            raise RequestError(f"'{name}' is not supported: {refused[name]}", param=name)
        if name in fixed:
            if type(value) is not type(fixed[name]) or value != fixed[name]:
                raise RequestError(
                    f"'{name}' may only be {shown(fixed[name])}, not {shown(value)}", param=name
                )
        elif name not in without_effect:
            left[name] = value
    return left
