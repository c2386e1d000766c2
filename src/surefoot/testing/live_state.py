"""Everything a live transformers cache holds, for comparison bit by bit.

Stock layers and our stand-ins are read alike: every tensor, counter and flag, by layer and place.
What only the stand-ins have (their stacks) is left out; what they show of them is kept.
"""

from typing import Any

import torch

from surefoot.engine.hf.layer_types import Path, leaves

_OWN = ("stacks", "layer", "length", "indexed", "positioned")
_SHOWN = ("keys", "values", "indexer_keys", "indexer_position_ids")


def live_state(cache: Any) -> dict[tuple[int, Path], Any]:
    """Return a copy of all state of ``cache``, by layer and place in the layer."""
    state: dict[tuple[int, Path], Any] = {}
    for index, layer in enumerate(cache.layers):
        found = {path: value for path, value in leaves(layer).items() if path.attribute not in _OWN}
        for name in _SHOWN:
            if isinstance(getattr(type(layer), name, None), property):
                found[Path(name)] = getattr(layer, name)
        for path, value in found.items():
            copied = value.clone() if isinstance(value, torch.Tensor) else value
            state[index, path] = copied
    return state


def held_bytes(cache: Any) -> int:
    """Return the bytes allocated for ``cache``: every tensor's storage, whole, and once."""
    tensors = [stack.data for stacks in cache.stacks.values() for stack in stacks.values()]
    for layer in cache.layers:
        tensors += [one for one in leaves(layer).values() if isinstance(one, torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def differences(left: dict[tuple[int, Path], Any], right: dict[tuple[int, Path], Any]) -> list[str]:
    """Name every place where two states differ in a bit, a shape, a dtype or a value."""
    absent = object()
    places = [*left, *(place for place in right if place not in left)]
    return [
        f"layer {index}: {path.attribute} {path.key}"
        for index, path in places
        if not same(left.get((index, path), absent), right.get((index, path), absent))
    ]


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal; tensors in every bit, NaN and sign of zero included."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return bool(_bits(left).equal(_bits(right)))
    return type(left) is type(right) and bool(left == right)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
