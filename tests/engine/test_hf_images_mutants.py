"""Errors that raise nothing and give another answer: each is committed, and a check must notice.

The first four are those that the families' code invites; the rest are ours to make.
"""

from functools import partial

import pytest
import torch
from computed import subject_of
from image_checks import (
    agrees_with_one_pass,
    forget,
    restored_is_cold,
    text_after_images_is_cold,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from surefoot.engine.hf import sight as sight_room
from surefoot.engine.hf.forward import Forward
from surefoot.engine.hf.sight import Sight
from surefoot.engine.hf.towers import GemmaTower, RotaryPlaces, TokenKinds
from surefoot.engine.hf.vision import Vision

torch.set_num_threads(1)

BOTH_WAYS = "gemma4_images_both_ways"
QWEN = ("qwen3_vl", "qwen3_5_images", "qwen4_exp_images")
SPARSELY_SEEING = ("qwen3_vl", "qwen3_vl_moe")


def noticed(check, *arguments):
    with pytest.raises(AssertionError) as caught:
        check(*arguments)
    # By the check itself, not by an assertion on the way to it.
    assert caught.traceback[-1].path.name in ("image_checks.py", "computed.py")


@pytest.mark.parametrize("name", QWEN)
def test_positions_that_are_left_to_the_model_are_noticed(monkeypatch, name):
    agrees_with_one_pass(name, "across")
    monkeypatch.setattr(RotaryPlaces, "arguments", lambda *_: {})
    noticed(agrees_with_one_pass, name, "across")


@pytest.mark.parametrize("name", SPARSELY_SEEING)
def test_deepstack_features_that_are_left_out_are_noticed(monkeypatch, name):
    agrees_with_one_pass(name, "across")

    def shallow(pooler_output, deepstack_features):
        return BaseModelOutputWithDeepstackFeatures(
            pooler_output=pooler_output, deepstack_features=[]
        )

    monkeypatch.setattr(sight_room, "BaseModelOutputWithDeepstackFeatures", shallow)
    noticed(agrees_with_one_pass, name, "across")


@pytest.mark.parametrize("name", QWEN)
def test_a_rope_delta_that_is_left_on_the_model_is_noticed(monkeypatch, name):
    """As transformers' own loop does it: a delta stays, and decode without positions reads it."""
    text_after_images_is_cold(name)
    stock_init, stock_call = Sight.__init__, Forward.__call__
    model = subject_of(name, torch.float32, "sdpa").model

    def leaving(self, vision, prompt, media):
        stock_init(self, vision, prompt, media)
        if media:
            model.model.rope_deltas = torch.tensor([[self._places._next - len(prompt)]])

    def inferring(self, ids, start, cache, sight=None):
        if start == 0 or ids.shape[1] > 1:
            return stock_call(self, ids, start, cache, sight)
        output = self._model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        return output.logits[0, -1]

    monkeypatch.setattr(Sight, "__init__", leaving)
    monkeypatch.setattr(Forward, "__call__", inferring)
    try:
        noticed(text_after_images_is_cold, name)
    finally:
        forget(model)


def test_token_kinds_of_the_block_alone_are_noticed(monkeypatch):
    agrees_with_one_pass(BOTH_WAYS, "starts at an end")
    stock = TokenKinds.arguments

    def sliced(self, start, end):
        return {"mm_token_type_ids": stock(self, start, end)["mm_token_type_ids"][:, start:]}

    monkeypatch.setattr(TokenKinds, "arguments", sliced)
    noticed(agrees_with_one_pass, BOTH_WAYS, "starts at an end")


def test_an_image_that_is_split_although_it_must_be_whole_is_noticed(monkeypatch):
    agrees_with_one_pass(BOTH_WAYS, "across")
    monkeypatch.setattr(subject_of(BOTH_WAYS, torch.float32, "sdpa"), "atomic", False)
    noticed(agrees_with_one_pass, BOTH_WAYS, "across")


@pytest.mark.parametrize("name", ["qwen3_5_images", "gemma4_images"])
def test_features_from_the_wrong_row_are_noticed(monkeypatch, name):
    """A block that begins inside an image needs the image's later rows."""

    def from_the_first(self, span, start, end):
        count = min(end, span.end) - max(start, span.start)
        return tuple(component[:count] for component in self._features[span.media])

    monkeypatch.setattr(Sight, "_rows", from_the_first)
    noticed(agrees_with_one_pass, name, "across")


@pytest.mark.parametrize("name", ["gemma4_images", "qwen3_5_images"])
def test_rows_and_columns_that_change_places_are_noticed(monkeypatch, name):
    if name == "gemma4_images":
        stock = GemmaTower.arguments
        monkeypatch.setattr(
            GemmaTower, "arguments", lambda self, grid, pixels: stock(self, grid[::-1], pixels)
        )
    else:
        stock = RotaryPlaces.__init__

        def turned(self, prompt, grids, device):
            stock(self, prompt, [(one[0], one[2], one[1]) for one in grids], device)

        monkeypatch.setattr(RotaryPlaces, "__init__", turned)
    monkeypatch.setattr(
        subject_of(name, torch.float32, "sdpa"),
        "encode",
        partial(Vision.encode, subject_of(name, torch.float32, "sdpa").vision),
    )
    noticed(agrees_with_one_pass, name, "three")


def test_positions_that_start_anew_in_a_restored_run_are_noticed(monkeypatch):
    stock = RotaryPlaces.arguments
    first = {}

    def from_zero(self, start, end):
        """Count from where the first call of this run stood."""
        at = first.setdefault(id(self), start)
        return stock(self, start - at, end - at)

    restored_is_cold("qwen3_5_images", torch.float32, "sdpa", "inside")
    monkeypatch.setattr(RotaryPlaces, "arguments", from_zero)
    noticed(restored_is_cold, "qwen3_5_images", torch.float32, "sdpa", "inside")
