"""``/openapi.json`` is true: every field, every bound, every status, every chunk."""

import json

import jsonschema_rs
import pytest
from housed import housed
from scripted import CHAT, TEXT, Server, chunks, done, error

from surefoot.errors import CapacityError, EngineError
from surefoot.scheduler import Failed
from surefoot.server import Limits, fields
from surefoot.server.fields import ChatFields, TextFields
from surefoot.server.refusals import STATUS

DESCRIPTION = Server(api_keys=("k",)).get("/openapi.json", headers={"authorization": "Bearer k"})
TOLD = DESCRIPTION.json()
SCHEMAS = TOLD["components"]["schemas"]
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"


def valid(name, value):
    whole = {"$ref": f"#/components/schemas/{name}", "components": TOLD["components"]}
    return jsonschema_rs.validator_for(whole).is_valid(value)


def references(value):
    if isinstance(value, dict):
        yield from (one for name, one in value.items() if name == "$ref")
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def test_every_reference_leads_somewhere():
    found = set(references(TOLD))
    assert len(found) > 15
    for one in found:
        place = TOLD
        for name in one.removeprefix("#/").split("/"):
            place = place[name]


@pytest.mark.parametrize(
    ("name", "model", "fixed", "without_effect", "refused"),
    [
        (
            "ChatRequest",
            ChatFields,
            fields.CHAT_FIXED,
            fields.CHAT_WITHOUT_EFFECT,
            fields.CHAT_REFUSED,
        ),
        ("TextRequest", TextFields, fields.TEXT_FIXED, fields.WITHOUT_EFFECT, fields.TEXT_REFUSED),
    ],
)
def test_every_field_is_described_and_no_other(name, model, fixed, without_effect, refused):
    told = SCHEMAS[name]["properties"]
    assert set(told) == {*model.model_fields, *fixed, *without_effect}
    assert not set(told) & set(refused)
    assert SCHEMAS[name]["additionalProperties"] is False
    for field, one in model.model_fields.items():
        assert told[field]["description"] == one.description
    for field, value in fixed.items():
        assert told[field]["enum"] == [value, None]


def bounds(schema):
    """Values at each bound of a schema, and just beyond it: (value, whether it is allowed)."""
    for one in schema.get("anyOf", [schema]):
        step = 1 if one.get("type") == "integer" else 0.0625
        for name, sign in (("minimum", -1), ("maximum", 1)):
            if name in one:
                yield one[name], True
                yield one[name] + sign * step, False
        if "exclusiveMinimum" in one:
            yield one["exclusiveMinimum"], False
            yield one["exclusiveMinimum"] + step, True
        if one.get("type") == "string" and "maxLength" in one:
            yield "x" * one["maxLength"], True
            yield "x" * (one["maxLength"] + 1), False
            yield "", one.get("minLength", 0) == 0
        if one.get("type") == "array" and one.get("items", {}).get("type") == "string":
            for count in (one["minItems"], one.get("maxItems", 3)):
                yield ["y"] * count, True
            if "maxItems" in one:
                yield ["y"] * (one["maxItems"] + 1), False
        if one.get("type") == "boolean":
            yield from ((True, True), (False, True), (1, False))
        if one.get("type") == "null":
            yield None, True
        for value in one.get("enum", ()):
            yield value, True
            yield [value, value], False


# What a field needs beside it, so that it is judged by itself.
BESIDE = {"top_logprobs": {"logprobs": True}, "tool_choice": {"tools": None}}


@pytest.mark.parametrize("endpoint", ["chat", "text"])
def test_every_bound_is_where_the_description_says(endpoint):
    server = Server()
    judged = 0
    for field, schema in SCHEMAS["ChatRequest" if endpoint == "chat" else "TextRequest"][
        "properties"
    ].items():
        for value, allowed in bounds(schema):
            if field in ("tool_choice", "prompt") and value in ("auto", [], ["y", "y", "y"]):
                continue  # needs tools; a list of strings is of one
            response = getattr(server, endpoint)(**BESIDE.get(field, {}) | {field: value})
            assert response.status_code == (200 if allowed else 400), (field, value, response.text)
            judged += 1
    assert judged > 60


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("ChatRequest", CHAT, True),
        ("ChatRequest", CHAT | {"echo": True}, False),
        ("ChatRequest", CHAT | {"model": "other"}, False),
        ("ChatRequest", {"model": "served"}, False),
        ("TextRequest", TEXT, True),
        ("TextRequest", TEXT | {"prompt": [1, 2]}, True),
        ("TextRequest", TEXT | {"prompt": [[1, 2]]}, True),
        ("TextRequest", TEXT | {"prompt": [2**32]}, False),
        ("TextRequest", TEXT | {"messages": []}, False),
    ],
)
def test_a_request_is_described_as_it_is_judged(name, value, allowed):
    server = Server()
    path = CHAT_PATH if name == "ChatRequest" else TEXT_PATH
    assert valid(name, value) == allowed
    assert (server.ask("POST", path, json=value).status_code == 200) == allowed


def test_every_status_of_the_table_is_described_with_its_codes():
    told = TOLD["components"]["responses"]
    assert set(told) == {str(row.status) for row in STATUS.values()}
    for row in STATUS.values():
        assert (row.code or "refused") in told[str(row.status)]["description"]
        assert row.type in SCHEMAS["Error"]["properties"]["error"]["properties"]["type"]["enum"]
    # The two that no path of ours can answer with are told of in words.
    declared = {
        status
        for path in TOLD["paths"].values()
        for verb in ("get", "post")
        for status in path.get(verb, {}).get("responses", ())
    }
    assert set(told) - declared == {"405"}


def test_every_answer_that_can_be_provoked_is_described():
    def full(request):
        raise CapacityError("full")

    def failing(request):
        return [Failed(EngineError("x"), done().receipt)]

    key = {"authorization": "Bearer k"}
    small = Limits(body_bytes=len(json.dumps(CHAT)), images=1)
    answers = [
        (200, Server().chat()),
        (400, Server().chat(temperature=9)),
        (401, Server(api_keys=("k",)).chat()),
        (403, Server().chat(headers={"host": "evil.example"})),
        (404, Server().chat(model="other")),
        (413, Server(limits=small).chat(user="x")),
        (429, Server(api_keys=("k",), limits=Limits(client_requests=0)).chat(headers=key)),
        (500, Server(failing).chat()),
        (503, Server(full).chat()),
        (503, Server(loading=True).chat()),
    ]
    for status, response in answers:
        assert response.status_code == status
        told = TOLD["paths"][CHAT_PATH]["post"]["responses"][str(status)]
        if status != 200:
            assert told == {"$ref": f"#/components/responses/{status}"}
            assert valid("Error", response.json()), response.text
        assert (status in (429, 503)) == ("retry-after" in response.headers)


def test_answers_and_chunks_are_described():
    with housed() as house:
        for endpoint, name in (("chat", "Chat"), ("text", "Text")):
            ask = getattr(house, endpoint)
            logprobs = {"logprobs": True if endpoint == "chat" else 2}
            for fields_ in ({}, logprobs, {"max_tokens": 1}):
                assert valid(f"{name}Answer", ask(**fields_).json())
                for more in ({}, {"stream_options": {"include_usage": True}}):
                    for chunk in chunks(ask(stream=True, **fields_, **more)):
                        assert valid(f"{name}Chunk", chunk), chunk
                        assert not valid(f"{name}Answer", chunk)


def test_the_receipt_is_described_whole():
    receipt = done().receipt.to_json()
    assert set(SCHEMAS["Receipt"]["required"]) == set(receipt)
    assert valid("Receipt", receipt)
    for name in receipt:
        assert not valid("Receipt", {key: one for key, one in receipt.items() if key != name})
    assert not valid("Receipt", receipt | {"more": 1})


def test_the_description_is_seen_by_whoever_sees_the_model():
    assert Server(loading=True).get("/openapi.json").status_code == 200
    keyed = Server(api_keys=("k",))
    error(keyed.get("/openapi.json"), 401)
    assert keyed.get("/openapi.json", headers={"authorization": "Bearer k"}).json() == TOLD
    assert "security" not in Server().get("/openapi.json").json()["paths"][CHAT_PATH]["post"]
    assert TOLD["paths"][CHAT_PATH]["post"]["security"] == [{"key": []}]


def test_every_path_that_is_described_is_there_and_takes_no_other_method():
    server = Server()
    for path, item in TOLD["paths"].items():
        methods = {method.upper() for method in item} - {"PARAMETERS"}
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "X"):
            response = server.ask(method, path.replace("{model}", "served"), json={})
            if method in methods:
                assert response.status_code in (200, 400)
            else:
                assert response.status_code == 405
                assert set(response.headers["allow"].split(", ")) == methods
