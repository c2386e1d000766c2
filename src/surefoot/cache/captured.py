"""Reading a capture: its shape, field by field, and a sentence for one that does not have it.

Whoever reads one got it from somebody else, perhaps by mail: nothing of it is believed before it
fits. ``docs/EVIDENCE.md`` says what each field means.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefoot.cache.capture import VERSION
from surefoot.errors import SetupError
from surefoot.identity import TOKEN_DIGEST_BYTES

EACH = "*"  # in the place of a key: whatever the keys are, each value is of that shape
_NAME = (str, None)
_PART: dict[str, Any] = {"group": str, "block": int}
_TURN: dict[str, Any] = {
    "at": float,
    "receipt": {
        "id": str,
        "kind": str,
        "model": str,
        "finish": str,
        "prompt_tokens": int,
        "restored_tokens": int,
        "computed_tokens": int,
        "unreached_tokens": int,
        "sources": {EACH: int},
        "boundary_tokens": (int, None),
        "block_name": _NAME,
        "state_tokens": (int, None),
        "state_digest": _NAME,
        "miss_reason": _NAME,
        "exact": str,
        "verified": (bool, None),
        "media": [{"name": str, "tokens": int, "feature_hit": bool}],
    },
    "fence": int,
    "root": _NAME,
    "blocks": [{"name": str, "start": int, "end": int}],
    "restored": [_PART | {"tier": str, "content": str, "committed_by": ({"id": str}, None)}],
    "failed": [_PART | {"fault": str}],
    "committed": [_PART | {"content": str}],
    "media": [{"name": str, "feature": _NAME, "start": int, "tokens": int}],
    "counters": {EACH: int},
    "process": ({"settings": {}, "versions": {}}, None),
    "tokens": {"digest_bytes": int, "digests": str},
}
_RECORD: dict[str, Any] = {
    "name": str,
    "group": _NAME,
    "start": int,
    "end": int,
    "found": str,
    "bytes": (int, None),
    "seal": _NAME,
    "header": (
        {"content": str, "fence": int, "name": str, "parent": _NAME, "features": [str]},
        None,
    ),
    "covered_by": [int],
}
SHAPE: dict[str, Any] = {
    "surefoot_capture": int,
    "of": {},
    "made_at": float,
    "made_with": {},
    "store": str,
    "names": str,
    "turns": [_TURN],
    "records": [_RECORD],
    "fences": [{"number": int, "name": _NAME, "reason": str, "at": float}],
    "verdicts": [{"name": str, "verdict": str, "at": float}],
    "models": {EACH: ({"ingredients": {EACH: str}, "loaded_as": {}}, None)},
    "left_out": int,
}


def read_capture(path: Path) -> dict[str, Any]:
    """Return a capture from its file, of the shape that this release writes.

    Raises:
        SetupError: the file cannot be read, is no capture, is damaged or of another version.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SetupError(f"{path} is no capture, or is damaged: it is not JSON") from error
    if not isinstance(found, dict) or "surefoot_capture" not in found:
        raise SetupError(f"{path} is no capture: it does not say 'surefoot_capture'")
    version = found["surefoot_capture"]
    if version != VERSION:
        raise SetupError(
            f"{path} is a capture of version {version!r:.20}; this release reads version {VERSION}"
        )
    wrong = _misfit(found, SHAPE, "")
    if wrong is None:
        wrong = next((one for turn in found["turns"] if (one := _out_of_range(turn))), None)
    if wrong is not None:
        raise SetupError(f"{path} is damaged: {wrong}")
    return found


def _misfit(value: Any, shape: Any, where: str) -> str | None:
    """Return where a value does not have the shape, or None."""
    if isinstance(shape, tuple):
        kind, _ = shape
        return None if value is None else _misfit(value, kind, where)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        places = ((one, shape[0], f"{where}[{at}]") for at, one in enumerate(value))
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where or 'it'} is no object"
        if EACH in shape:
            shape = dict.fromkeys(value, shape[EACH])
        if missing := shape.keys() - value.keys():
            return f"{where} lacks {min(missing)!r}".strip()
        places = ((value[key], one, f"{where}.{key}".strip(".")) for key, one in shape.items())
    else:
        kinds = (int, float) if shape is float else (shape,)
        return None if type(value) in kinds else f"{where} is no {shape.__name__}"
    return next((wrong for one in places if (wrong := _misfit(*one))), None)


def _out_of_range(turn: Mapping[str, Any]) -> str | None:
    blocks = len(turn["blocks"])
    parts = (*turn["restored"], *turn["failed"], *turn["committed"])
    if any(not 0 <= one["block"] < blocks for one in parts):
        return "a part is of a block that the turn does not have"
    tokens = turn["tokens"]
    if tokens["digest_bytes"] != TOKEN_DIGEST_BYTES or len(tokens["digests"]) % 16:
        return f"tokens.digests are not {TOKEN_DIGEST_BYTES} bytes each"
    return None
