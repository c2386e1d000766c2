"""Every request field: what is honoured, fixed, without effect, and refused by name."""

import inspect
import json

import openai
import pytest
from scripted import CHAT, TEXT, Server, error

from surefoot.server import fields
from surefoot.server.fields import ChatFields, TextFields

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAN, INF = float("nan"), float("inf")
BIG = 10**400  # beyond any float

# field: (values that are taken, values that are refused)
BOTH = {
    "model": (["served"], [1, None, ["served"]]),
    "max_tokens": ([1, 10**9, None], [0, -1, 1.5, "3", True, [], NAN, INF, -BIG]),
    "temperature": ([0, 0.0, 1, 2.0, None], [-0.1, 2.1, NAN, INF, -INF, "1", True, {}, BIG]),
    "top_p": ([0.001, 1, None], [0, -0.1, 1.01, NAN, "1", False]),
    "top_k": ([0, 1, 10**6, None], [-1, 1.5, NAN, "1", True]),
    "min_p": ([0, 0.5, 1, None], [-0.1, 1.1, NAN, "0"]),
    "seed": ([0, 2**63 - 1, None], [-1, 2**63, 1.0, "1", True]),
    "stop": (
        ["x", ["x"], ["a"] * 16, ["x" * 256], None],
        ["", [""], ["a"] * 17, ["x" * 257], [1], 1, {}, [None]],
    ),
    "presence_penalty": ([-2, 0, 2.0, None], [-2.1, 2.1, NAN, "0", True]),
    "frequency_penalty": ([-2, 0, 2.0, None], [-2.1, 2.1, NAN, "0", True]),
    "repetition_penalty": ([0.1, 1, 2, None], [0, -1, 2.1, NAN, INF, "1"]),
    "logit_bias": (
        [{}, {"0": 1}, {"4294967295": -100, "7": 100.0}, None],
        [
            [],
            1,
            {"a": 1},
            {"-1": 1},
            {"1": 100.1},
            {"1": NAN},
            {"1": "2"},
            {"1": True},
            {"1": BIG},
            {"4294967296": 1},
            {"9" * 5000: 1},
            {"²": 1},
            {"٣": 1},
            {"": 1},
        ],
    ),
    "stream": ([False, None], [1, "true", {}]),
    "stream_options": ([None], [{}, {"include_usage": True}, [], "x", 1]),
    "cache_salt": (
        ["a", "x" * 128, "a b-c_é", None],
        ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b", 1, ["a"]],
    ),
    "ignore_eos": ([True, False, None], [1, "true"]),
}
CHAT_VALUES = BOTH | {
    "messages": ([CHAT["messages"]], [[], None, "hi", {}, [1], [[]]]),
    "max_completion_tokens": ([1, None], [0, -1, 1.5, "3", True]),
    "logprobs": ([True, False, None], [1, 0, "true"]),
    "top_logprobs": ([None], [0, 5, -1, 21, True, "5"]),  # each needs logprobs
    "tools": ([[TOOL], [], [TOOL] * 128, None], [[TOOL] * 129, {}, "f", [1]]),
    "tool_choice": (["none", None], ["auto", "required", {"type": "function"}, 1]),
}
TEXT_VALUES = BOTH | {
    "prompt": (
        ["x", "", ["x"], [1, 2], [[1, 2]], [0], [2**32 - 1]],
        [None, 1, {}, [], [[]], ["x", "y"], [[1], [2]], [1, "x"], [-1], [2**32], [True], [1.0]],
    ),
    "logprobs": ([0, 20, None], [-1, 21, True, "5", 1.0]),
    "echo": ([True, False, None], [1, "true"]),
}
ENDPOINTS = {
    "/v1/chat/completions": (CHAT, ChatFields, CHAT_VALUES),
    "/v1/completions": (TEXT, TextFields, TEXT_VALUES),
}


def cases(which):
    return [
        pytest.param(path, name, value, id=f"{path[4:8]}-{name}-{repr(value)[:20]}")
        for path, (_, _, table) in ENDPOINTS.items()
        for name, values in table.items()
        for value in values[which]
    ]


@pytest.fixture(scope="module")
def server():
    return Server()


def send(server, path, fields_):
    # Python's JSON spells NaN and Infinity; so do some clients.
    return server.body(json.dumps(fields_).encode(), path)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_the_table_of_values_covers_every_honoured_field(path):
    _, model, table = ENDPOINTS[path]
    assert set(table) == set(model.model_fields)


@pytest.mark.parametrize(("path", "name", "value"), cases(0))
def test_an_allowed_value_is_taken(server, path, name, value):
    fields_ = ENDPOINTS[path][0] | {name: value}
    assert send(server, path, fields_).status_code == 200


@pytest.mark.parametrize(("path", "name", "value"), cases(1))
def test_a_wrong_value_is_refused_by_name(server, path, name, value):
    found = error(send(server, path, ENDPOINTS[path][0] | {name: value}))
    assert (found["param"] or "").startswith(name), found
    assert f"'{name}" in found["message"]
    assert len(found["message"]) < 400


@pytest.mark.parametrize(
    ("path", "name"), [(p, n) for p in ENDPOINTS for n in ENDPOINTS[p][2] if n in ENDPOINTS[p][0]]
)
def test_a_missing_field_is_named(server, path, name):
    fields_ = {key: value for key, value in ENDPOINTS[path][0].items() if key != name}
    found = error(send(server, path, fields_))
    assert found["param"] == name
    assert found["message"].startswith(f"'{name}' ")


ROWS = {
    "/v1/chat/completions": (
        fields.CHAT_FIXED,
        fields.CHAT_WITHOUT_EFFECT,
        fields.CHAT_REFUSED,
    ),
    "/v1/completions": (fields.TEXT_FIXED, fields.WITHOUT_EFFECT, fields.TEXT_REFUSED),
}


@pytest.mark.parametrize("path", ROWS)
def test_every_field_is_in_one_table_only(path):
    names = [*ENDPOINTS[path][1].model_fields, *(name for row in ROWS[path] for name in row)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("path", "name"), [(p, n) for p in ROWS for n in ROWS[p][0]])
def test_a_fixed_field_takes_its_one_value(server, path, name):
    only = ROWS[path][0][name]
    base = ENDPOINTS[path][0]
    for value in (only, None):
        assert send(server, path, base | {name: value}).status_code == 200
    for value in (2, True, 1.0, "text", [], {"type": "json_object"}, {"type": "text", "x": 1}):
        if type(value) is type(only) and value == only:
            continue
        found = error(send(server, path, base | {name: value}))
        assert found["param"] == name
        assert json.dumps(only) in found["message"]


@pytest.mark.parametrize(("path", "name"), [(p, n) for p in ROWS for n in ROWS[p][1]])
def test_a_field_without_effect_is_accepted_and_changes_nothing(server, path, name):
    base = ENDPOINTS[path][0]
    send(server, path, base)
    plain = server.asked
    for value in (True, "x", {"a": 1}, None):
        assert send(server, path, base | {name: value}).status_code == 200
        assert (server.asked.input, server.asked.sampling) == (plain.input, plain.sampling)


@pytest.mark.parametrize(("path", "name"), [(p, n) for p in ROWS for n in ROWS[p][2]])
def test_a_refused_field_is_refused_by_name_and_null_is_absent(server, path, name):
    base = ENDPOINTS[path][0]
    found = error(send(server, path, base | {name: "x"}))
    assert (found["param"], f"'{name}'" in found["message"]) == (name, True)
    assert ROWS[path][2][name] in found["message"]
    assert send(server, path, base | {name: None}).status_code == 200


@pytest.mark.parametrize("path", ENDPOINTS)
def test_an_unknown_field_is_refused_by_name_even_null(server, path):
    for value in (1, None):
        found = error(send(server, path, ENDPOINTS[path][0] | {"tempreature": value}))
        assert found["param"] == "tempreature"
    long = error(send(server, path, ENDPOINTS[path][0] | {"x" * 10_000: 1}))
    assert len(long["message"]) < 200


def test_every_parameter_of_the_openai_client_is_in_a_table():
    client = openai.OpenAI(api_key="x")
    known = {
        "/v1/chat/completions": client.chat.completions.create,
        "/v1/completions": client.completions.create,
    }
    transport = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    for path, create in known.items():
        names = {*ENDPOINTS[path][1].model_fields, *(name for row in ROWS[path] for name in row)}
        assert set(inspect.signature(create).parameters) - transport <= names
    client.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'{"model": "served",}',
        b"\xff\xfe",
        b'{"model": "\\ud800", "prompt": "x"}',
        b'{"a":' * 5000,
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body):
    found = error(Server().body(body))
    assert "the body" in found["message"]


def test_a_number_too_long_to_spell_is_refused_all_the_same():
    digits = b"1" + b"0" * 5000
    found = error(Server().body(b'{"model": "served", "prompt": "x", "seed": %s}' % digits))
    assert "thousands of digits" in found["message"] or "the body" in found["message"]


def test_an_inner_field_of_a_request_is_never_validated_in_fastapis_own_shape():
    for content in (b"{}", b'{"model": 1}', b'{"messages": 3}'):
        assert "detail" not in Server().body(content).json()
