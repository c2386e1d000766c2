"""The start-up run: what its digest commits to, and what its self-check finds (I5)."""

import itertools
from dataclasses import replace

import pytest
import torch
from transformers.cache_utils import LinearAttentionLayer

from surefoot.engine.hf import fingerprint as room
from surefoot.engine.hf.cut import StateTable
from surefoot.engine.hf.fingerprint import fingerprint
from surefoot.engine.hf.table import inspect
from surefoot.state import Component, Part
from surefoot.testing.families import FAMILIES, model

torch.set_num_threads(2)
KINDS = ("llama", "gemma4", "qwen3_5", "deepseek_v4")


def start_up(name="llama", dtype=torch.bfloat16, *, built=None, table=None, clock=float, **changes):
    family = FAMILIES[name]
    one = built or model(name, dtype, family.attentions[0])
    found = table or inspect(one, block_tokens=family.block_tokens)
    arguments = {"block_tokens": family.block_tokens, "context_tokens": 4_096} | changes
    return fingerprint(one, found, clock=clock, **arguments)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_repeats_itself_and_a_restore_reproduces_it(name, dtype):
    first, second = start_up(name, dtype), start_up(name, dtype)
    assert first.digest == second.digest
    assert first.mismatch is second.mismatch is None


def test_it_commits_to_weights_block_length_and_dtype():
    family = FAMILIES["llama"]
    other = family.build(torch.bfloat16, "sdpa")
    with torch.no_grad():
        other.get_parameter("model.layers.0.mlp.up_proj.weight")[0, 0] += 1.0
    digests = {
        start_up().digest,
        start_up(dtype=torch.float32).digest,
        start_up(built=other).digest,
        start_up(
            table=inspect(model("llama", torch.bfloat16, "sdpa"), block_tokens=32),
            block_tokens=32,
        ).digest,
    }
    assert len(digests) == 4


def test_it_covers_the_decode_attention(monkeypatch):
    plain = start_up(dtype=torch.float32).digest
    monkeypatch.setattr("surefoot.engine.hf.attention.FOLDED_TYPES", frozenset())
    assert start_up(dtype=torch.float32).digest != plain


def test_ids_are_spread_over_the_vocabulary():
    tokens = room._prompt(model("llama", torch.float32, "sdpa"), 145).tokens()
    assert max(tokens) < 256
    assert len(set(tokens)) > 100


class Twisted(StateTable):
    """A table whose restores differ from what was cut, as ``how`` says."""

    def cut(self, cache, start, end, groups):
        parts = super().cut(cache, start, end, groups)
        return tuple(self.how(part, start) for part in parts)


def twisted(name, how):
    family = FAMILIES[name]
    one = model(name, torch.bfloat16, family.attentions[0])
    found = inspect(one, block_tokens=family.block_tokens)
    table = Twisted(found.config, found.block_tokens, found.layouts, found.derived)
    object.__setattr__(table, "how", how)
    return table


def flipped(part, component):
    damaged = []
    for one in part.components:
        data = bytearray(one.data)
        if one.name == component:
            data[-1] ^= 0x80  # the last element's sign
        damaged.append(Component(one.name, one.dtype, one.shape, bytes(data)))
    return Part(part.group, tuple(damaged))


@pytest.mark.parametrize(
    ("name", "group", "component"),
    [
        ("llama", "rows-0", "keys"),
        ("llama", "rows-0", "values"),
        ("qwen3_5", "snapshot-0", "recurrent-0"),
    ],
)
def test_a_restore_of_other_state_is_found(name, group, component):
    def how(part, start):
        return flipped(part, component) if (part.group, start) == (group, 0) else part

    found = start_up(name, table=twisted(name, how))
    assert found.mismatch is not None
    assert found.mismatch != ""


class Forgetful(StateTable):
    """A table whose restores hold the right tensors and the wrong flags."""

    def install(self, boundary, parts, *, room):
        cache = super().install(boundary, parts, room=room)
        for layer in cache.layers:
            if isinstance(layer, LinearAttentionLayer):
                layer.has_previous_state[0] = False
        return cache


def test_a_restore_that_forgets_a_flag_is_found():
    found = inspect(model("qwen3_5", torch.bfloat16, "sdpa"), block_tokens=64)
    table = Forgetful(found.config, found.block_tokens, found.layouts, found.derived)
    assert start_up("qwen3_5", table=table).mismatch is not None


def test_a_difference_in_the_logits_alone_is_found():
    def trace(tensors):
        return [(name, "float32", (1,), data) for name, data in tensors]

    cold = trace([("rows", b"same"), ("logits at 9", b"one ")])
    warm = trace([("rows", b"same"), ("logits at 9", b"two ")])
    assert room._difference(cold, warm) == "logits at 9"
    assert room._difference(cold, cold) is None


def test_without_a_table_the_logits_are_the_fingerprint():
    found = fingerprint(
        model("llama", torch.bfloat16, "sdpa"),
        None,
        block_tokens=64,
        context_tokens=4_096,
        clock=float,
    )
    assert found.mismatch is None
    assert found.digest != start_up().digest


@pytest.mark.parametrize("context", [20, 64, 65, 100, 130, 146, 147])
def test_a_short_context_cuts_the_prompt_short(monkeypatch, context):
    stock, lengths = room._prompt, []
    monkeypatch.setattr(room, "_prompt", lambda one, n: lengths.append(n) or stock(one, n))
    built = model("llama", torch.bfloat16, "sdpa")
    fingerprint(built, None, block_tokens=64, context_tokens=context, clock=float)
    # One token of the context is left for the one that is decoded.
    assert lengths == [min(context - 1, 2 * 64 + room.TAIL_TOKENS)]


def test_prefill_is_timed_by_the_clock_that_was_passed_in():
    ticks = itertools.count(step=0.5)
    assert start_up(clock=lambda: next(ticks)).prefill_tokens_per_s == 64 / 0.5
    stopped = start_up(clock=float).prefill_tokens_per_s  # float() is 0.0: no time passes
    assert stopped == pytest.approx(64e6)


def test_time_is_not_part_of_the_digest():
    ticks = itertools.count(step=0.5)
    timed = start_up(clock=lambda: next(ticks))
    assert replace(timed, prefill_tokens_per_s=64e6) == replace(
        start_up(), prefill_tokens_per_s=64e6
    )
