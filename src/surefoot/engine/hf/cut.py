"""Between a live cache and parts: cut copies out, install copies in (I5).

No stored byte is reachable from a model. ``install`` fills buffers that no sequence can see and
returns a finished cache, or raises and leaves nothing behind. Parts hold tensors' bytes only; every
length, counter and flag is derived from the boundary and from what the table learned about the
layer type, never from a part.

A component holds its group's layers stacked: [layers, *the layer's own axes], batch 1 included.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicIndexedLayer,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
)

from surefoot.engine import Placed
from surefoot.engine.hf.layer_types import Field, Path, read, write
from surefoot.engine.hf.layers import IndexedRowsLayer, RowsAndStatesLayer, RowsLayer, RowStack
from surefoot.engine.hf.weights import host_tensor, torch_dtype
from surefoot.laws import TokenRows
from surefoot.state import ROWS, Component, Group, Part


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a group lives: its layers, in order, and the fields that its components stack."""

    group: Group
    layers: tuple[int, ...]
    fields: tuple[Field, ...]
    device: torch.device

    @property
    def stacked(self) -> bool:
        """Whether the live cache holds this group in stacks already."""
        return isinstance(self.group.law, TokenRows)


@dataclass(frozen=True, slots=True)
class Derived:
    """A layer's state that no part holds: what follows from the boundary, and what never varies."""

    counters: Mapping[Path, int]  # to tokens per count
    aliases: Mapping[Path, Path]
    constants: Mapping[Path, Any]  # tensors among them are copied


class SequenceCache(DynamicCache):  # type: ignore[misc]  # transformers is untyped
    """One sequence's live state: a transformers cache whose token rows lie in stacks."""

    def __init__(self, config: Any, layouts: Iterable[Layout], rows: int, room: int) -> None:
        """Stand at ``rows`` rows that are still garbage, with room for ``room``."""
        super().__init__(config=config)
        self.stacks: dict[str, dict[str, RowStack]] = {}
        for layout in layouts:
            if layout.stacked:
                stacks = _stacks(layout, room)
                self.stacks[layout.group.name] = stacks
                for place, index in enumerate(layout.layers):
                    self.layers[index] = _stand_in(self.layers[index], stacks, place, rows)

    def reserve(self, rows: int, used: int) -> None:
        """Make room for ``rows`` in every stack, keeping ``used``; between forward passes only."""
        for stacks in self.stacks.values():
            for stack in stacks.values():
                stack.reserve(rows, used)


@dataclass(frozen=True, slots=True)
class StateTable:
    """A model's groups, and how its live caches are made of and cut into their parts."""

    config: Any
    block_tokens: int
    layouts: tuple[Layout, ...]
    derived: tuple[Derived, ...]  # one per cache layer

    @property
    def groups(self) -> tuple[Group, ...]:
        """The model's state groups."""
        return tuple(layout.group for layout in self.layouts)

    def fresh(self, room: int) -> SequenceCache:
        """Return an empty cache with room for ``room`` tokens."""
        return SequenceCache(self.config, self.layouts, 0, room)

    def install(
        self, boundary: int, parts: Sequence[Placed], *, room: int | None = None
    ) -> SequenceCache:
        """Return a new cache that stands at ``boundary`` tokens (I5).

        Args:
            boundary: tokens consumed, > 0.
            parts: what each group's law needs there, and nothing else; only copied from.
            room: tokens to make room for; at least ``boundary``, which is the default.

        Raises:
            ValueError: a part is missing, surplus or does not fit its group's schema.
        """
        wanted = self._sorted(boundary, parts)
        with torch.inference_mode():
            cache = SequenceCache(self.config, self.layouts, boundary, max(room or 0, boundary))
            for layout in self.layouts:
                _fill(cache, layout, boundary, wanted[layout.group.name])
            for layer, derived in zip(cache.layers, self.derived, strict=True):
                _derive(layer, derived, boundary)
        return cache

    def cut(
        self, cache: SequenceCache, start: int, end: int, groups: Collection[str]
    ) -> tuple[Part, ...]:
        """Copy out the parts of the block ``[start, end)`` that ``cache`` has just consumed."""
        unknown = set(groups) - {group.name for group in self.groups}
        assert not unknown, unknown
        with torch.inference_mode():
            return tuple(
                _cut(cache, layout, start, end)
                for layout in self.layouts
                if layout.group.name in groups
            )

    def _sorted(self, boundary: int, parts: Sequence[Placed]) -> dict[str, list[Placed]]:
        assert boundary > 0, boundary
        wanted: dict[str, list[Placed]] = {group.name: [] for group in self.groups}
        for placed in sorted(parts, key=lambda one: one.start):
            if placed.part.group not in wanted:
                raise ValueError(f"no group is called {placed.part.group!r}")
            wanted[placed.part.group].append(placed)
        for group in self.groups:
            problem = _problem(group, boundary, wanted[group.name])
            if problem:
                raise ValueError(f"{group.name} at {boundary}: {problem}")
        return wanted


def _problem(group: Group, boundary: int, placed: Sequence[Placed]) -> str | None:
    """Say why ``placed``, sorted, are not exactly the parts that ``group`` needs."""
    ends = [one.end for one in placed]
    if not ends or ends[-1] != boundary:
        return f"parts end at {ends[-1:]}"
    for one, following in pairwise(placed):
        if one.end != following.start:
            return f"a part that ends at {one.end} is followed by one at {following.start}"
    for one in placed:
        mismatch = group.mismatch(one.part, one.start, one.end)
        if mismatch:
            return f"block [{one.start}, {one.end}): {mismatch}"
    needed = group.law.needs(ends, len(ends))
    held = sum(group.law.rows(one.start, one.end) for one in placed)
    if len(needed) != len(placed) or held < group.law.rows(0, boundary):
        return f"blocks {[(one.start, one.end) for one in placed]} are not those it needs"
    return None


def _fill(cache: SequenceCache, layout: Layout, boundary: int, placed: Sequence[Placed]) -> None:
    """Copy a group's parts into its stacks, or into tensors of its layers' own."""
    total = layout.group.law.rows(0, boundary)
    for number, (field, schema) in enumerate(zip(layout.fields, layout.group.schema, strict=True)):
        sources = [_bytes_of(one.part.components[number]) for one in placed]
        if layout.stacked:
            stack = cache.stacks[layout.group.name][field.component]
            _join(stack.data.narrow(stack.axis, 0, total), sources, stack.axis)
            continue
        dtype = sources[0].dtype
        joined = torch.empty(schema.shape_for(total), dtype=dtype, device=layout.device)
        _join(joined, sources, None if field.axis is None else field.axis + 1)
        for place, index in enumerate(layout.layers):
            write(cache.layers[index], field.path, joined[place].clone())


def _join(whole: torch.Tensor, sources: Sequence[torch.Tensor], axis: int | None) -> None:
    """Fill ``whole`` with the last rows of ``sources``, in order; ``axis`` None takes the last."""
    if axis is None:
        whole.copy_(sources[-1])
        return
    end = whole.shape[axis]
    for source in reversed(sources):
        rows = source.shape[axis]
        take = min(rows, end)
        whole.narrow(axis, end - take, take).copy_(source.narrow(axis, rows - take, take))
        end -= take
    assert end == 0, (whole.shape, end)


def _derive(layer: Any, derived: Derived, boundary: int) -> None:
    for path, constant in derived.constants.items():
        value = constant.clone() if isinstance(constant, torch.Tensor) else constant
        write(layer, path, value)
    for path, stride in derived.counters.items():
        write(layer, path, boundary // stride)
    for path, original in derived.aliases.items():
        write(layer, path, read(layer, original))


def _cut(cache: SequenceCache, layout: Layout, start: int, end: int) -> Part:
    rows, total = layout.group.law.rows(start, end), layout.group.law.rows(0, end)
    components = []
    for field, schema in zip(layout.fields, layout.group.schema, strict=True):
        shape = schema.shape_for(rows)
        data = bytearray(prod(shape) * torch_dtype(schema.dtype).itemsize)
        if data:
            host = torch.frombuffer(data, dtype=torch_dtype(schema.dtype)).view(shape)
            if layout.stacked:
                stack = cache.stacks[layout.group.name][field.component]
                host.copy_(stack.data.narrow(stack.axis, start, rows))
            else:
                for place, index in enumerate(layout.layers):
                    live = _last(read(cache.layers[index], field.path), field.axis, rows, total)
                    # ``copy_`` would broadcast or cast in silence.
                    assert (live.shape, live.dtype) == (host[place].shape, host.dtype), field
                    host[place].copy_(live)
        view = memoryview(data).toreadonly()
        components.append(Component(schema.name, schema.dtype, shape, view))
    return Part(layout.group.name, tuple(components))


def _last(live: torch.Tensor, axis: int | None, rows: int, total: int) -> torch.Tensor:
    if axis is None:
        return live
    assert live.shape[axis] == total, (tuple(live.shape), total)
    return live.narrow(axis, total - rows, rows)


def _stacks(layout: Layout, room: int) -> dict[str, RowStack]:
    return {
        field.component: RowStack(
            schema.shape, schema.shape.index(ROWS), torch_dtype(schema.dtype), layout.device, room
        )
        for field, schema in zip(layout.fields, layout.group.schema, strict=True)
    }


def _stand_in(stock: Any, stacks: Mapping[str, RowStack], place: int, rows: int) -> RowsLayer:
    if type(stock) is DynamicLayer:
        return RowsLayer(stacks, place, rows)
    if type(stock) is DynamicIndexedLayer:
        return IndexedRowsLayer(stacks, place, rows)
    assert type(stock) is LinearAttentionAndFullAttentionLayer, type(stock)
    return RowsAndStatesLayer(stacks, place, rows, states=stock.number_of_states)


def _bytes_of(component: Component) -> torch.Tensor:
    return host_tensor(component.dtype, component.shape, component.data)
