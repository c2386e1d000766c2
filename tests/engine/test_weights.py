"""The digest of a model's tensors: every one of them, as it lies in memory."""

import pytest
import torch
from saved_models import build

from surefoot.engine.hf.weights import tensor_bytes, weights_digest
from surefoot.identity import tensors_digest


def written_out(model):
    """The digest in its obvious form: copies of all bytes, in the order of the names."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    return tensors_digest(
        (
            name,
            str(tensors[name].dtype)[len("torch.") :],
            tuple(tensors[name].shape),
            bytes(tensors[name].detach().contiguous().reshape(-1).view(torch.uint8).tolist()),
        )
        for name in sorted(tensors)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_digest_is_over_every_tensor_in_the_order_of_its_name(dtype):
    model = build(dtype=dtype, num_hidden_layers=1)
    assert weights_digest(model) == written_out(model)


def test_equal_models_have_equal_digests():
    assert weights_digest(build()) == weights_digest(build())


def test_one_changed_bit_of_any_tensor_changes_the_digest():
    model = build()
    plain = weights_digest(model)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    assert any("inv_freq" in name for name in tensors), "a buffer that is never saved"
    for name, tensor in tensors.items():
        last = tensor.data.view(-1)[-1:].view(torch.uint8)
        last[0] ^= 1
        assert weights_digest(model) != plain, name
        last[0] ^= 1
    assert weights_digest(model) == plain


def test_dtype_and_shape_count_also_where_the_bytes_are_equal():
    class One(torch.nn.Module):
        def __init__(self, tensor):
            super().__init__()
            self.register_buffer("tensor", tensor, persistent=False)

    zeros = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4, dtype=torch.int32),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(8, dtype=torch.bfloat16),
        torch.zeros(0),
    ]
    assert len({weights_digest(One(tensor)) for tensor in zeros}) == len(zeros)


def test_tied_weights_are_digested_under_each_name():
    tied = build(tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    untied = build(tie_word_embeddings=False)
    untied.load_state_dict(tied.state_dict())
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert weights_digest(tied) == weights_digest(untied) == written_out(tied)
    untied.lm_head.weight.data[0, 0] += 1
    assert weights_digest(untied) != weights_digest(tied)


def test_a_contiguous_tensor_is_read_where_it_lies():
    tensor = torch.zeros(3, 5, dtype=torch.bfloat16)
    view = tensor_bytes(tensor)
    tensor[2, 4] = 1.0
    assert bytes(view[-2:]) == b"\x80\x3f"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4).T,
        torch.arange(40)[::3],
        torch.tensor(7.5),
        torch.ones(3, requires_grad=True),
        torch.tensor([True, False]),
        torch.empty(0, 4),
        torch.ones(2, 1).expand(2, 6),
    ],
    ids=["transposed", "strided", "scalar", "with gradient", "bool", "empty", "expanded"],
)
def test_any_layout_gives_its_bytes_in_c_order(tensor):
    plain = tensor.detach().clone(memory_format=torch.contiguous_format)
    assert bytes(tensor_bytes(tensor)) == plain.numpy().tobytes()
