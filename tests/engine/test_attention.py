"""Folded decode attention: the same function as the stock call, used for decode alone."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from surefoot.engine.hf import attention as room
from surefoot.engine.hf.attention import FOLDED_TYPES, decoding, folded_attention, folds
from surefoot.testing.families import FAMILIES, IMAGE_FAMILIES, family

torch.set_num_threads(2)

TINY = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
MORE = {
    "mistral": {"sliding_window": None},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
}


# Text parts that are folded behind a tower: as that family is served.
BEHIND_A_TOWER = {
    "qwen3_5_moe_text": "qwen3_5_moe_images",
    "qwen3_vl_moe_text": "qwen3_vl_moe",
    "qwen3_vl_text": "qwen3_vl",
}


class Layer(torch.nn.Module):
    """As much of an attention layer as an attention function asks for."""

    def __init__(self, groups):
        super().__init__()
        self.num_key_value_groups = groups
        self.is_causal = True
        self.eval()


def tiny(kind, attention="sdpa", **changes):
    if kind in BEHIND_A_TOWER:
        return family(BEHIND_A_TOWER[kind]).build(torch.float32, attention, **changes)
    config = AutoConfig.for_model(kind, **TINY | MORE.get(kind, {}) | changes)
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


def heads(query_heads, kv_heads, tokens=1, kv_tokens=37, dtype=torch.float32):
    draw = torch.Generator().manual_seed(query_heads + kv_heads)
    query = torch.randn(1, query_heads, tokens, 16, generator=draw)
    key, value = torch.randn(2, 1, kv_heads, kv_tokens, 16, generator=draw)
    return [one.to(dtype) for one in (query, key, value)]


def written_out(query, key, value, scaling):
    """Attention in the words of its definition, one query head at a time."""
    groups = query.shape[1] // key.shape[1]
    outputs = []
    for head in range(query.shape[1]):
        scores = query[0, head].double() @ key[0, head // groups].double().T * scaling
        outputs.append(scores.softmax(-1) @ value[0, head // groups].double())
    return torch.stack(outputs, 1)[None]


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(9, 3), (8, 8), (4, 1), (6, 2)])
def test_folded_heads_are_attention(query_heads, kv_heads):
    query, key, value = heads(query_heads, kv_heads)
    layer = Layer(query_heads // kv_heads)
    output, weights = folded_attention(layer, query, key, value, None, scaling=0.3)
    assert weights is None
    assert output.shape == (1, 1, query_heads, 16)
    torch.testing.assert_close(output, written_out(query, key, value, 0.3).float())
    stock, _ = sdpa_attention_forward(layer, query, key, value, None, scaling=0.3)
    torch.testing.assert_close(output, stock)


def test_rows_in_a_larger_buffer_give_the_same_bits():
    query, key, value = heads(9, 3, dtype=torch.bfloat16)
    roomy = [torch.full((1, 3, 64, 16), torch.nan, dtype=torch.bfloat16) for _ in range(2)]
    for room_of, rows in zip(roomy, (key, value), strict=True):
        room_of[:, :, :37] = rows
    views = [one[:, :, :37] for one in roomy]
    plain, _ = folded_attention(Layer(3), query, key, value, None)
    assert folded_attention(Layer(3), query, *views, None)[0].equal(plain)


@pytest.mark.parametrize(
    ("tokens", "kwargs"),
    [
        (2, {}),
        (1, {"attention_mask": torch.ones(1, 1, 1, 37, dtype=torch.bool)}),
        (1, {"sliding_window": 8}),
        (1, {"softcap": None, "position_bias": torch.zeros(1, 6, 1, 37)}),
        (1, {"s_aux": torch.zeros(6)}),
        (1, {"sinks": torch.zeros(6)}),
        (1, {"dropout": 0.5}),
    ],
    ids=["prefill", "mask", "window", "bias", "s_aux", "sinks", "dropout"],
)
def test_what_is_not_covered_goes_to_the_stock_function(monkeypatch, tokens, kwargs):
    calls = []
    monkeypatch.setattr(
        room, "sdpa_attention_forward", lambda *args, **rest: calls.append((args, rest)) or "stock"
    )
    query, key, value = heads(6, 2, tokens=tokens)
    arguments = {"attention_mask": None} | kwargs
    assert folded_attention(Layer(3), query, key, value, **arguments) == "stock"
    (passed, rest), *others = calls
    assert not others
    assert all(one is other for one, other in zip(passed[1:4], (query, key, value), strict=True))
    assert passed[4] is arguments.pop("attention_mask")
    assert {name: rest[name] for name in arguments} == arguments


def test_a_layer_in_training_goes_to_the_stock_function(monkeypatch):
    monkeypatch.setattr(room, "sdpa_attention_forward", lambda *args, **rest: "stock")
    assert folded_attention(Layer(3).train(), *heads(6, 2), None) == "stock"


@pytest.mark.parametrize("kind", sorted(FOLDED_TYPES))
def test_every_family_that_folds_decodes_as_its_stock_call_would(monkeypatch, kind):
    model = tiny(kind)
    assert folds(model)
    used = []
    inner = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **rest: used.append("enable_gqa" not in rest) or inner(*args, **rest),
    )
    ids = torch.arange(1, 21)[None]
    answers = []
    for decode in (False, True):
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(input_ids=ids, cache=cache, use_cache=True)
            used.clear()
            if decode:
                with decoding(model):
                    output = model(input_ids=ids[:, :1], cache=cache, use_cache=True)
            else:
                output = model(input_ids=ids[:, :1], cache=cache, use_cache=True)
        assert set(used) == {decode}
        answers.append(output.logits)
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(FAMILIES | IMAGE_FAMILIES))
def test_a_model_is_as_it_was_afterwards(name):
    model = family(name).build(torch.float32, family(name).attentions[0])
    text = model.config.get_text_config(decoder=True)
    before = (model.config._attn_implementation, text._attn_implementation)
    with decoding(model):
        pass
    assert (model.config._attn_implementation, text._attn_implementation) == before


def test_a_pass_that_fails_leaves_the_stock_call_in_place():
    model = tiny("llama")
    with pytest.raises(IndexError), decoding(model):
        model(input_ids=torch.tensor([[TINY["vocab_size"]]]))
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(("kind", "attention"), [("llama", "eager"), ("gemma3_text", "sdpa")])
def test_other_models_decode_as_they_prefill(kind, attention):
    model = tiny(kind, attention)
    assert not folds(model)
    with decoding(model):
        assert model.config._attn_implementation == attention
