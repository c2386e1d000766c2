"""Where each component lies in a payload: derived from dtypes and shapes, never stored."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from surefoot.state import DTYPE_BYTES

ALIGN_BYTES = 64  # a cache line, and the widest vector register
AXES_MAX = 64  # as many as a torch tensor can have


class Slot(NamedTuple):
    """A component's description, and the bytes ``[start, end)`` of the payload that hold it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def layout(shapes: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[Slot, ...]:
    """Lay ``(name, dtype, shape)`` out in order, each at the next aligned offset."""
    slots = []
    end = 0
    for name, dtype, shape in shapes:
        assert len(shape) <= AXES_MAX, shape
        start = end + padding(end)
        end = start + prod(shape) * DTYPE_BYTES[dtype]
        slots.append(Slot(name, dtype, shape, start, end))
    return tuple(slots)


def payload_bytes(slots: tuple[Slot, ...]) -> int:
    """Return the length of a payload that is laid out so."""
    return slots[-1].end if slots else 0


def padding(offset: int) -> int:
    """Return how many bytes lie between ``offset`` and the next aligned one."""
    return -offset % ALIGN_BYTES
