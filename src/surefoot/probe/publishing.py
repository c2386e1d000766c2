"""What may leave the process: a report without API keys, in text that every form can hold.

A server may say anything, a key it was sent included. Every string of a report passes through here
once, before it is printed, written or drawn; nothing that renders has to think of it again.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from math import isfinite
from typing import Any, TypeVar

Value = TypeVar("Value")


def publishable(value: Value, hide: Callable[[str], str]) -> Value:
    """Return a report, or any part of one, as it may be shown.

    Args:
        value: dataclasses, mappings and sequences down to strings and numbers.
        hide: blots out every key in a text; see ``Asker.hide``.

    Half characters, which no file can hold, become question marks; numbers that JSON cannot hold
    become None.
    """
    shown: Any = _shown(value, hide)
    return shown  # type: ignore[no-any-return]  # what goes in as a report comes out as one


def _shown(value: Any, hide: Callable[[str], str]) -> Any:
    shown: Any
    match value:
        case Enum():
            shown = value
        case str():
            shown = hide(value.encode("utf-8", "replace").decode("utf-8"))
        case float():
            shown = value if isfinite(value) else None
        case Mapping():
            shown = {_shown(key, hide): _shown(one, hide) for key, one in value.items()}
        case tuple() | list():
            shown = type(value)(_shown(one, hide) for one in value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            changed = {one.name: _shown(getattr(value, one.name), hide) for one in fields(value)}
            shown = replace(value, **changed)
        case _:
            shown = value
    return shown
