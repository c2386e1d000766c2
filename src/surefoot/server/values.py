"""One JSON value checked, and one sentence when it is wrong: the field, the value, the limit.

Errors end up in clients' logs, and in those of whatever stands between. So a wrong value is spelled
out unless it stands where a prompt's text does, or a secret: there its kind and size are named.
"""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from surefoot.errors import RequestError

MOST_SHOWN = 80  # characters of a wrong value in a message
CONFIDENTIAL = frozenset({"the body", "messages", "prompt", "tools", "stop", "cache_salt"})
VOCABULARY = (".role", ".type")  # words of the API, wherever they stand
PATH_ROOT = re.compile(r"[^.\[]*")

Fields = TypeVar("Fields", bound=BaseModel)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a request's body, a JSON object.

    Raises:
        RequestError: it is not JSON, or not an object.
    """
    try:
        # NaN and Infinity pass here, so that the field that holds one can be named.
        value = from_json(body, allow_inf_nan=True)
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        wrong("the body", value, "a JSON object", param=None)
    # Parsers differ in which of two equal keys they keep, so the client cannot know what it asked.
    json.loads(body, object_pairs_hook=_without_twins)
    return value


def _without_twins(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            name = key[:MOST_SHOWN]
            raise RequestError(f"'{name}' is there twice in one object", param=name)
        seen.add(key)


def parse_fields(model: type[Fields], values: Mapping[str, Any]) -> Fields:
    """Return the fields of a request, checked by a pydantic model whose descriptions are rules.

    Raises:
        RequestError: the first field that is wrong.
    """
    unknown = next((name[:MOST_SHOWN] for name in values if name not in model.model_fields), None)
    if unknown is not None:
        close = get_close_matches(unknown, model.model_fields, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise RequestError(f"'{unknown}' is no field of this request{hint}", param=unknown)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        _explain(model, error.errors(include_url=False)[0])


def _explain(model: type[BaseModel], detail: ErrorDetails) -> NoReturn:
    name = str(detail["loc"][0])
    rule = rule_of(model, name)
    if detail["type"] == "missing":
        raise RequestError(f"'{name}' is missing; it must be {rule}", param=name)
    wrong(name, detail["input"], rule)


def rule_of(model: type[BaseModel], name: str) -> str:
    """Return what a field must be, in words."""
    return str(model.model_fields[name].description)


def wrong(name: str, value: Any, rule: str, *, param: str | None = "") -> NoReturn:
    """Refuse a value.

    Args:
        name: the field's path, such as ``messages[0].content``.
        value: what was sent.
        rule: what it must be.
        param: the error's ``param``; the path by default.
    """
    spelled = name if param is None else f"'{name}'"
    root = PATH_ROOT.match(name)
    hidden = root is not None and root[0] in CONFIDENTIAL and not name.endswith(VOCABULARY)
    found = kind_of(value) if hidden else shown(value)
    raise RequestError(
        f"{spelled} must be {rule}, not {found}", param=name if param == "" else param
    )


def kind_of(value: Any) -> str:
    """Return what a value is, and nothing of what it says."""
    match value:
        case str():
            return f"a string of {len(value)} characters"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)} fields"
        case bool() | None:
            return json.dumps(value)
        case _:
            return "a number"


def shown(value: Any) -> str:
    """Return a value as JSON, cut short."""
    try:
        spelled = json.dumps(value, ensure_ascii=False)
    except ValueError:
        return "a number of thousands of digits"  # which Python will not spell out
    return spelled if len(spelled) <= MOST_SHOWN else f"{spelled[:MOST_SHOWN]}..."


def only(path: str, value: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse an object that holds a key we would ignore.

    Raises:
        RequestError: the first such key.
    """
    allowed = set(known)
    for key in value:
        if key not in allowed:
            name = f"{path}.{key[:MOST_SHOWN]}"
            raise RequestError(f"'{name}' is no field of this request", param=name)


def text(path: str, value: Any, rule: str = "a string") -> str:
    """Return a string.

    Raises:
        RequestError: it is none.
    """
    if not isinstance(value, str):
        wrong(path, value, rule)
    return value
