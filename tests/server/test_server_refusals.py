"""The one table from errors to statuses."""

import inspect
import logging

import pytest

from surefoot import errors
from surefoot.server import refusals
from surefoot.server.refusals import STATUS, error_body, refuse, row_of

OURS = [one for _, one in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", OURS)
def test_every_error_class_has_a_row(kind):
    assert kind in STATUS


def test_no_row_is_for_a_class_that_is_gone():
    pages = {refusals.Forbidden, refusals.NoSuchPage, refusals.WrongMethod}
    local = {*pages, refusals.Late, refusals.TooManyAtOnce, Exception}
    assert set(STATUS) == {*OURS, *local}


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (errors.RequestError("a", param="x"), 400, "invalid_request_error", None),
        (errors.RequestError("a", code="own"), 400, "invalid_request_error", "own"),
        (errors.NotAuthorized("a"), 401, "authentication_error", "invalid_api_key"),
        (errors.ModelNotFound("a"), 404, "invalid_request_error", "model_not_found"),
        (errors.TooLarge("a"), 413, "invalid_request_error", "too_large"),
        (errors.CapacityError("a"), 503, "overloaded_error", "try_again_later"),
        (errors.EngineError("a"), 500, "server_error", "engine_error"),
    ],
)
def test_an_error_is_told_with_its_status(error, status, kind, code):
    assert refuse(error, str).status_code == status
    assert error_body(error, str) == {
        "error": {
            "message": "a",
            "type": kind,
            "param": "x" if code is None and status == 400 else None,
            "code": code,
        }
    }


@pytest.mark.parametrize(
    "error", [ValueError("secret"), AssertionError("secret"), errors.TierError("secret")]
)
def test_a_bug_is_told_by_number_and_logged_with_its_text(error, caplog):
    with caplog.at_level(logging.ERROR):
        body = error_body(error, lambda: "b42")
    assert "secret" not in str(body)
    assert "b42" in body["error"]["message"]
    assert body["error"]["code"] == "internal_error"
    assert "bug b42" in caplog.text
    assert "secret" in caplog.text


def test_a_class_without_a_row_takes_its_nearest_ancestors():
    class Later(errors.CapacityError):
        pass

    assert row_of(Later("a")).status == 503
    assert row_of(KeyError("a")).status == 500


def test_capacity_says_when_to_come_back_and_a_missing_key_says_how():
    later = refuse(errors.CapacityError("a", retry_after_s=7), str)
    assert later.headers["retry-after"] == "7"
    assert refuse(errors.NotAuthorized("a"), str).headers["www-authenticate"] == "Bearer"
