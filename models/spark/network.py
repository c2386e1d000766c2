"""The network's configuration, and weights to start from.

The architecture is ``qwen3_5`` as transformers has it: gated DeltaNet and full attention in turn,
and a small vision tower. Only the starting values are ours. With the usual ones a network of this
size does not learn to look a fact up within minutes; with these it does (the model card says what
was tried). The text part starts as a circuit that can already copy: DeltaNet layers write the token
before into each position, one half of each attention layer looks for positions whose token before
equals the present token, the other half for positions whose token equals it.
"""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5Attention,
    Qwen3_5GatedDeltaNet,
    Qwen3_5TextModel,
)

from models.spark.tokenizer import CONTEXT_TOKENS, VOCABULARY

HIDDEN = 192
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
DELTA_VALUE_DIM = 4 * 32
EMBEDDING_STD = 0.1
MEMORY_TOKENS = (3, 1000)  # the shortest and the longest memory of a DeltaNet head at the start

PATCH_PX, MERGE, TEMPORAL = 16, 2, 2
MIN_PIXELS, MAX_PIXELS = 64 * 64, 96 * 96
CHANNEL_MEAN = CHANNEL_STD = 0.5


def configuration(tokenizer: PreTrainedTokenizerBase) -> Qwen3_5Config:
    """Return the whole configuration; token ids are the tokenizer's."""
    token = tokenizer.convert_tokens_to_ids
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        # In frequencies: time, height, width. They sum to HEAD_DIM * 0.25 / 2.
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    }
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "full_attention_interval": 2,
        "max_position_embeddings": CONTEXT_TOKENS,
        "tie_word_embeddings": True,
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": None,
        "rope_parameters": rope,
    }
    vision = {
        "depth": 3,
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_heads": 4,
        "patch_size": PATCH_PX,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": TEMPORAL,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
    }
    return Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def starting_network(
    tokenizer: PreTrainedTokenizerBase, seed: int
) -> Qwen3_5ForConditionalGeneration:
    """Return the untrained network in float32; every starting value comes from the seed."""
    torch.manual_seed(seed)
    network = Qwen3_5ForConditionalGeneration(configuration(tokenizer))
    with torch.no_grad():
        network.model.visual.pos_embed.weight.normal_(0, 0.1)
        text = network.model.language_model
        for module in text.modules():
            if isinstance(module, Qwen3_5GatedDeltaNet):
                _spread_memory(module)
        _liken_spellings(text.embed_tokens.weight, tokenizer)
        _start_as_copier(text)
    return network


def _spread_memory(layer: Qwen3_5GatedDeltaNet) -> None:
    """Let the heads forget over few to many tokens; the usual values forget within one."""
    shortest, longest = MEMORY_TOKENS
    rates = torch.logspace(math.log10(1 / longest), math.log10(1 / shortest), layer.num_v_heads)
    layer.A_log.zero_()
    layer.dt_bias.copy_(torch.log(torch.expm1(rates)))


def _liken_spellings(embeddings: Tensor, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a token with a capital or a space before it the embedding of the bare one, shifted.

    A name in a list and the same name in a question are different tokens; they must match before
    anything is learned.
    """
    ids = tokenizer.get_vocab()
    space = torch.randn(HIDDEN) * 0.01
    capital = torch.randn(HIDDEN) * 0.01
    for text, index in sorted(ids.items(), key=lambda item: (len(item[0]), item[1])):
        if len(text) > 3 and text[0].isupper() and text.lower() in ids:
            embeddings[index] = embeddings[ids[text.lower()]] + capital
    for text, index in sorted(ids.items(), key=lambda item: item[1]):
        if text[0] == "\u0120" and text[1:] in ids:
            embeddings[index] = embeddings[ids[text[1:]]] + space


def _start_as_copier(text: Qwen3_5TextModel) -> None:
    """Set embeddings and mixers as the module's text says.

    Coordinate 0 of every embedding is constant, because no projection has a bias: gates are opened
    through it, and it is kept out of everything that stands for content.
    """
    embeddings = text.embed_tokens.weight
    embeddings.mul_(EMBEDDING_STD / 0.02)
    embeddings[:, 0] = 0.3
    reads = _orthogonal(DELTA_VALUE_DIM, HIDDEN)
    reads[:, 0] = 0
    writes = _orthogonal(HIDDEN, DELTA_VALUE_DIM)
    writes[0] = 0
    for layer in text.layers:
        if layer.block_type == "linear_attention":
            _start_delta(layer.linear_attn, reads, writes)
        else:
            _start_attention(layer.self_attn, reads, writes)


def _start_delta(layer: Qwen3_5GatedDeltaNet, reads: Tensor, writes: Tensor) -> None:
    keys = layer.key_dim
    content = _near_zero((keys, HIDDEN), 0.08)
    content[:, 0] = 0
    projection, taps = layer.in_proj_qkv.weight, layer.conv1d.weight
    projection[:keys] = content
    projection[keys : 2 * keys] = content
    projection[2 * keys :] = reads + _near_zero(reads.shape, 0.02)
    # Queries and keys see the present token (tap 3), values the one before (tap 2).
    taps[: 2 * keys] = _near_zero((2 * keys, 1, 4), 0.05)
    taps[: 2 * keys, 0, 3] += 1
    taps[2 * keys :] = _near_zero((layer.value_dim, 1, 4), 0.1)
    taps[2 * keys :, 0, 2] += 1
    layer.in_proj_z.weight[:, 0] = 0.5
    layer.in_proj_b.weight[:, 0] = 0.5
    layer.out_proj.weight.copy_(writes * 0.12 + _near_zero(writes.shape, 0.005))


def _start_attention(layer: Qwen3_5Attention, reads: Tensor, writes: Tensor) -> None:
    before = _orthogonal(HEAD_DIM, DELTA_VALUE_DIM)
    same = _orthogonal(HEAD_DIM, HIDDEN)
    same[:, 0] = 0
    queries = layer.q_proj.weight.view(HEADS, 2, HEAD_DIM, HIDDEN)  # per head: query, then gate
    for head in range(HEADS):
        wanted = before @ reads if head < HEADS // KV_HEADS else same
        queries[head, 0] = wanted + _near_zero(wanted.shape, 0.02)
    layer.k_proj.weight[:HEAD_DIM] = before @ writes.T + _near_zero((HEAD_DIM, HIDDEN), 0.01)
    layer.k_proj.weight[HEAD_DIM:] = same + _near_zero((HEAD_DIM, HIDDEN), 0.02)
    values = _orthogonal(KV_HEADS * HEAD_DIM, HIDDEN)
    values[:, 0] = 0
    layer.v_proj.weight.copy_(values)
    outputs = layer.o_proj.weight.view(HIDDEN, HEADS, HEAD_DIM)
    for head in range(HEADS):
        its = head // (HEADS // KV_HEADS) * HEAD_DIM
        outputs[:, head] = values[its : its + HEAD_DIM].T * 0.3


def _orthogonal(rows: int, columns: int) -> Tensor:
    return nn.init.orthogonal_(torch.empty(rows, columns))


def _near_zero(shape: tuple[int, ...] | torch.Size, std: float) -> Tensor:
    return torch.randn(shape) * std
