"""The checkpoint folder: what transformers' Auto classes read, weights in bfloat16."""

import copy
import json
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen3_5ForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from models.spark.network import (
    CHANNEL_MEAN,
    CHANNEL_STD,
    MAX_PIXELS,
    MERGE,
    MIN_PIXELS,
    PATCH_PX,
    TEMPORAL,
)

# Where the package keeps it.
CHECKPOINT = Path(__file__).parents[2] / "src" / "surefoot" / "engine" / "hf" / "spark"


def write_checkpoint(
    network: Qwen3_5ForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Write configuration, weights, tokenizer, template and image processor over what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(network).to(torch.bfloat16)
    half.config.dtype = half.config.text_config.dtype = torch.bfloat16
    half.config.vision_config.dtype = torch.bfloat16
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH_PX,
        merge_size=MERGE,
        temporal_patch_size=TEMPORAL,
        size={"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        image_mean=[CHANNEL_MEAN] * 3,
        image_std=[CHANNEL_STD] * 3,
    )
    processor.save_pretrained(folder)
    # The class for whole prompts needs torchvision; its name is written all the same, because
    # loaders look for it.
    settings = folder / "preprocessor_config.json"
    written = json.loads(settings.read_text()) | {"processor_class": "Qwen3VLProcessor"}
    settings.write_text(json.dumps(written, indent=1) + "\n")
    (folder / "model.safetensors").chmod(0o644)
