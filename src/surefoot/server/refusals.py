"""The one table from errors to HTTP, and the body that every error has.

{"error": {"message": one sentence, "type": ..., "param": the field or null, "code": ...}}
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.responses import JSONResponse

from surefoot.errors import (
    CacheFault,
    CapacityError,
    CorruptRecord,
    EngineError,
    ModelNotFound,
    NotAuthorized,
    RequestError,
    SetupError,
    SurefootError,
    TierError,
    TooLarge,
)
from surefoot.receipt import Receipt

log = logging.getLogger("surefoot.server")


class Forbidden(RequestError):
    """Refuse a request from a foreign host or origin, or for a page that is switched off."""


class NoSuchPage(RequestError):
    """Refuse a path that this server does not have."""


class WrongMethod(RequestError):
    """Refuse a method that a path does not take."""


class Late(RequestError):
    """Refuse a request whose body does not come, or comes too slowly."""


class TooManyAtOnce(CapacityError):
    """Refuse a client that already has what one client may have; others are still served."""


class Row(NamedTuple):
    """How one kind of error is answered; ``told`` is whether its text is for the client."""

    status: int
    type: str
    code: str | None
    told: bool = True


STATUS: dict[type[Exception], Row] = {
    RequestError: Row(400, "invalid_request_error", None),
    NotAuthorized: Row(401, "authentication_error", "invalid_api_key"),
    Forbidden: Row(403, "permission_error", "forbidden"),
    ModelNotFound: Row(404, "invalid_request_error", "model_not_found"),
    NoSuchPage: Row(404, "invalid_request_error", "not_found"),
    WrongMethod: Row(405, "invalid_request_error", "method_not_allowed"),
    Late: Row(408, "invalid_request_error", "request_timeout"),
    TooLarge: Row(413, "invalid_request_error", "too_large"),
    TooManyAtOnce: Row(429, "rate_limit_error", "too_many_requests"),
    CapacityError: Row(503, "overloaded_error", "try_again_later"),
    EngineError: Row(500, "server_error", "engine_error"),
    # These never reach a client on purpose: a cache fault is recomputed, a setup error stops us.
    SetupError: Row(500, "server_error", "internal_error", told=False),
    CacheFault: Row(500, "server_error", "internal_error", told=False),
    CorruptRecord: Row(500, "server_error", "internal_error", told=False),
    TierError: Row(500, "server_error", "internal_error", told=False),
    SurefootError: Row(500, "server_error", "internal_error", told=False),
    Exception: Row(500, "server_error", "internal_error", told=False),
}


def row_of(error: Exception) -> Row:
    """Return the row of an error: its class's, or its nearest ancestor's."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def refuse(
    error: Exception, new_id: Callable[[], str], receipt: Receipt | None = None
) -> JSONResponse:
    """Return the response to an error."""
    headers = {}
    if isinstance(error, CapacityError):
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, NotAuthorized):
        headers["www-authenticate"] = "Bearer"
    body = error_body(error, new_id, receipt)
    return JSONResponse(body, status_code=row_of(error).status, headers=headers)


def error_body(
    error: Exception, new_id: Callable[[], str], receipt: Receipt | None = None
) -> dict[str, Any]:
    """Return the body of an error; one whose text is not for the client is logged under an id."""
    row = row_of(error)
    message = str(error)
    if not row.told:
        bug = new_id()
        log.error("bug %s", bug, exc_info=error)
        message = f"internal error {bug}; the server's log has the details under this number"
    param, code = (error.param, error.code) if isinstance(error, RequestError) else (None, None)
    body: dict[str, Any] = {
        "error": {"message": message, "type": row.type, "param": param, "code": code or row.code}
    }
    if receipt is not None:
        body["surefoot"] = receipt.to_json()
    return body
