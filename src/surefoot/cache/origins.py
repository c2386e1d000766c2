"""What each model of a store was made of, and how it was loaded: ``store/models/<name>.json``.

So that an audit can load it again, and a capture can say what it was. Like all but records, such a
file may be lost: then nobody can tell, and nothing else changes.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.identity import ModelName

MODELS = "models"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model's name comes from."""

    ingredients: Mapping[str, str]  # ``Engine.ingredients``
    loaded_as: Mapping[str, Any]  # the MODEL argument and what else it was loaded with


def note_model(
    root: Path, model: ModelName, *, ingredients: Mapping[str, str], loaded_as: Mapping[str, Any]
) -> None:
    """Write down where a model's name comes from; a disk that refuses is no reason not to serve.

    Args:
        root: the store's folder.
        model: its name.
        ingredients: ``Engine.ingredients``.
        loaded_as: ``model`` as it was given, ``dtype``, ``threads``, ``block_tokens``, ``device``.
    """
    fields = {
        "version": VERSION,
        "model": model.hex(),
        "ingredients": dict(ingredients),
        "loaded_as": dict(loaded_as),
    }
    path = _path(root, model)
    staged = path.with_suffix(".staged")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        staged.touch(mode=0o600)
        staged.write_text(json.dumps(fields, indent=2, sort_keys=True))
        staged.replace(path)


def noted_model(root: Path, model: ModelName) -> Origin | None:
    """Return where a model's name comes from; None if that is lost, damaged or of a later form."""
    try:
        fields = json.loads(_path(root, model).read_text())
        if fields["version"] != VERSION or fields["model"] != model.hex():
            return None
        return Origin(dict(fields["ingredients"]), dict(fields["loaded_as"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _path(root: Path, model: ModelName) -> Path:
    return root / MODELS / f"{model.hex()}.json"
