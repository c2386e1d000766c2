"""What a model's state is made of, and which models are refused rather than hoped for."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import T5Config
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from surefoot.engine import Placed
from surefoot.engine.hf import layer_types, table
from surefoot.engine.hf.layer_types import LayerState, Path
from surefoot.engine.hf.table import StateTable, Unsupported, inspect
from surefoot.laws import PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows
from surefoot.prompt import Prompt
from surefoot.state import ROWS, Part
from surefoot.testing.engine_contract import raw
from surefoot.testing.families import FAMILIES, model
from surefoot.testing.live_state import differences, live_state

torch.set_num_threads(2)

ROWS_LAW, SNAPSHOT = TokenRows(), RecurrentSnapshot()
EXPECTED = {
    "llama": {"rows-0": ROWS_LAW},
    "qwen3": {"rows-0": ROWS_LAW},
    "gemma4": {"window-0": SlidingWindow(99), "rows-0": ROWS_LAW},
    "qwen3_5": {"snapshot-0": SNAPSHOT, "rows-0": ROWS_LAW},
    "qwen4_exp": {
        "snapshot-0": SNAPSHOT,
        "snapshot-1": SNAPSHOT,
        "rows-0": ROWS_LAW,
        "rows-1": ROWS_LAW,
    },
    "deepseek_v32": {"rows-0": ROWS_LAW},
    "deepseek_v4": {
        "window-0": SlidingWindow(149),
        "window-1": SlidingWindow(149),
        "pooled-0": PooledRows(128),
        "pooled-1": PooledRows(4),
        "snapshot-0": SNAPSHOT,
    },
    "mamba2": {"snapshot-0": SNAPSHOT},
    "falcon_h1": {"rows-0": ROWS_LAW, "snapshot-0": SNAPSHOT},
    "lfm2": {"snapshot-0": SNAPSHOT, "rows-0": ROWS_LAW},
    "gpt_oss": {"window-0": SlidingWindow(47), "rows-0": ROWS_LAW},
    "zaya": {"rows-0": ROWS_LAW, "snapshot-0": SNAPSHOT, "window-0": SlidingWindow(99)},
    "llama4": {"window-0": SlidingWindow(99), "rows-0": ROWS_LAW},
}


def inspected(name, **changes):
    family = FAMILIES[name]
    subject = (
        family.build(torch.float32, **changes)
        if changes
        else model(name, torch.float32, family.attentions[0])
    )
    return inspect(subject, block_tokens=family.block_tokens)


def refused(found):
    assert isinstance(found, Unsupported)
    return found.reason


@pytest.mark.parametrize("name", FAMILIES)
def test_groups_and_laws_of_a_family(name):
    found = inspected(name)
    assert isinstance(found, StateTable)
    assert {group.name: group.law for group in found.groups} == EXPECTED[name]


def test_a_component_stacks_its_layers_and_counts_rows_on_one_axis():
    (rows,) = inspected("deepseek_v32").groups
    assert [(one.name, one.dtype, one.shape) for one in rows.schema] == [
        ("keys", "float32", (4, 1, 1, ROWS, 32)),
        ("values", "float32", (4, 1, 1, ROWS, 16)),
        ("indexer-keys", "float32", (4, 1, ROWS, 32)),
    ]


def test_only_layers_that_hold_positions_store_them():
    groups = {group.name: group for group in inspected("qwen4_exp").groups}
    names = [[one.name for one in groups[name].schema] for name in ("rows-0", "rows-1")]
    assert names == [
        ["keys", "values", "indexer-keys", "indexer-positions"],
        ["keys", "values", "indexer-keys"],
    ]


def test_token_ids_in_recurrent_state_keep_their_dtype():
    snapshot = next(one for one in inspected("qwen4_exp").groups if one.name == "snapshot-0")
    assert [(one.name, one.dtype) for one in snapshot.schema] == [
        ("conv-0", "float32"),
        ("recurrent-0", "float32"),
        ("conv-1", "float32"),
        ("conv-2", "int64"),
    ]


def test_a_model_whose_text_attends_both_ways_is_refused():
    assert "later ones" in refused(inspected("gemma4", use_bidirectional_attention="all"))
    assert isinstance(inspected("gemma4", use_bidirectional_attention=None), StateTable)


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_call_is_refused(rope):
    parameters = {
        "rope_type": rope,
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 512,
    }
    if rope == "longrope":
        parameters |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    assert repr(rope) in refused(inspected("llama", rope_parameters=parameters))


def test_rope_is_refused_per_layer_type_as_well():
    parameters = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    }
    assert "'dynamic'" in refused(inspected("gemma4", rope_parameters=parameters))


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"rope_parameters": {"rope_type": "ntk_dynamic"}}, ["ntk_dynamic"]),
        ({"vision": {"rope_scaling": {"type": "longrope"}}}, ["longrope"]),
        ({"rope_parameters": {"full_attention": {"type": "yarn"}}}, ["yarn"]),
        ({"layers": [{"rope_type": "default"}], "type": "llama"}, ["default"]),
        ({"optimizer": {"type": "dynamic"}}, []),
    ],
)
def test_rope_types_are_found_anywhere_in_a_configuration(config, kinds):
    assert list(table._rope_types(config)) == kinds


def test_rope_is_refused_where_only_a_module_names_it():
    subject = FAMILIES["llama"].build(torch.float32)
    subject.model.rotary_emb.rope_type = "dynamic"
    assert "'dynamic'" in refused(inspect(subject, block_tokens=64))


def test_a_block_length_that_splits_a_pooled_row_is_refused():
    subject = model("deepseek_v4", torch.float32, "eager")
    reason = refused(inspect(subject, block_tokens=64))
    assert reason == "block_tokens 64 is not a multiple of its stride 128"
    assert isinstance(inspect(subject, block_tokens=256), StateTable)


class GrownLayer(DynamicLayer):
    """A layer that could keep more than its parent does."""


def test_a_subclass_of_a_known_layer_type_is_refused(monkeypatch):
    monkeypatch.setitem(DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", GrownLayer)
    assert "GrownLayer" in refused(inspected("llama"))


def test_a_layer_type_without_a_cache_layer_is_refused(monkeypatch):
    monkeypatch.delitem(DYNAMIC_LAYER_TYPE_MAPPING, "full_attention")
    assert "full_attention" in refused(inspected("qwen3_5"))


def test_a_window_of_one_token_is_refused():
    assert refused(inspected("gpt_oss", sliding_window=1)) == "layer 0 has a window of 1 tokens"


def test_a_context_shorter_than_two_blocks_is_refused():
    assert "127 tokens" in refused(inspected("llama", max_position_embeddings=127))


def test_an_encoder_decoder_is_refused():
    subject = SimpleNamespace(config=T5Config(), forward=lambda input_ids, cache: None)
    assert "encoder-decoder" in refused(inspect(subject, block_tokens=64))


def test_a_model_that_takes_no_cache_is_refused():
    subject = SimpleNamespace(config=T5Config(is_encoder_decoder=False), forward=lambda ids: None)
    assert refused(inspect(subject, block_tokens=64)) == "its forward call takes no cache"


def test_a_model_that_leaves_its_cache_empty_is_refused():
    subject = FAMILIES["llama"].build(torch.float32)
    subject.forward = _without_cache(subject.forward)
    assert "keys stays empty" in refused(inspect(subject, block_tokens=64))


def _without_cache(forward):
    def call(input_ids, cache=None, **more):
        return forward(input_ids=input_ids, **{**more, "use_cache": False})

    return call


def _window_without(**changes):
    def describe(layer):
        known = layer_types._window(layer)
        return LayerState(
            known.shares, **{"counters": known.counters, "fixed": known.fixed, **changes}
        )

    return describe


def _kept_longer(layer):
    known = layer_types._window(layer)
    share = known.shares[0]
    longer = layer_types.Share(share.kind, SlidingWindow(layer.sliding_window), share.fields)
    return LayerState((longer,), known.counters, fixed=known.fixed)


@pytest.mark.parametrize(
    ("layer_type", "describe", "family", "reason"),
    [
        (DynamicLayer, lambda _: LayerState(), "llama", "keys is a tensor that no law covers"),
        (
            DynamicSlidingWindowLayer,
            _window_without(counters={}),
            "gpt_oss",
            "cumulative_length was",
        ),
        (
            DynamicSlidingWindowLayer,
            _window_without(counters={Path("cumulative_length"): 2}),
            "gpt_oss",
            "cumulative_length counts [64, 128]",
        ),
        (
            DynamicSlidingWindowLayer,
            _window_without(fixed=frozenset()),
            "gpt_oss",
            "_sliding_window_tensor is a tensor that no law covers",
        ),
        (
            DynamicSlidingWindowLayer,
            _window_without(aliases={Path("sliding_window"): Path("keys")}),
            "gpt_oss",
            "is not the tensor that it should share",
        ),
        (DynamicSlidingWindowLayer, _kept_longer, "gpt_oss", "keys has shape"),
        (LinearAttentionLayer, lambda _: LayerState(), "mamba2", "conv_states[0] is a tensor"),
    ],
)
def test_state_that_the_table_misdescribes_is_refused(
    monkeypatch, layer_type, describe, family, reason
):
    """I5: a change of a layer in transformers is found at start-up, not in an answer."""
    monkeypatch.setitem(table.TABLE, layer_type, describe)
    assert reason in refused(inspected(family))


def cut_blocks(found, name, blocks):
    """Compute blocks of a family's model on the table's own cache and cut them all."""
    subject = model(name, torch.float32, FAMILIES[name].attentions[0])
    step = FAMILIES[name].block_tokens
    forward, cache = table.Forward(subject), found.fresh(step)
    names = {group.name for group in found.groups}
    ids = torch.tensor([Prompt.of(range(blocks * step)).tokens()]) % 256
    stored = []
    for start in range(0, blocks * step, step):
        with torch.inference_mode():
            cache.reserve(start + step, start)
            forward(ids[:, start : start + step], start, cache)
        parts = found.cut(cache, start, start + step, names)
        stored += [Placed(start, start + step, part) for part in parts]
    return stored


def renamed(one):
    return Placed(one.start, one.end, Part("else-0", one.part.components))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda stored: [], "rows-0 at 192: parts end at []"),
        (lambda stored: stored[:2], "rows-0 at 192: parts end at [128]"),
        (lambda stored: stored[1:], "rows-0 at 192: blocks [(64, 128), (128, 192)]"),
        (lambda stored: [stored[0], stored[2]], "ends at 64 is followed by one at 128"),
        (lambda stored: [stored[0], *stored], "ends at 64 is followed by one at 0"),
        (
            lambda stored: [replace(stored[0], end=32), *stored],
            "ends at 32 is followed by one at 0",
        ),
        (lambda stored: [replace(stored[0], start=-64), *stored[1:]], "rows-0 at 192: block [-64"),
        (lambda stored: [*stored, replace(stored[2], start=192, end=256)], "parts end at [256]"),
        (lambda stored: [*stored[:2], renamed(stored[2])], "no group is called 'else-0'"),
    ],
)
def test_parts_that_are_not_those_of_the_boundary_are_refused(spoil, problem):
    found = inspected("llama")
    stored = cut_blocks(found, "llama", 3)
    found.install(192, stored[::-1])  # in any order
    with pytest.raises(ValueError, match=re.escape(problem)):
        found.install(192, spoil(stored))


def test_a_window_part_too_many_is_refused():
    found = inspected("gpt_oss")  # a window of 48 lies within the last block of 64
    stored = cut_blocks(found, "gpt_oss", 2)
    with pytest.raises(ValueError, match="window-0 at 128: blocks"):
        found.install(128, stored)


def test_a_snapshot_too_many_is_refused():
    found = inspected("mamba2")
    stored = cut_blocks(found, "mamba2", 2)
    with pytest.raises(ValueError, match="snapshot-0 at 128: blocks"):
        found.install(128, stored)
    found.install(128, stored[1:])


@pytest.mark.parametrize("name", ["qwen3_5", "deepseek_v4"])
def test_installed_memory_is_nobody_elses(name):
    """I5: two caches installed from the same parts, the parts and the table share no byte."""
    found = inspected(name)
    end = 3 * FAMILIES[name].block_tokens
    stored = cut_blocks(found, name, 3)
    index = {(one.part.group, one.end): one for one in stored}
    ends = sorted({one.end for one in stored})
    needed = [
        index[group.name, ends[block]]
        for group in found.groups
        for block in group.law.needs(ends, 3)
    ]
    first, second = found.install(end, needed), found.install(end, needed)
    before, bytes_before = live_state(second), raw(needed)
    with torch.inference_mode():
        for layer in first.layers:
            for value in layer_types.leaves(layer).values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        for stacks in first.stacks.values():
            for stack in stacks.values():
                stack.data.zero_()
    assert differences(live_state(second), before) == []
    assert differences(live_state(found.install(end, needed)), before) == []
    assert raw(needed) == bytes_before
