"""The same mathematics in fewer milliseconds, for training only.

Evaluation and serving use transformers as it is. On the CPU its grouped convolutions are slow at
these sizes, its vision attention runs image by image, and its delta rule must stay in float32 while
the rest runs under autocast.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

SHORT_TOKENS = 160

_delta_rule: Callable[..., Any] = qwen.torch_chunk_gated_delta_rule


def make_training_fast() -> None:
    """Replace four functions of transformers in this process; the results differ in rounding."""
    qwen.torch_chunk_gated_delta_rule = _delta_rule_in_float32
    qwen.causal_conv1d_fn = _short_convolution
    qwen.Qwen3_5VisionPatchEmbed.forward = _patches
    qwen.Qwen3_5VisionAttention.forward = _attention_by_length


def _delta_rule_in_float32(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **rest: Any
) -> Any:
    rest["chunk_size"] = 32 if query.shape[1] <= SHORT_TOKENS else 64
    with torch.autocast("cpu", enabled=False):
        return _delta_rule(
            query.float(), key.float(), value.float(), g=g.float(), beta=beta.float(), **rest
        )


def _short_convolution(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any
) -> Tensor:
    """Sum shifted copies: hidden_states [rows, channels, tokens], weight [channels, taps]."""
    assert bias is None
    taps, tokens = weight.shape[-1], hidden_states.shape[-1]
    padded = F.pad(hidden_states, (taps - 1, 0))
    weight = weight.to(padded.dtype)
    total = padded[..., :tokens] * weight[:, :1]
    for tap in range(1, taps):
        total = total + padded[..., tap : tap + tokens] * weight[:, tap : tap + 1]
    return F.silu(total)


def _patches(self: Any, hidden_states: Tensor) -> Tensor:
    """Project patches [patches, values]: a convolution whose stride is its kernel is a product."""
    weight = self.proj.weight
    return F.linear(hidden_states, weight.view(weight.shape[0], -1), self.proj.bias)


def _attention_by_length(
    self: Any, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any = None, **_: Any
) -> Tensor:
    """Attend within each image, all images of one length at once."""
    rows = hidden_states.shape[0]
    mixed = self.qkv(hidden_states).reshape(rows, 3, self.num_heads, -1)
    query, key, value = mixed.permute(1, 0, 2, 3).unbind(0)
    query, key = qwen.apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    heads = query.to(value.dtype), key.to(value.dtype), value
    by_length: dict[int, list[Tensor]] = {}
    edges = cu_seqlens.tolist()
    for start, end in pairwise(edges):
        by_length.setdefault(end - start, []).append(torch.arange(start, end))
    order = [torch.cat(spans) for spans in by_length.values()]
    outputs = []
    for length, index in zip(by_length, order, strict=True):
        batch = [part[index].view(-1, length, *part.shape[1:]).transpose(1, 2) for part in heads]
        attended = F.scaled_dot_product_attention(*batch)
        outputs.append(attended.transpose(1, 2).reshape(len(index), -1))
    projected: Tensor = self.proj(torch.cat(outputs)[torch.argsort(torch.cat(order))])
    return projected
