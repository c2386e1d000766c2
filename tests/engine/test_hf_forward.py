"""The one forward call says where it stands and asks for one row of logits, whatever the family."""

from types import SimpleNamespace

import pytest
import torch

from surefoot.engine.hf.forward import Forward


class Noted:
    """A model that keeps what it was called with; ``forward`` has the signature to read."""

    def __init__(self, forward):
        self.forward = forward
        self.calls = []

    def __call__(self, **arguments):
        self.calls.append(arguments)
        rows = arguments["input_ids"].shape[1]
        return SimpleNamespace(logits=torch.arange(rows * 3.0).reshape(1, rows, 3))


def full(input_ids, position_ids, cache, use_cache, logits_to_keep):
    """Take what most families take."""


def recurrent(input_ids, cache, use_cache, logits_to_keep, **more):
    """Take no positions, as purely recurrent families do."""


def bare(input_ids, cache, use_cache):
    """Take what no family does without."""


def called(forward):
    model = Noted(forward)
    cache = object()
    logits = Forward(model)(torch.tensor([[5, 6]]), 40, cache)
    (call,) = model.calls
    assert call["input_ids"].tolist() == [[5, 6]]
    assert call["cache"] is cache
    assert call["use_cache"] is True
    assert logits.tolist() == [3.0, 4.0, 5.0]  # of the last token
    return call


def test_positions_are_absolute_and_always_passed():
    assert called(full)["position_ids"].tolist() == [[40, 41]]


def test_one_row_of_logits_is_asked_for():
    assert called(full)["logits_to_keep"] == 1


def test_a_family_is_not_given_what_it_does_not_take():
    assert set(called(recurrent)) == {"input_ids", "cache", "use_cache", "logits_to_keep"}
    assert set(called(bare)) == {"input_ids", "cache", "use_cache"}


@pytest.mark.parametrize(("forward", "accepts"), [(full, True), (lambda input_ids: None, False)])
def test_whether_a_cache_is_taken_is_read_from_the_signature(forward, accepts):
    assert Forward(Noted(forward)).accepts_cache is accepts
