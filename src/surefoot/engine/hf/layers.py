"""Token rows in preallocated buffers: a stand-in for transformers' growing cache layers.

The stock layers concatenate the whole cache for every token. Here all layers of a group share one
stack per component, appended in place and returned as narrow views; the bits are those of the stock
layers. Growth happens between forward passes (``reserve``), never inside one.

How large a stack is depends on the number of rows alone, never on how they came there. So a forward
pass sees the same strides whether its prefix was computed or restored (I5).

Layer types that are not appended to per token (windows, recurrent and pooled state) stay stock.
"""

from collections.abc import Mapping

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from surefoot.state import STEP_ROWS, buffer_rows


def capacity(rows: int) -> int:
    """Return how many rows a stack that must hold ``rows`` is given."""
    return buffer_rows(rows, STEP_ROWS)


class RowStack:
    """One component of one group: the rows of all its layers in one buffer.

    ``data`` [layers, *the layer's own axes], where the row axis has ``capacity`` rows; rows past
    those that a layer counts are garbage.
    """

    def __init__(
        self, shape: tuple[int, ...], axis: int, dtype: torch.dtype, device: torch.device, rows: int
    ) -> None:
        """Allocate room for ``rows``.

        Args:
            shape: the stack's shape; the size at ``axis`` is ignored.
            axis: the row axis, in the stack.
            dtype: the rows' dtype.
            device: where the layers of this group compute.
            rows: how many rows must fit.
        """
        self.axis = axis
        room = (*shape[:axis], capacity(rows), *shape[axis + 1 :])
        self.data = torch.empty(room, dtype=dtype, device=device)

    def reserve(self, rows: int, used: int) -> None:
        """Make room for ``rows``, keeping the first ``used`` rows of every layer."""
        room = capacity(rows)
        if room <= self.data.shape[self.axis]:
            return
        shape = list(self.data.shape)
        shape[self.axis] = room
        grown = self.data.new_empty(shape)
        grown.narrow(self.axis, 0, used).copy_(self.data.narrow(self.axis, 0, used))
        self.data = grown

    def rows(self, layer: int, count: int) -> torch.Tensor:
        """Return a view of a layer's first ``count`` rows."""
        return self.data[layer].narrow(self.axis - 1, 0, count)

    def append(self, layer: int, used: int, rows: torch.Tensor) -> torch.Tensor:
        """Write ``rows`` behind the layer's first ``used`` and return a view of all of them."""
        assert rows.dtype == self.data.dtype, (rows.dtype, self.data.dtype)
        count = rows.shape[self.axis - 1]
        self.data[layer].narrow(self.axis - 1, used, count).copy_(rows)
        return self.rows(layer, used + count)


class RowsLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """Stand in for ``DynamicLayer``: keys and values live in the group's stacks.

    What the stock layer can do to its rows besides ``update`` (crop, reorder, offload) fails here,
    because ``keys`` and ``values`` cannot be assigned.
    """

    is_sliding = False

    def __init__(self, stacks: Mapping[str, RowStack], layer: int, rows: int) -> None:
        """Stand at ``rows`` rows of the stacks; ``layer`` counts within the group."""
        self.stacks = stacks
        self.layer = layer
        self.length = rows
        self.is_initialized = True
        self.device = stacks["keys"].data.device

    @property
    def keys(self) -> torch.Tensor:
        """The keys so far."""
        return self.stacks["keys"].rows(self.layer, self.length)

    @property
    def values(self) -> torch.Tensor:
        """The values so far."""
        return self.stacks["values"].rows(self.layer, self.length)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the stacks were allocated before the first forward pass."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append, and return views of all keys and values."""
        keys = self.stacks["keys"].append(self.layer, self.length, key_states)
        values = self.stacks["values"].append(self.layer, self.length, value_states)
        self.length += key_states.shape[-2]
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys a query block of this length sees, and the first one's position."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens seen."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1, which stands for no maximum."""
        return -1


class IndexedRowsLayer(RowsLayer):
    """Stand in for ``DynamicIndexedLayer``: rows, indexer keys and, on some layers, positions."""

    def __init__(self, stacks: Mapping[str, RowStack], layer: int, rows: int) -> None:
        """Stand at ``rows`` rows of the stacks; ``layer`` counts within the group."""
        super().__init__(stacks, layer, rows)
        self.indexed = rows
        self.positioned = rows
        self.is_indexer_initialized = True
        self.indexer_dtype = stacks["indexer-keys"].data.dtype
        self.indexer_device = stacks["indexer-keys"].data.device

    @property
    def indexer_keys(self) -> torch.Tensor:
        """The indexer's keys so far."""
        return self.stacks["indexer-keys"].rows(self.layer, self.indexed)

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Append, and return a view of all indexer keys."""
        keys = self.stacks["indexer-keys"].append(self.layer, self.indexed, indexer_key_states)
        self.indexed += indexer_key_states.shape[1]
        return keys

    @property
    def indexer_position_ids(self) -> torch.Tensor | None:
        """The positions so far; None before the first and where the family keeps none."""
        if self.positioned == 0 or "indexer-positions" not in self.stacks:
            return None
        return self.stacks["indexer-positions"].rows(self.layer, self.positioned)

    @indexer_position_ids.setter
    def indexer_position_ids(self, positions: torch.Tensor | None) -> None:
        # The model concatenates what it read here with the new positions and assigns the whole.
        if positions is None:
            return
        new = positions[..., self.positioned :]
        self.stacks["indexer-positions"].append(self.layer, self.positioned, new)
        self.positioned = positions.shape[-1]


class RowsAndStatesLayer(LinearAttentionLayer, RowsLayer):  # type: ignore[misc]  # untyped
    """Stand in for ``LinearAttentionAndFullAttentionLayer``: rows beside recurrent state."""

    is_compileable = False

    def __init__(
        self, stacks: Mapping[str, RowStack], layer: int, rows: int, *, states: int
    ) -> None:
        """Stand at ``rows`` rows, with ``states`` recurrent states that are not set yet."""
        RowsLayer.__init__(self, stacks, layer, rows)
        LinearAttentionLayer.__init__(self, number_of_states=states)
