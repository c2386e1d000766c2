"""A model's stored state, as host bytes: groups, their schema, and one group's part of one block.

A group is a set of layers that share one law and one shape. Its part of a block is a few components
(keys and values, or a recurrent state), each a dtype, a shape and raw bytes in C order,
little-endian. No tensors here: the engine cuts parts from a model and installs them; ``record``
gives them a byte form. Whatever a part claims about itself is checked against the schema
(``Group.mismatch``, I2) before an engine sees it; lengths and counters are derived from the
boundary, never stored.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from surefoot.identity import Buffer
from surefoot.laws import Law, PooledRows, SlidingWindow, TokenRows

DTYPE_BYTES = {
    "bfloat16": 2,
    "bool": 1,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
}
ROWS = -1  # the axis of a schema's shape that counts the law's rows
STEP_ROWS = 1024  # a live buffer of token rows has a multiple of this many


@dataclass(frozen=True, slots=True)
class ComponentSchema:
    """What a component of a part must look like; ``ROWS`` marks at most one axis of ``shape``."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.dtype in DTYPE_BYTES, self
        assert self.shape.count(ROWS) <= 1, self

    def shape_for(self, rows: int) -> tuple[int, ...]:
        """Return the shape of a component that holds ``rows`` rows."""
        return tuple(rows if axis == ROWS else axis for axis in self.shape)


@dataclass(frozen=True, slots=True)
class Component:
    """One tensor of a part: ``data`` is C-order little-endian bytes, owned by the part."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Buffer

    def __post_init__(self) -> None:
        expected = prod(self.shape) * DTYPE_BYTES[self.dtype]
        assert memoryview(self.data).nbytes == expected, (self.name, self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Part:
    """One group's stored state for one block."""

    group: str
    components: tuple[Component, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all components."""
        return sum(memoryview(component.data).nbytes for component in self.components)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one law and one shape; ``name`` is unique within a model."""

    name: str
    law: Law
    schema: tuple[ComponentSchema, ...]

    def part_bytes(self, start: int, end: int) -> int:
        """Return the bytes of this group's part of the block ``[start, end)``."""
        return self._bytes_of(self.law.rows(start, end))

    def live_bytes(self, tokens: int, block_tokens: int) -> int:
        """Return the bytes that a sequence of ``tokens`` tokens may hold of this group.

        Token rows lie in buffers with room to grow, so a short sequence holds more than its rows; a
        window is a view of what it was and of the last block; a row that is not pooled yet counts.
        """
        law = self.law
        if isinstance(law, TokenRows):
            return self._bytes_of(buffer_rows(tokens, STEP_ROWS))
        if isinstance(law, SlidingWindow):
            return self._bytes_of(min(tokens, law.keep + block_tokens))
        if isinstance(law, PooledRows):
            return self._bytes_of(-(-tokens // law.stride))
        return self.part_bytes(0, tokens)

    def _bytes_of(self, rows: int) -> int:
        return sum(prod(one.shape_for(rows)) * DTYPE_BYTES[one.dtype] for one in self.schema)

    def mismatch(self, part: Part, start: int, end: int) -> str | None:
        """Say how ``part`` differs from what this group's block ``[start, end)`` must hold."""
        rows = self.law.rows(start, end)
        expected = [(one.name, one.dtype, one.shape_for(rows)) for one in self.schema]
        found = [(one.name, one.dtype, one.shape) for one in part.components]
        if part.group != self.name:
            return f"group {part.group!r} where {self.name!r} belongs"
        if found != expected:
            return f"components {found} where {expected} belong"
        return None


@dataclass(frozen=True, slots=True)
class Features:
    """What a vision tower made of one media item, alone."""

    components: tuple[Component, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all components."""
        return sum(memoryview(component.data).nbytes for component in self.components)


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """What a model's features look like; ``ROWS`` counts an item's placeholder tokens."""

    components: tuple[ComponentSchema, ...]

    def feature_bytes(self, tokens: int) -> int:
        """Return the bytes of the features of an item of ``tokens`` placeholder tokens."""
        return sum(prod(one.shape_for(tokens)) * DTYPE_BYTES[one.dtype] for one in self.components)

    def mismatch(self, features: Features, tokens: int) -> str | None:
        """Say how ``features`` differ from what an item of ``tokens`` tokens must have."""
        expected = [(one.name, one.dtype, one.shape_for(tokens)) for one in self.components]
        found = [(one.name, one.dtype, one.shape) for one in features.components]
        if found != expected:
            return f"components {found} where {expected} belong"
        return None


def buffer_rows(rows: int, step: int) -> int:
    """Return how many rows a buffer that must hold ``rows`` is given: steps, growing by half."""
    room = step
    while room < rows:
        room = -(-room * 3 // 2 // step) * step
    return room


def state_bytes(groups: Iterable[Group], tokens: int, block_tokens: int) -> int:
    """Return the bytes of state that one live sequence of ``tokens`` tokens may hold."""
    return sum(group.live_bytes(tokens, block_tokens) for group in groups)


def by_name(groups: Iterable[Group]) -> dict[str, Group]:
    """Index groups by name; two groups of one name are a bug."""
    listed = list(groups)
    index = {group.name: group for group in listed}
    assert len(index) == len(listed), [group.name for group in listed]
    return index
