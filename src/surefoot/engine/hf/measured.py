"""What the benchmarks need of this room's inside; nothing here serves anybody."""

from collections.abc import Callable, Sequence

import torch
from transformers import DynamicCache, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from surefoot.engine.hf.engine import HfEngine
from surefoot.engine.hf.forward import Forward
from surefoot.engine.hf.vision import Vision


def stock_decode(
    engine: HfEngine, tokens: Sequence[int], steps: int, clock: Callable[[], float]
) -> float:
    """Return tokens/s of transformers' own ``generate`` after ``tokens``, for comparison.

    The prompt but for its last token is prefilled beforehand, outside the measured time. For models
    of text: of one that sees, ``generate`` leaves rope deltas on the model.
    """
    assert engine.features is None, "a model of text is needed"
    model = engine._loaded
    ids = torch.tensor([list(tokens)], device=model.device)
    cache = DynamicCache(config=model.config)
    forward = Forward(model)
    last = len(tokens) - 1
    with torch.inference_mode():
        for start in range(0, last, engine.block_tokens):
            forward(ids[:, start : min(start + engine.block_tokens, last)], start, cache)
        began = clock()
        answer = model.generate(
            ids, cache=cache, do_sample=False, min_new_tokens=steps, max_new_tokens=steps
        )
        took = clock() - began
    assert answer.shape[1] == len(tokens) + steps, answer.shape
    return steps / took


def full_size_tower(*, threads: int) -> Vision:
    """Return the vision tower that transformers' ``Qwen3VLVisionConfig`` describes by default.

    27 layers of width 1152, three of them with DeepStack outputs: 0.6 billion weights, all random,
    in bfloat16. The language model behind it has one narrow layer and is never run.
    """
    torch.set_num_threads(threads)
    width = Qwen3VLConfig().vision_config.out_hidden_size
    text = {
        "vocab_size": 512,
        "hidden_size": width,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
    }
    config = Qwen3VLConfig(text_config=text, image_token_id=500, video_token_id=501)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Qwen3VLForConditionalGeneration(config).eval()
        finally:
            torch.set_default_dtype(dtype)
    return Vision(model)
