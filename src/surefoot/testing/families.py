"""Tiny random-weight models of the real classes, one per family that is served.

Together they hold every cache-layer type for which a law is known. Each has two to five hundred
thousand weights, wide enough that attention, routing, gating and top-k matter, and the same in
every process: weights come from a generator of their own. Windows lie on both sides of the block
length, and pooling strides force a longer one.

``FAMILIES`` take text; ``IMAGE_FAMILIES`` see as well, and ``shown`` makes prompts with images for
them.
"""

import math
import random
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
import transformers

from surefoot import identity
from surefoot.prompt import MediaItem, MediaSpan, Prompt

VOCABULARY = 256
BOTH = ("sdpa", "eager")
EAGER = ("eager",)


@dataclass(frozen=True, slots=True)
class Family:
    """A model class with a tiny configuration.

    ``tolerance`` bounds how far the last logits of a prompt computed block by block may be from
    those of one pass, in float32: blocks are another rounding, not another function. ``sparse``
    raises an indexer's budget to the whole context for that comparison, because a top-k over equal
    scores breaks ties by row length.
    """

    model_class: str
    config_class: str
    config: Mapping[str, Any]
    attentions: tuple[str, ...] = BOTH
    block_tokens: int = 64
    tolerance: float = 1e-4
    sparse: Mapping[str, Any] | None = None

    def build(
        self, dtype: torch.dtype, attention: str | None = None, **changes: Any
    ) -> torch.nn.Module:
        """Return the model in evaluation mode; equal arguments give equal weights."""
        # A nested configuration keeps what it is given: every model gets its own.
        config = getattr(transformers, self.config_class)(**deepcopy({**self.config, **changes}))
        config._attn_implementation = attention or self.attentions[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model: torch.nn.Module = getattr(transformers, self.model_class)(config).eval()
        _sharpen(model)
        return model.to(dtype)


@cache
def model(name: str, dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """Return the family's model, built once per process; it must not be changed."""
    return family(name).build(dtype, attention)


def family(name: str) -> Family:
    """Return the family of this name, of text or of images."""
    return FAMILIES[name] if name in FAMILIES else IMAGE_FAMILIES[name]


def _sharpen(model: torch.nn.Module) -> None:
    """Draw weights so large that every part of the state matters to the answer."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = _scale(name, weight)
            if scale is not None:
                weight.copy_(torch.randn(weight.shape, generator=draw) * scale)


def _scale(name: str, weight: torch.Tensor) -> float | None:
    if "sinks" in name:
        return 1.0
    if weight.dim() < 2:
        return None
    if "conv" in name:
        return 0.4
    return 0.5 if "embed" in name else 1 / math.sqrt(weight.shape[-1])


_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}
_DENSE: dict[str, Any] = {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 128}
_GATED_DELTA: dict[str, Any] = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}

_LLAMA = Family("LlamaForCausalLM", "LlamaConfig", _DENSE)

_QWEN3 = Family("Qwen3ForCausalLM", "Qwen3Config", {**_DENSE, "head_dim": 32})

# Two layers share an earlier layer's rows; the window is longer than a block.
_GEMMA4 = Family(
    "Gemma4ForCausalLM",
    "Gemma4TextConfig",
    {
        **_DENSE,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_hidden_layers": 6,
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8,
        "sliding_window": 100,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "final_logit_softcapping": 30.0,
    },
)

_QWEN3_5 = Family(
    "Qwen3_5ForCausalLM",
    "Qwen3_5TextConfig",
    {
        **_DENSE,
        **_GATED_DELTA,
        "head_dim": 32,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    },
)

# Layers 1 and 2 hold three recurrent states, one of them token ids; only the first of the two
# indexed layers holds positions.
_QWEN4_EXP = Family(
    "Qwen4ExpForCausalLM",
    "Qwen4ExpTextConfig",
    {
        **_SMALL,
        **_GATED_DELTA,
        "num_hidden_layers": 5,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts_per_tok": 2,
        "num_experts": 8,
        "hc_count": 2,
        "hc_lowrank": 16,
        "ple_layer_ids": [1, 2],
        "ple_embed_dim": 64,
        "ngram_size": 3,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 500,
        "split_ngram_parts": 1,
        "make_ngram_vocab_size_divisible_by": 8,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 32,
        "indexer_budget": 32,
        "indexer_compress_ratio": 8,
        "eos_token_id": 7,
        "layer_types": ["linear_attention"] * 3 + ["indexed_attention"] * 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    },
)

_DEEPSEEK_V32 = Family(
    "DeepseekV32ForCausalLM",
    "DeepseekV32Config",
    {
        **_DENSE,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "index_n_heads": 4,
        "index_head_dim": 32,
        "index_topk": 40,
    },
    sparse={"index_topk": 4096},
)

# The window spans more than one block, and each kind of pooling occurs twice.
_DEEPSEEK_V4 = Family(
    "DeepseekV4ForCausalLM",
    "DeepseekV4Config",
    {
        **_SMALL,
        "num_hidden_layers": 5,
        "moe_intermediate_size": 32,
        "head_dim": 32,
        "q_lora_rank": 32,
        "num_experts_per_tok": 2,
        "n_routed_experts": 8,
        "layer_types": ["sliding_attention"]
        + ["heavily_compressed_attention", "compressed_sparse_attention"] * 2,
        "mlp_layer_types": ["hash_moe"] + ["moe"] * 4,
        "hc_mult": 2,
        "sliding_window": 150,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_n_heads": 4,
        "index_head_dim": 16,
        "index_topk": 8,
        "partial_rotary_factor": 0.5,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
    },
    attentions=EAGER,
    block_tokens=128,
    sparse={"index_topk": 4096},
)

_MAMBA2 = Family(
    "Mamba2ForCausalLM",
    "Mamba2Config",
    {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "state_size": 16,
        "num_hidden_layers": 4,
        "num_heads": 8,
        "head_dim": 16,
        "expand": 2,
        "n_groups": 1,
        "chunk_size": 32,
    },
    attentions=EAGER,
)

_FALCON_H1 = Family(
    "FalconH1ForCausalLM",
    "FalconH1Config",
    {
        **_DENSE,
        "mamba_d_ssm": 128,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_chunk_size": 32,
    },
)

_LFM2 = Family(
    "Lfm2ForCausalLM",
    "Lfm2Config",
    {**_DENSE, "layer_types": ["conv", "conv", "full_attention", "conv"]},
)

# The window is shorter than a block.
_GPT_OSS = Family(
    "GptOssForCausalLM",
    "GptOssConfig",
    {
        **_DENSE,
        "intermediate_size": 64,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 48,
    },
    attentions=EAGER,
)

# Recurrent state beside rows and beside a window, in one model.
_ZAYA = Family(
    "ZayaForCausalLM",
    "ZayaConfig",
    {
        **_DENSE,
        "head_dim": 32,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "router_hidden_size": 16,
        "sliding_window": 100,
        "layer_types": ["hybrid", "hybrid_sliding"] * 2,
    },
    attentions=("sdpa",),
)

# Chunked attention: transformers keeps it on sliding-window layers, with another mask.
_LLAMA4 = Family(
    "Llama4ForCausalLM",
    "Llama4TextConfig",
    {
        **_DENSE,
        "head_dim": 16,
        "intermediate_size_mlp": 128,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 100,
        "no_rope_layer_interval": 2,
        "floor_scale": 64,
    },
    attentions=("sdpa",),
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "qwen3": _QWEN3,
    "gemma4": _GEMMA4,
    "qwen3_5": _QWEN3_5,
    "qwen4_exp": _QWEN4_EXP,
    "deepseek_v32": _DEEPSEEK_V32,
    "deepseek_v4": _DEEPSEEK_V4,
    "mamba2": _MAMBA2,
    "falcon_h1": _FALCON_H1,
    "lfm2": _LFM2,
    "gpt_oss": _GPT_OSS,
    "zaya": _ZAYA,
    "llama4": _LLAMA4,
}

IMAGE_TOKEN, VIDEO_TOKEN, IMAGE_START, IMAGE_END = 250, 251, 252, 253
TEXT_TOKENS = 240  # tokens below stand for text, whatever the family
_MEDIA_TOKENS = {"image_token_id": IMAGE_TOKEN, "video_token_id": VIDEO_TOKEN}
_MERGE = 2  # by which a Qwen tower merges patches, on each side
_POOL = 3  # by which a Gemma tower does

_QWEN_VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": _MERGE,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
}
_INTERLEAVED: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_interleaved": True,
}
_ROPE = {**_INTERLEAVED, "mrope_section": [8, 4, 4]}
_PARTIAL_ROPE = {**_INTERLEAVED, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}


def _qwen(kind: str, text: Mapping[str, Any], **vision: Any) -> Family:
    """Return the family ``kind``: its text part with a tower before it."""
    return Family(
        f"{kind}ForConditionalGeneration",
        f"{kind}Config",
        {
            "text_config": dict(text),
            "vision_config": {**_QWEN_VISION, **vision},
            "vision_start_token_id": IMAGE_START,
            "vision_end_token_id": IMAGE_END,
            **_MEDIA_TOKENS,
        },
    )


_SPARSE_MLP: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def _gemma4_images(bidirectional: str | None) -> Family:
    return Family(
        "Gemma4ForConditionalGeneration",
        "Gemma4Config",
        {
            "text_config": {**_GEMMA4.config, "use_bidirectional_attention": bidirectional},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "patch_size": 4,
                "pooling_kernel_size": _POOL,
                "position_embedding_size": 64,
            },
            "audio_config": None,
            "boi_token_id": IMAGE_START,
            "eoi_token_id": IMAGE_END,
            "boa_token_id": 240,
            "eoa_token_index": 241,
            "audio_token_id": 242,
            **_MEDIA_TOKENS,
        },
    )


IMAGE_FAMILIES: Mapping[str, Family] = {
    "qwen3_vl": _qwen(
        "Qwen3VL",
        {**_DENSE, "head_dim": 32, "rope_parameters": _ROPE},
        deepstack_visual_indexes=[0, 1, 2],
    ),
    "qwen3_vl_moe": _qwen(
        "Qwen3VLMoe",
        {**_DENSE, **_SPARSE_MLP, "head_dim": 32, "rope_parameters": _ROPE},
        deepstack_visual_indexes=[0, 2],
    ),
    "qwen3_5_images": _qwen("Qwen3_5", {**_QWEN3_5.config, "rope_parameters": _PARTIAL_ROPE}),
    "qwen3_5_moe_images": _qwen(
        "Qwen3_5Moe",
        {
            **_QWEN3_5.config,
            **_SPARSE_MLP,
            "shared_expert_intermediate_size": 32,
            "rope_parameters": _PARTIAL_ROPE,
        },
    ),
    "qwen4_exp_images": _qwen("Qwen4Exp", _QWEN4_EXP.config),
    "gemma4_images": _gemma4_images(None),
    "gemma4_images_both_ways": _gemma4_images("vision"),
}


def image(name: str, seed: int, rows: int = 4, columns: int = 5) -> MediaItem:
    """Return an image of ``rows`` x ``columns`` tokens, in the form that the family's tower takes.

    ``data`` is float32; equal arguments give equal items, and a seed is a picture of its own.
    """
    if name.startswith("gemma4"):
        grid: tuple[int, ...] = (_POOL * rows, _POOL * columns)
        shape = (prod(grid), 3 * 4 * 4)
    else:
        grid = (1, _MERGE * rows, _MERGE * columns)
        shape = (prod(grid), 3 * 2 * 4 * 4)
    draw = torch.Generator().manual_seed(seed)
    data = torch.rand(shape, generator=draw).numpy().tobytes()
    media = identity.media_name(b"families", "float32", shape, grid, data)
    return MediaItem(media, "image", rows * columns, "float32", shape, grid, data)


def shown(*pieces: int | tuple[int, int] | MediaItem) -> tuple[Prompt, list[MediaItem]]:
    """Return a prompt of text and images, and its items in order.

    Args:
        pieces: an item is its placeholders, between the tokens that begin and end an image;
            a number is so many tokens of text, and (number, seed) is so many of another text.
    """
    ids: list[int] = []
    spans: list[MediaSpan] = []
    items: list[MediaItem] = []
    for piece in pieces:
        if isinstance(piece, MediaItem):
            spans.append(MediaSpan(len(ids) + 1, piece.tokens, piece.name))
            items.append(piece)
            ids += [IMAGE_START, *[IMAGE_TOKEN] * piece.tokens, IMAGE_END]
        else:
            count, seed = piece if isinstance(piece, tuple) else (piece, 0)
            draw = random.Random(f"{seed} {len(ids)}")
            ids += [draw.randrange(TEXT_TOKENS) for _ in range(count)]
    return Prompt.of(ids, tuple(spans)), items
