"""The differential test (I5): over every family, what is restored is what was computed.

Cold and restored runs must agree in the last logits, in every tensor, counter and flag of the live
cache, and in eight greedy tokens with their logits. A family that is missing fails.
"""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from computed import DTYPES, Computed, Greedy, as_read, assert_equal, subject_of
from transformers import DynamicCache

from surefoot.engine import Placed, Sampling
from surefoot.engine.hf.layer_types import TABLE
from surefoot.engine.hf.run import HfRun
from surefoot.prompt import Prompt, grid
from surefoot.state import Component, Part
from surefoot.testing.engine_contract import raw
from surefoot.testing.families import FAMILIES, VOCABULARY, model

torch.set_num_threads(2)

PROMISED = {
    "llama",
    "qwen3",
    "gemma4",
    "qwen3_5",
    "qwen4_exp",
    "deepseek_v32",
    "deepseek_v4",
    "mamba2",
    "falcon_h1",
    "lfm2",
    "gpt_oss",
}


def cases(attentions):
    return pytest.mark.parametrize(
        ("name", "dtype", "attention"),
        [
            pytest.param(name, dtype, attention, id=f"{name}-{str(dtype)[6:]}-{attention}")
            for name, family in FAMILIES.items()
            for dtype in DTYPES
            for attention in family.attentions[:attentions]
        ],
    )


def tokens(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (count,), generator=draw).tolist()


def test_every_promised_family_is_here():
    assert set(FAMILIES) >= PROMISED


def test_every_layer_type_of_the_table_is_in_some_family():
    found = set()
    for name, family in FAMILIES.items():
        config = model(name, torch.float32, family.attentions[0]).config
        found |= {type(layer) for layer in DynamicCache(config=config).layers}
    assert found == set(TABLE)


@cases(attentions=1)
def test_restored_is_cold_at_every_length_around_every_boundary(name, dtype, attention):
    subject = subject_of(name, dtype, attention)
    for length in [k * subject.block + d for k in (1, 2, 3) for d in (-1, 0, 1)]:
        prompt = Prompt.of(tokens(length))
        cold = Computed(subject, prompt)
        stored = as_read(cold.stored)
        before = raw(stored)
        for boundary in range(subject.block, length, subject.block):
            needed = subject.needed(prompt, boundary, stored)
            warm = Computed(subject, prompt, boundary=boundary, parts=needed)
            assert_equal(warm, cold, (length, boundary))
        assert raw(stored) == before


@cases(attentions=2)
def test_a_donor_leaves_no_trace(name, dtype, attention):
    subject = subject_of(name, dtype, attention)
    step = subject.block
    donor = tokens(5 * step + 7)
    stored = as_read(Computed(subject, Prompt.of(donor)).stored)
    before = raw(stored)
    for shared in (step, 2 * step + 5):
        prompt = Prompt.of(donor[:shared] + tokens(3 * step + 9 - shared, seed=1))
        boundary = shared // step * step
        cold = Computed(subject, prompt)
        needed = subject.needed(prompt, boundary, stored)
        warm = Computed(subject, prompt, boundary=boundary, parts=needed)
        assert_equal(warm, cold, shared)
        # Its own parts, cut on top of the donor's, stand in for those that it computed cold.
        assert raw(warm.stored) == raw([one for one in cold.stored if one.start >= boundary])
        own = [*(one for one in stored if one.end <= boundary), *as_read(warm.stored)]
        needed = subject.needed(prompt, 3 * step, own)
        again = Computed(subject, prompt, boundary=3 * step, parts=needed)
        assert_equal(again, cold, (shared, "own"))
    assert raw(stored) == before


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_compute_what_one_pass_computes(name):
    """What is exact must be right as well: blocks are another rounding, not another function."""
    family = FAMILIES[name]
    subject = subject_of(name, torch.float32, family.attentions[0])
    if family.sparse:
        dense = family.build(torch.float32, family.attentions[0], **family.sparse)
    else:
        dense = subject.model
    ids = tokens(4 * family.block_tokens + 7)
    by_block, at_once = Greedy(), Greedy()
    run = HfRun(dense, subject.table, Prompt.of(ids), Sampling(), choose=by_block)
    for end in (*grid(Prompt.of(ids), family.block_tokens), len(ids)):
        run.prefill(end)
    run.sample()
    stock = HfRun(dense, None, Prompt.of(ids), Sampling(), choose=at_once)
    stock.prefill(len(ids))
    stock.sample()
    worst = (by_block.seen[0] - at_once.seen[0]).abs().max().item()
    assert worst <= family.tolerance, worst


OTHER_PROCESS = ("qwen4_exp", "deepseek_v4")


def test_another_process_restores_the_same_bits(tmp_path):
    handed, expected = {}, {}
    for name in OTHER_PROCESS:
        subject = subject_of(name, torch.bfloat16, FAMILIES[name].attentions[0])
        ids = tokens(2 * subject.block + 9)
        prompt = Prompt.of(ids)
        cold = Computed(subject, prompt)
        needed = subject.needed(prompt, 2 * subject.block, cold.stored)
        handed[name] = (ids, 2 * subject.block, raw(needed))
        expected[name] = _answer(cold)
    (tmp_path / "parts").write_bytes(pickle.dumps(handed))
    command = [sys.executable, __file__, str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    assert pickle.loads((tmp_path / "answers").read_bytes()) == expected


def _answer(computed):
    logits = [row.view(torch.uint8).tolist() for row in computed.logits]
    state = {
        place: value.contiguous().reshape(-1).view(torch.uint8).tolist()
        if isinstance(value, torch.Tensor)
        else str(value)
        for place, value in computed.states["decoded"].items()
    }
    return computed.tokens, logits, state


def _restore_in_this_process(folder):
    handed = pickle.loads((folder / "parts").read_bytes())
    answers = {}
    for name, (ids, boundary, parts) in handed.items():
        subject = subject_of(name, torch.bfloat16, FAMILIES[name].attentions[0])
        groups = {group.name: group for group in subject.table.groups}
        placed = []
        for group, start, end, components in parts:
            rows = groups[group].law.rows(start, end)
            schema = zip(groups[group].schema, components, strict=True)
            held = tuple(
                Component(one.name, one.dtype, one.shape_for(rows), data)
                for one, (_, data) in schema
            )
            placed.append(Placed(start, end, Part(group, held)))
        computed = Computed(subject, Prompt.of(ids), boundary=boundary, parts=placed)
        answers[name] = _answer(computed)
    (folder / "answers").write_bytes(pickle.dumps(answers))


if __name__ == "__main__":
    _restore_in_this_process(Path(sys.argv[1]))
