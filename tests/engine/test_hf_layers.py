"""Growable rows are transformers' own layers, bit for bit, and their size says nothing."""

from itertools import pairwise

import pytest
import torch

from surefoot.engine import Sampled, Sampling
from surefoot.engine.hf import layers
from surefoot.engine.hf.layers import IndexedRowsLayer, RowsLayer, RowStack, capacity
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.table import inspect
from surefoot.prompt import Prompt, grid
from surefoot.testing.families import FAMILIES, VOCABULARY, model
from surefoot.testing.live_state import differences, live_state, same

torch.set_num_threads(2)


class Recorder:
    def __init__(self):
        self.logits = []

    def __call__(self, logits, *, prompt_ids, generated, sampling, position):
        self.logits.append(logits.clone())
        return Sampled(int(logits.argmax()))


def played(subject, table, prompt, step):
    choose = Recorder()
    run = HfRun(subject, table, prompt, Sampling(), choose=choose)
    states = []
    for end in (*grid(prompt, step), len(prompt)):
        run.prefill(end)
        states.append(live_state(run._cache))
    for _ in range(8):
        run.feed(run.sample().token)
        states.append(live_state(run._cache))
    return choose.logits, states, run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_growing_rows_are_the_stock_layers_bit_for_bit(monkeypatch, name, dtype):
    """I5: through several growths, in every tensor, counter and flag after every call."""
    monkeypatch.setattr(layers, "STEP_ROWS", 16)
    family = FAMILIES[name]
    subject = model(name, dtype, family.attentions[0])
    table = inspect(subject, block_tokens=family.block_tokens)
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(VOCABULARY, (2 * family.block_tokens + 5,), generator=draw).tolist()
    logits, states, run = played(subject, table, Prompt.of(ids), family.block_tokens)
    stock_logits, stock_states, _ = played(subject, None, Prompt.of(ids), family.block_tokens)
    assert all(map(same, logits, stock_logits))
    for state, stock in zip(states, stock_states, strict=True):
        assert differences(state, stock) == []
    for stacks in run._cache.stacks.values():
        for stack in stacks.values():
            assert stack.data.shape[stack.axis] == capacity(run.position)


def test_capacity_grows_in_steps_and_holds_what_is_asked():
    sizes = [capacity(rows) for rows in range(0, 200_000, 37)]
    assert all(size >= rows for rows, size in zip(range(0, 200_000, 37), sizes, strict=True))
    assert sorted(sizes) == sizes
    assert all(size % layers.STEP_ROWS == 0 for size in sizes)
    distinct = sorted(set(sizes))
    assert len(distinct) < 16
    assert all(size <= 2 * before for before, size in pairwise(distinct))


def stack(rows, used=0, layers_=2):
    made = RowStack((layers_, 1, 3, -1, 4), 3, torch.float32, torch.device("cpu"), rows)
    made.data.fill_(float("nan"))
    for layer in range(layers_):
        made.data[layer, :, :, :used] = layer
    return made


def test_a_stack_keeps_its_rows_when_it_grows(monkeypatch):
    monkeypatch.setattr(layers, "STEP_ROWS", 8)
    grown = stack(8, used=5)
    grown.reserve(8, 5)
    assert grown.data.shape[3] == 8
    grown.reserve(9, 5)
    assert grown.data.shape[3] == 16
    for layer in range(2):
        assert bool((grown.rows(layer, 5) == layer).all())


def test_rows_are_appended_in_place_and_returned_as_views():
    keys = stack(8)
    view = keys.append(1, 0, torch.ones(1, 3, 2, 4))
    longer = keys.append(1, 2, torch.full((1, 3, 1, 4), 2.0))
    assert view.data_ptr() == longer.data_ptr() == keys.data[1].data_ptr()
    assert longer[0, 0, :, 0].tolist() == [1.0, 1.0, 2.0]
    assert bool(keys.data[0].isnan().all())


def test_rows_of_another_dtype_are_not_cast_in_silence():
    with pytest.raises(AssertionError):
        stack(8).append(0, 0, torch.ones(1, 3, 2, 4, dtype=torch.float64))


def test_rows_cannot_be_replaced_behind_the_stack():
    layer = RowsLayer({"keys": stack(8), "values": stack(8)}, 0, 0)
    layer.update(torch.ones(1, 3, 2, 4), torch.ones(1, 3, 2, 4))
    with pytest.raises(AttributeError):
        layer.keys = torch.ones(1)
    with pytest.raises(AttributeError):
        layer.reorder_cache(torch.tensor([0]))


def test_positions_are_appended_from_the_whole_that_is_assigned():
    stacks = {"keys": stack(8), "values": stack(8), "indexer-keys": stack(8)}
    positions = RowStack((1, 3, 1, -1), 3, torch.int64, torch.device("cpu"), 8)
    stacks["indexer-positions"] = positions
    layer = IndexedRowsLayer(stacks, 0, 0)
    assert layer.indexer_position_ids is None
    layer.indexer_position_ids = torch.arange(4).expand(3, 1, 4)
    whole = torch.cat([layer.indexer_position_ids, torch.full((3, 1, 1), 9)], dim=-1)
    layer.indexer_position_ids = whole
    assert layer.indexer_position_ids[2, 0].tolist() == [0, 1, 2, 3, 9]
