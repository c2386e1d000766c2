"""Tiny models on disk: folders as ``save_pretrained`` writes them, and GGUF files."""

from pathlib import Path

import gguf
import numpy
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

BLOCK = 16
WORDS = ["<unk>", "<eos>", *sorted(ByteLevel.alphabet()), "ab"]
SHAPE = {
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "bos_token_id": 1,
    "pad_token_id": 1,
}


def build(kind="llama", dtype=torch.float32, seed=0, **changes):
    """Return a model with weights of ``seed``, large enough to matter to the answer."""
    config = AutoConfig.for_model(kind, **SHAPE | changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(0.0, 0.2)
    return model.to(dtype).eval()


def save(folder: Path, model=None, **changes) -> Path:
    """Write a model and its tokenizer into ``folder``."""
    (build(**changes) if model is None else model).save_pretrained(folder)
    ids = {word: number for number, word in enumerate(WORDS)}
    bytewise = Tokenizer(BPE(vocab=ids, merges=[("a", "b")], unk_token="<unk>"))
    bytewise.pre_tokenizer = ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(
        tokenizer_object=bytewise, unk_token="<unk>", eos_token="<eos>"
    ).save_pretrained(folder)
    return folder


def write_gguf(file: Path, seed=0, leave_out=()) -> Path:
    """Write a llama whose matrices are packed as Q8_0; ``leave_out`` names GGUF tensors."""
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(SHAPE["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_merges(["a b"])
    writer.add_token_types([3, 3, *[1] * (len(WORDS) - 2)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    draw = numpy.random.default_rng(seed)
    for name, shape in _gguf_shapes().items():
        if name in leave_out:
            continue
        if len(shape) == 1:
            writer.add_tensor(name, numpy.ones(shape, numpy.float32))
            continue
        values = draw.normal(0.0, 0.2, shape).astype(numpy.float32)
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _gguf_shapes():
    width, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    narrow = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
    shapes = {"token_embd.weight": (SHAPE["vocab_size"], width), "output_norm.weight": (width,)}
    for block in range(SHAPE["num_hidden_layers"]):
        shapes |= {
            f"blk.{block}.attn_norm.weight": (width,),
            f"blk.{block}.ffn_norm.weight": (width,),
            f"blk.{block}.attn_q.weight": (width, width),
            f"blk.{block}.attn_k.weight": (narrow, width),
            f"blk.{block}.attn_v.weight": (narrow, width),
            f"blk.{block}.attn_output.weight": (width, width),
            f"blk.{block}.ffn_gate.weight": (inner, width),
            f"blk.{block}.ffn_up.weight": (inner, width),
            f"blk.{block}.ffn_down.weight": (width, inner),
        }
    return shapes
