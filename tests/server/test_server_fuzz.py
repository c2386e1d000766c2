"""The whole HTTP surface, asked what its own description allows and what it forbids.

Requests come from ``/openapi.json``, a fixed number of them and always the same ones; they meet the
real routes, a real scheduler and a real cache over a fake engine. Whatever comes back must be
described: its status, its type, its shape, its headers. Nothing may be a bug, and what the
description forbids must not be done.
"""

from collections import Counter

import pytest
import schemathesis
from housed import CONTEXT, housed
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
ASKED = ("/v1/chat/completions", "/v1/completions")
SHOWN = (
    "/v1/models",
    "/v1/models/{model}",
    "/v1/cache",
    "/health",
    "/metrics",
    "/openapi.json",
)
BASE = "http://localhost"


@pytest.fixture(scope="module")
def house():
    with housed() as house:
        yield house
        assert house.bugs == []


@pytest.fixture(scope="module")
def described(house):
    return schemathesis.openapi.from_dict(house.get("/openapi.json").json())


def send(house, case):
    """Send a case over ASGI, and check what comes back."""
    request = case.as_transport_kwargs(base_url=BASE)
    body = {"content": request["data"]} if "data" in request else {"json": request.get("json")}
    response = house.ask(
        request["method"],
        request["url"].removeprefix(BASE),
        headers=request["headers"],
        params=request["params"],
        **body if request["method"] == "POST" else {},
    )
    case.validate_response(response, checks=CHECKS)
    return response


def unfractioned(value):
    """Write 2.0 as 2: the same number to JSON Schema, and a whole one to this server."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [unfractioned(one) for one in value]
        case dict():
            return {name: unfractioned(one) for name, one in value.items()}
    return value


def fuzz(house, operation, mode, examples):
    """Send that many cases of an operation; returns how often each status came."""
    statuses = Counter()

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case):
        if mode is GenerationMode.POSITIVE:
            case.body = unfractioned(case.body)
        if isinstance(case.body, dict) and isinstance(case.body.get("max_tokens"), int):
            case.body["max_tokens"] = min(case.body["max_tokens"], 8)
        statuses[send(house, case).status_code] += 1

    one()
    return statuses


@pytest.mark.parametrize("path", ASKED)
def test_what_the_description_allows_is_answered_or_refused_with_a_reason(house, described, path):
    statuses = fuzz(house, described[path]["POST"], GenerationMode.POSITIVE, 120)
    assert set(statuses) <= {200, 400}
    assert statuses[200] > 60, statuses


@pytest.mark.parametrize("path", ASKED)
def test_what_the_description_forbids_is_refused(house, described, path):
    statuses = fuzz(house, described[path]["POST"], GenerationMode.NEGATIVE, 160)
    assert set(statuses) <= {400, 404, 413}
    assert statuses[400] > 80, statuses


@pytest.mark.parametrize("path", SHOWN)
def test_every_page_is_what_its_description_says(house, described, path):
    statuses = fuzz(house, described[path]["GET"], GenerationMode.POSITIVE, 10)
    assert set(statuses) <= ({200, 404} if "{" in path else {200})


@pytest.mark.parametrize("path", [*ASKED, *SHOWN])
def test_with_keys_an_answer_without_one_is_described_too(path):
    with housed(api_keys=("a key",)) as house:
        key = {"authorization": "Bearer a key"}
        raw = house.get("/openapi.json", headers=key).json()
        operations = schemathesis.openapi.from_dict(raw)[path]
        case = operations["POST" if path in ASKED else "GET"].Case(path_parameters={"model": "x"})
        assert send(house, case).status_code == (200 if path == "/health" else 401)


def test_the_context_is_small_enough_to_be_overrun():
    assert CONTEXT < 1000  # so that generated prompts meet its limit
