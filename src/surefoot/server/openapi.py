"""``/openapi.json``: what this server takes and gives, built from the tables that decide it.

Fields, ranges and rules come from ``fields``, statuses from ``refusals``, the receipt from its own
dataclass; by hand stands only what those leave open: values of several shapes, and the shapes of
answers. What a field's neighbours forbid ("only together with ...") is in its description alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from surefoot import __version__
from surefoot.chat.request import Role
from surefoot.receipt import Receipt
from surefoot.scheduler import CacheMode
from surefoot.server import fields
from surefoot.server.config import ServerConfig
from surefoot.server.fields import ChatFields, Generation, TextFields
from surefoot.server.messages import ECHOED, FUNCTION_NAME, KEYS
from surefoot.server.reading import CACHE_HEADER, UINT32
from surefoot.server.refusals import STATUS

Schema = dict[str, Any]
SCHEMAS = "#/components/schemas/"
STRING: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
NOTHING: Schema = {"type": "null"}
TOKEN: Schema = {"type": "integer", "minimum": 0, "maximum": UINT32 - 1}
DATA_URL = (
    "^data:image/[A-Za-z0-9.+-]{1,80};base64,"
    "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)$"
)
# Statuses that any page can answer with, and those that only a body, a key or a model brings.
ANYWHERE = (403, 500)
PLACED = (*ANYWHERE, 429, 503)
ASKED = (*PLACED, 400, 404, 408, 413)


def describe(config: ServerConfig) -> Schema:
    """Return the OpenAPI 3.1 description of one server."""
    keyed = (401,) if config.api_keys else ()
    needs_key: Schema = {"security": [{"key": []}]} if config.api_keys else {}
    model_path = {"name": "model", "in": "path", "required": True, "schema": STRING}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Surefoot",
            "version": __version__,
            "description": "OpenAI's shapes, with a receipt in every answer. Null is the same as "
            "leaving a field out; a field that is not described is refused by name; a whole number "
            "is written without a fraction. A path that is not here is answered 404, another "
            "method 405, and what is not HTTP 400 or 408.",
        },
        "paths": {
            "/v1/chat/completions": {"post": needs_key | _asked(_CHAT, keyed)},
            "/v1/completions": {"post": needs_key | _asked(_TEXT, keyed)},
            "/v1/models": {"get": needs_key | _page("the one model", "Models", PLACED + keyed)},
            "/v1/models/{model}": {
                "parameters": [model_path],
                "get": needs_key | _page("the one model", "Model", (*PLACED, 404, *keyed)),
            },
            "/v1/cache": {"get": needs_key | _page("the cache", "Status", PLACED + keyed)},
            "/health": {"get": _page("whether it can answer", "Health", (*ANYWHERE, 503))},
            "/metrics": {
                "get": needs_key
                | {
                    "summary": "Prometheus text",
                    "responses": _responses({"text/plain": STRING}, ANYWHERE + keyed),
                }
            },
            "/openapi.json": {
                "get": needs_key | _page("this description", "Description", ANYWHERE + keyed)
            },
        },
        "components": {
            "schemas": _schemas(config),
            "responses": _refusals(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Endpoint(NamedTuple):
    """What the two endpoints that answer differ in."""

    name: str
    summary: str
    fields: type[Generation]
    fixed: Mapping[str, Any]
    without_effect: Mapping[str, str]


_CHAT = _Endpoint(
    "Chat", "answer messages", ChatFields, fields.CHAT_FIXED, fields.CHAT_WITHOUT_EFFECT
)
_TEXT = _Endpoint("Text", "continue a text", TextFields, fields.TEXT_FIXED, fields.WITHOUT_EFFECT)


def _asked(endpoint: _Endpoint, keyed: tuple[int, ...]) -> Schema:
    modes = {"enum": [mode.value for mode in CacheMode], "default": CacheMode.USE.value}
    body = {"schema": {"$ref": f"{SCHEMAS}{endpoint.name}Request"}}
    answer = {
        "application/json": {"$ref": f"{SCHEMAS}{endpoint.name}Answer"},
        "text/event-stream": {"$ref": f"{SCHEMAS}{endpoint.name}Event"},
    }
    return {
        "summary": endpoint.summary,
        "parameters": [{"name": CACHE_HEADER, "in": "header", "schema": modes}],
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": _responses(answer, ASKED + keyed),
    }


def _page(summary: str, schema: str, statuses: tuple[int, ...]) -> Schema:
    answer = {"application/json": {"$ref": f"{SCHEMAS}{schema}"}}
    return {"summary": summary, "responses": _responses(answer, statuses)}


def _responses(answer: Mapping[str, Schema], statuses: tuple[int, ...]) -> Schema:
    content = {kind: {"schema": schema} for kind, schema in answer.items()}
    refused = {str(one): {"$ref": f"#/components/responses/{one}"} for one in sorted(statuses)}
    return {"200": {"description": "the answer", "content": content}} | refused


def _refusals() -> Schema:
    """Return a response per status that an error can have, with the codes it comes with."""
    found: Schema = {}
    for status in sorted({row.status for row in STATUS.values()}):
        codes = sorted({str(row.code) for row in STATUS.values() if row.status == status})
        found[str(status)] = {
            "description": ", ".join(codes).replace("None", "refused"),
            "content": {"application/json": {"schema": {"$ref": f"{SCHEMAS}Error"}}},
        }
        if status in (429, 503):
            found[str(status)]["headers"] = {"Retry-After": {"schema": COUNT, "required": True}}
    return found


def _schemas(config: ServerConfig) -> Schema:
    receipt = TypeAdapter(Receipt).json_schema(
        mode="serialization", ref_template=SCHEMAS + "{model}"
    )
    model = _object(
        id={"const": config.model},
        object={"const": "model"},
        created=COUNT,
        owned_by=STRING,
        max_model_len=_or_null(COUNT),
        input_modalities=_or_null({"type": "array", "items": {"enum": ["text", "image"]}}),
    )
    error = _object(
        message=STRING,
        type={"enum": sorted({row.type for row in STATUS.values()})},
        param=_or_null(STRING),
        code=_or_null(STRING),
    )
    return {
        "ChatRequest": _request(_CHAT, config),
        "TextRequest": _request(_TEXT, config),
        "ChatAnswer": _answer("chat.completion", _choice("message", _CHAT_MESSAGE)),
        "TextAnswer": _answer("text_completion", _choice("text", STRING)),
        **_stream("Chat", "chat.completion.chunk", "delta", _CHAT_DELTA),
        **_stream("Text", "text_completion", "text", STRING),
        **{name: _whole(schema) for name, schema in receipt.pop("$defs").items()},
        "Receipt": _whole(receipt),
        "Error": _object(error=error, surefoot={"$ref": f"{SCHEMAS}Receipt"})
        | {"required": ["error"]},
        "Model": model,
        "Models": _object(
            object={"const": "list"}, data=_array({"$ref": f"{SCHEMAS}Model"}, least=1, most=1)
        ),
        "Status": {"type": "object"},
        "Health": _object(status={"const": "ok"}),
        "Description": {"type": "object", "required": ["openapi", "paths"]},
    }


def _whole(schema: Schema) -> Schema:
    """Return a dataclass's schema, all of whose fields are always there."""
    if "properties" not in schema:
        return schema
    return schema | {"required": list(schema["properties"]), "additionalProperties": False}


# --- requests ------------------------------------------------------------------------------------


def _request(endpoint: _Endpoint, config: ServerConfig) -> Schema:
    """Return a body's schema: every field of the tables but those that are refused."""
    derived = endpoint.fields.model_json_schema()
    properties = {}
    for name, told in derived["properties"].items():
        schema = {key: one for key, one in told.items() if key != "title"}
        by_hand = _messages(config) if name == "messages" else _BY_HAND.get(name)
        if by_hand is not None:
            schema = by_hand if name in derived["required"] else _or_null(by_hand)
        properties[name] = schema | {"description": told["description"]}
    properties["model"]["const"] = config.model
    for name, value in endpoint.fixed.items():
        properties[name] = {"enum": [value, None]}
    for name, why in endpoint.without_effect.items():
        properties[name] = {"description": f"without effect: {why}"}
    return {
        "type": "object",
        "properties": properties,
        "required": derived["required"],
        "additionalProperties": False,
    }


def _object(**properties: Schema) -> Schema:
    """Return an object that has all of these and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: Schema, *, least: int = 0, most: int | None = None) -> Schema:
    bounds = {} if most is None else {"maxItems": most}
    return {"type": "array", "items": items, "minItems": least, **bounds}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, NOTHING]}


def _messages(config: ServerConfig) -> Schema:
    """Return the conversation's schema: a shape for each role, and one more for bare calls."""
    shapes = [_message(role, config) for role in Role]
    assistant = next(one for one in shapes if one["properties"]["role"]["const"] == Role.ASSISTANT)
    bare = {"content": NOTHING, "tool_calls": _array(_CALL, least=1)}
    calling = assistant | {
        "properties": assistant["properties"] | bare,
        "required": ["role", "tool_calls"],
    }
    return _array({"anyOf": [*shapes, calling]}, least=1, most=config.limits.messages)


def _message(role: Role, config: ServerConfig) -> Schema:
    shapes: Schema = {
        "role": {"const": role.value},
        "content": {"anyOf": [STRING, _array(_part(role, config), least=1)]},
        "name": _or_null(STRING),
        "tool_calls": _or_null(_array(_CALL)),
        "tool_call_id": _or_null(STRING),
    }
    echoed: Schema = {"anyOf": [NOTHING, _array({}, most=0)]}
    known = {name: shapes[name] for name in sorted(KEYS[role])}
    fields_ = _object(**known, **dict.fromkeys(sorted(ECHOED), echoed))
    return fields_ | {"required": ["role", "content"]}


def _part(role: Role, config: ServerConfig) -> Schema:
    text = _object(type={"const": "text"}, text=STRING)
    if role is not Role.USER:
        return text
    patterns = [DATA_URL] if config.fetcher is None else [DATA_URL, "^https?://"]
    url: Schema = {"anyOf": [{"type": "string", "pattern": one} for one in patterns]}
    image = _object(url=url, detail={"enum": ["auto", None]}) | {"required": ["url"]}
    shown = _object(type={"const": "image_url"}, image_url={"anyOf": [image, url]})
    return {"anyOf": [text, shown]}


_NAME: Schema = {"type": "string", "pattern": f"^{FUNCTION_NAME.pattern}$"}
_CALL = _object(
    id=STRING,
    type={"const": "function"},
    function=_object(name=STRING, arguments=STRING),
    index={},
) | {"required": ["id", "function"]}
_TOOL = _object(
    type={"const": "function"},
    function=_object(
        name=_NAME,
        description=_or_null(STRING),
        parameters={"type": "object"},
        strict={"enum": [False, None]},
    )
    | {"required": ["name"]},
)
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": fields.MOST_STOP_CHARACTERS}
_TOKENS = _array(TOKEN, least=1)
# Honoured fields of several shapes, which ``reading`` and ``messages`` check by hand.
_BY_HAND: Mapping[str, Schema] = {
    "stop": {"anyOf": [_STOP, _array(_STOP, most=fields.MOST_STOPS)]},
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "stream_options": _object(
        include_usage=_or_null(BOOLEAN), include_obfuscation={"enum": [False, None]}
    )
    | {"required": []},
    "tools": _array(_TOOL, most=fields.MOST_TOOLS),
    "prompt": {
        "anyOf": [
            STRING,
            _array(STRING, least=1, most=1),
            _TOKENS,
            _array(_TOKENS, least=1, most=1),
        ]
    },
}


# --- answers -------------------------------------------------------------------------------------


_CHAT_MESSAGE = _object(role={"const": "assistant"}, content=STRING, refusal=NOTHING)
_CHAT_DELTA = _object(role={"const": "assistant"}, content=STRING) | {"required": []}
_USAGE = _object(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=_object(cached_tokens=COUNT),
)
_RECEIPT: Schema = {"$ref": f"{SCHEMAS}Receipt"}


def _answer(kind: str, choice: Schema) -> Schema:
    choices = _array(choice, least=1, most=1)
    return _head(kind, choices=choices, usage=_USAGE, surefoot=_RECEIPT)


def _stream(name: str, kind: str, piece: str, content: Schema) -> Schema:
    """Return the schemas of a stream's events, and of the chunks that their data hold."""
    choice = _choice(piece, content)
    choice["properties"]["finish_reason"] = _or_null(choice["properties"]["finish_reason"])
    chunk = _head(kind, choices=_array(choice, most=1))
    chunk["properties"] |= {"usage": _or_null(_USAGE), "surefoot": _RECEIPT}
    told = f"a {name}Chunk as JSON, [DONE] at the end, or an Error in its place"
    data = STRING | {"description": told}
    event: Schema = {"type": "object", "properties": {"data": data}, "required": ["data"]}
    return {f"{name}Event": event, f"{name}Chunk": chunk}


def _choice(name: str, content: Schema) -> Schema:
    ends = {"enum": ["stop", "length", "tool_calls"]}
    logprobs = _or_null({"type": "object"})
    return _object(**{name: content}, index={"const": 0}, logprobs=logprobs, finish_reason=ends)


def _head(kind: str, **more: Schema) -> Schema:
    return _object(id=STRING, object={"const": kind}, created=COUNT, model=STRING, **more)
