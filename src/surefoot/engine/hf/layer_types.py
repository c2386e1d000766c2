"""The one table from transformers' cache-layer types to state laws.

A row says where a layer type keeps its state and which law each piece obeys. Types match exactly:
a subclass may keep more than its parent does, so what is not listed here is not supported.

A layer's attributes are of four sorts, and every one of them must be accounted for:

    fields    tensors that a part holds
    counters  integers that follow from the boundary: tokens // stride
    aliases   attributes that are the same tensor as another
    constant  the rest: flags, sizes and tensors that are the same at every boundary
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4CSACache,
    DeepseekV4HCACache,
)

from surefoot.laws import Law, PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows


class Path(NamedTuple):
    """Where a value lies in a layer: an attribute, or an entry of an attribute that is a dict."""

    attribute: str
    key: str | int | None = None


class Field(NamedTuple):
    """A tensor of a layer that is stored; ``axis`` counts its rows, None where it has none."""

    component: str
    path: Path
    axis: int | None


@dataclass(frozen=True, slots=True)
class Share:
    """What one layer gives to one group; a field that stays None in a model is left out."""

    kind: str  # the first half of the group's name
    law: Law
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class LayerState:
    """All state of one cache layer; whatever is not named here must be constant."""

    shares: tuple[Share, ...] = ()
    counters: Mapping[Path, int] = field(default_factory=dict)  # to tokens per count
    aliases: Mapping[Path, Path] = field(default_factory=dict)
    fixed: frozenset[Path] = frozenset()  # constants that are tensors


_WINDOW_COUNTER = {Path("cumulative_length"): 1}
_WINDOW_FIXED = frozenset({Path("_sliding_window_tensor")})
_KEYS = Field("keys", Path("keys"), 2)
_VALUES = Field("values", Path("values"), 2)
_ROWS = Share("rows", TokenRows(), (_KEYS, _VALUES))
_INDEXED_ROWS = Share(
    "rows",
    TokenRows(),
    (
        _KEYS,
        _VALUES,
        Field("indexer-keys", Path("indexer_keys"), 1),
        Field("indexer-positions", Path("indexer_position_ids"), 2),
    ),
)


def _rows(_: Any) -> LayerState:
    return LayerState((_ROWS,))


def _indexed_rows(_: Any) -> LayerState:
    return LayerState((_INDEXED_ROWS,))


def _window(layer: Any) -> LayerState:
    return LayerState((_window_share(layer),), _WINDOW_COUNTER, fixed=_WINDOW_FIXED)


def _states(layer: Any) -> LayerState:
    return LayerState((_states_share(layer),))


def _rows_and_states(layer: Any) -> LayerState:
    return LayerState((_ROWS, _states_share(layer)))


def _window_and_states(layer: Any) -> LayerState:
    shares = (_window_share(layer), _states_share(layer))
    return LayerState(shares, _WINDOW_COUNTER, fixed=_WINDOW_FIXED)


def _nothing(_: Any) -> LayerState:
    return LayerState()


def _pooled_window(layer: Any) -> LayerState:
    """Shared-KV window rows, and one pooled row per ``compress_rate`` tokens.

    At a boundary no token waits to be pooled (``block_tokens`` is a multiple of the rate), so the
    buffers are empty tensors: constants, not a snapshot.
    """
    names = tuple(layer.compressed_kv)
    window = Share("window", SlidingWindow(layer.sliding_window - 1), (_KEYS,))
    pooled = Share(
        "pooled",
        PooledRows(layer.compress_rate),
        tuple(Field(f"{name}-pooled", Path("compressed_kv", name), 1) for name in names),
    )
    buffers = {Path(part, name) for part in ("buffer_kv", "buffer_gate") for name in names}
    counts = {Path("entry_count", name): layer.compress_rate for name in names}
    return LayerState(
        (window, pooled),
        _WINDOW_COUNTER | counts,
        {Path("values"): Path("keys")},
        _WINDOW_FIXED | buffers,
    )


def _overlapping_pooled_window(layer: Any) -> LayerState:
    """As ``_pooled_window``; each pooled row also reads the window of tokens before its own."""
    state = _pooled_window(layer)
    overlap = tuple(
        Field(f"{name}-{part.replace('_', '-')}", Path(part, name), None)
        for name in layer.overlap_kv
        for part in ("overlap_kv", "overlap_gate")
    )
    shares = (*state.shares, Share("snapshot", RecurrentSnapshot(), overlap))
    return LayerState(shares, state.counters, state.aliases, state.fixed)


def _window_share(layer: Any) -> Share:
    # The stock layer keeps w - 1 rows: the w-th token that a query sees is the query itself.
    return Share("window", SlidingWindow(layer.sliding_window - 1), (_KEYS, _VALUES))


def _states_share(layer: Any) -> Share:
    fields = tuple(
        Field(f"{name}-{state}", Path(f"{name}_states", state), None)
        for state in range(layer.number_of_states)
        for name in ("conv", "recurrent")
    )
    return Share("snapshot", RecurrentSnapshot(), fields)


# "chunked_attention" maps to the sliding layer as well; only its mask differs, and a mask is made
# from positions and the window's counter, not from more rows than the layer keeps.
TABLE: Mapping[type, Callable[[Any], LayerState]] = {
    DynamicLayer: _rows,
    DynamicIndexedLayer: _indexed_rows,
    DynamicSlidingWindowLayer: _window,
    LinearAttentionLayer: _states,
    LinearAttentionAndFullAttentionLayer: _rows_and_states,
    LinearAttentionAndSlidingWindowAttentionLayer: _window_and_states,
    DummyLayer: _nothing,
    DeepseekV4HCACache: _pooled_window,
    DeepseekV4CSACache: _overlapping_pooled_window,
}


def leaves(layer: Any) -> dict[Path, Any]:
    """Return every value a layer holds, entries of its dicts one by one."""
    found: dict[Path, Any] = {}
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            found.update({Path(name, key): entry for key, entry in value.items()})
        else:
            found[Path(name)] = value
    return found


def read(layer: Any, path: Path) -> Any:
    """Return the value at ``path``."""
    value = getattr(layer, path.attribute)
    return value if path.key is None else value[path.key]


def write(layer: Any, path: Path, value: Any) -> None:
    """Put ``value`` at ``path``."""
    if path.key is None:
        setattr(layer, path.attribute, value)
    else:
        getattr(layer, path.attribute)[path.key] = value
