"""Reading a model: which groups of state it has, or why it is served without a cache.

``inspect`` lets the model consume two blocks on stock cache layers and holds what they contain
against ``layer_types.TABLE`` at both boundaries. Every attribute of every layer must be accounted
for: a tensor that no law covers, a counter that does not follow from the boundary or a flag that
changes makes the model unsupported. It is never copied whole and hoped for (I5).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from surefoot.engine.hf.cut import Derived, Layout, SequenceCache, StateTable
from surefoot.engine.hf.forward import Forward
from surefoot.engine.hf.layer_types import TABLE, Field, LayerState, Path, Share, leaves
from surefoot.laws import Law, PooledRows
from surefoot.state import DTYPE_BYTES, ROWS, ComponentSchema, Group

__all__ = ["SequenceCache", "StateTable", "Unsupported", "inspect"]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why a model is served without a cache; ``reason`` is one clause for an operator."""

    reason: str


class _Refusal(Exception):
    """Leave the inspection with a reason."""


def inspect(
    model: Any, *, block_tokens: int, atomic_spans: bool = False
) -> StateTable | Unsupported:
    """Return how the model's state is cut and installed, or why it cannot be.

    Runs two forward passes of ``block_tokens`` tokens.

    Args:
        model: a loaded causal language model, in evaluation mode.
        block_tokens: the grid's step, > 0.
        atomic_spans: whether ends of blocks move to ends of media spans.
    """
    assert block_tokens > 0, block_tokens
    try:
        forward = Forward(model)
        _refuse_by_config(model, forward, 2 * block_tokens)
        cache = _stock_cache(model.config)
        states = [_layer_state(cache, index, block_tokens) for index in range(len(cache.layers))]
        if atomic_spans:
            _refuse_pooling(states)
        seen = _probe(model, forward, cache, block_tokens)
        shapes = [
            _Layer(index, type(cache.layers[index]).__name__, state, *at, block_tokens)
            for index, (state, at) in enumerate(zip(states, seen, strict=True))
        ]
        layouts = _layouts(shapes)
        derived = tuple(shape.derived() for shape in shapes)
    except _Refusal as refusal:
        return Unsupported(str(refusal))
    return StateTable(model.config, block_tokens, layouts, derived)


def _refuse_by_config(model: Any, forward: Forward, probe_tokens: int) -> None:
    if getattr(model.config, "is_encoder_decoder", False):
        raise _Refusal("an encoder-decoder's cache depends on more than the tokens before it")
    if not forward.accepts_cache:
        raise _Refusal("its forward call takes no cache")
    both_ways = getattr(
        model.config.get_text_config(decoder=True), "use_bidirectional_attention", None
    )
    if both_ways in (True, "all"):
        raise _Refusal("its tokens attend to later ones, so state is no function of a prefix")
    for rope in (*_rope_types(model.config.to_dict()), *_module_rope_types(model)):
        # Their rotation depends on the longest position of the call, so rows are no function of
        # the tokens before them (transformers 5.24: modeling_rope_utils.dynamic_rope_update).
        if "dynamic" in rope or rope == "longrope":
            raise _Refusal(f"RoPE of type {rope!r} rotates by what the call holds")
    text = model.config.get_text_config(decoder=True)
    context = getattr(text, "max_position_embeddings", None)
    if context is not None and context < probe_tokens:
        raise _Refusal(f"its context of {context} tokens holds fewer than two blocks")


def _rope_types(config: object, within: str = "") -> Iterator[str]:
    """Yield every RoPE type that a configuration names, at any depth."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            named = key == "rope_type" or (key == "type" and "rope" in within)
            if named and isinstance(value, str):
                yield value
            # Parameters per layer type are nested once more, so "rope" is remembered on the way.
            yield from _rope_types(value, f"{within} {key}")
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _rope_types(value, within)


def _module_rope_types(model: Any) -> Iterator[str]:
    for module in model.modules():
        rope = getattr(module, "rope_type", None)
        for kind in rope.values() if isinstance(rope, Mapping) else [rope]:
            if isinstance(kind, str):
                yield kind


def _stock_cache(config: Any) -> Any:
    try:
        cache = DynamicCache(config=config)
    except KeyError as error:
        raise _Refusal(f"transformers has no cache layer for layer type {error}") from error
    if not cache.layers:
        raise _Refusal("its configuration says nothing about its cache layers")
    return cache


def _layer_state(cache: Any, index: int, block_tokens: int) -> LayerState:
    layer = cache.layers[index]
    describe = TABLE.get(type(layer))
    if describe is None:
        raise _Refusal(f"layer {index} keeps its state in {type(layer).__name__}: no law is known")
    if getattr(layer, "sliding_window", 2) < 2:
        raise _Refusal(f"layer {index} has a window of {layer.sliding_window} tokens")
    state = describe(layer)
    for share in state.shares:
        if isinstance(share.law, PooledRows) and block_tokens % share.law.stride:
            stride = share.law.stride
            raise _Refusal(f"block_tokens {block_tokens} is not a multiple of its stride {stride}")
    return state


def _refuse_pooling(states: Iterable[LayerState]) -> None:
    for index, state in enumerate(states):
        if any(isinstance(share.law, PooledRows) for share in state.shares):
            raise _Refusal(
                f"layer {index} pools tokens, and a block may end with an image anywhere"
            )


def _probe(
    model: Any, forward: Forward, cache: Any, block_tokens: int
) -> list[tuple[dict[Path, Any], dict[Path, Any]]]:
    """Return what each layer holds after one block and after two."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    ids = (torch.arange(2 * block_tokens, device=model.device) * 7 + 3)[None] % vocabulary
    snapshots = []
    with torch.inference_mode():
        for start in (0, block_tokens):
            forward(ids[:, start : start + block_tokens], start, cache)
            snapshots.append([_copied(leaves(layer)) for layer in cache.layers])
    return list(zip(*snapshots, strict=True))


def _copied(values: dict[Path, Any]) -> dict[Path, Any]:
    # Recurrent state is updated in place; an alias stays recognisable by its memory.
    kept: dict[int, torch.Tensor] = {}
    copied = {}
    for path, value in values.items():
        if isinstance(value, torch.Tensor):
            copied[path] = kept.setdefault(id(value), value.clone())
        else:
            copied[path] = value
    return copied


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer as the probe found it after one block (``first``) and after two (``second``)."""

    index: int
    type: str
    state: LayerState
    first: dict[Path, Any]
    second: dict[Path, Any]
    block_tokens: int

    def refuse(self, path: Path, why: str) -> _Refusal:
        name = path.attribute if path.key is None else f"{path.attribute}[{path.key!r}]"
        return _Refusal(f"layer {self.index} ({self.type}): {name} {why}")

    def held(self, share: Share) -> list[tuple[Field, ComponentSchema, torch.device]]:
        """Return the fields of ``share`` that this model uses, each with its schema."""
        found = []
        for field in share.fields:
            values = self.first[field.path], self.second[field.path]
            if all(value is None for value in values):
                continue
            if not all(isinstance(value, torch.Tensor) for value in values):
                raise self.refuse(field.path, "is a tensor at some boundaries only")
            found.append((field, self.schema(share.law, field), values[0].device))
        if not found:
            raise self.refuse(share.fields[0].path, "stays empty: the cache is not used")
        return found

    def schema(self, law: Law, field: Field) -> ComponentSchema:
        shapes = []
        for blocks, values in enumerate((self.first, self.second), start=1):
            shape = list(values[field.path].shape)
            if field.axis is not None:
                if shape[field.axis] != law.rows(0, blocks * self.block_tokens):
                    raise self.refuse(field.path, f"has shape {shape} after {blocks} blocks")
                shape[field.axis] = ROWS
            shapes.append((str(values[field.path].dtype).removeprefix("torch."), *shape))
        if shapes[0] != shapes[1] or shapes[0][0] not in DTYPE_BYTES:
            raise self.refuse(field.path, f"has dtype and shape {shapes[0]}, then {shapes[1]}")
        dtype, *shape = shapes[0]
        return ComponentSchema(field.component, dtype, tuple(shape))

    def derived(self) -> Derived:
        """Check every value that no part holds and return how to derive it."""
        fields = {field.path for share in self.state.shares for field in share.fields}
        constants = {}
        for path, value in self.second.items():
            if path in self.state.counters:
                self._check_counter(path, self.state.counters[path])
            elif path in self.state.aliases:
                if value is not self.second[self.state.aliases[path]]:
                    raise self.refuse(path, "is not the tensor that it should share")
            elif path not in fields:
                self._check_constant(path)
                constants[path] = value
        return Derived(self.state.counters, self.state.aliases, constants)

    def _check_counter(self, path: Path, stride: int) -> None:
        counts = [self.first[path], self.second[path]]
        if counts != [blocks * self.block_tokens // stride for blocks in (1, 2)]:
            raise self.refuse(path, f"counts {counts} after one block and two")

    def _check_constant(self, path: Path) -> None:
        before: Any = self.first.get(path)
        after = self.second[path]
        if isinstance(after, torch.Tensor):
            if path not in self.state.fixed:
                raise self.refuse(path, "is a tensor that no law covers")
            same = isinstance(before, torch.Tensor) and bool(before.equal(after))
        else:
            same = before == after and isinstance(after, _PLAIN)
        if not same:
            raise self.refuse(path, f"was {before} after one block and is {after} after two")


_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


def _layouts(layers: list[_Layer]) -> tuple[Layout, ...]:
    """Stack layers of one law and one schema, in the order in which they first appear."""
    members: dict[tuple[Any, ...], list[int]] = {}
    fields: dict[tuple[Any, ...], tuple[Field, ...]] = {}
    for layer in layers:
        for share in layer.state.shares:
            held = layer.held(share)
            schema = tuple(one[1] for one in held)
            key = (share.kind, share.law, schema, held[0][2])
            members.setdefault(key, []).append(layer.index)
            fields[key] = tuple(one[0] for one in held)
    layouts: list[Layout] = []
    numbers: dict[str, int] = {}
    for key, indices in members.items():
        kind, law, schema, device = key
        number = numbers[kind] = numbers.get(kind, -1) + 1
        stacked = tuple(
            ComponentSchema(one.name, one.dtype, (len(indices), *one.shape)) for one in schema
        )
        group = Group(f"{kind}-{number}", law, stacked)
        layouts.append(Layout(group, tuple(indices), fields[key], device))
    return tuple(layouts)
