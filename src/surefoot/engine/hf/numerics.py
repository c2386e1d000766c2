"""What else decides bits, besides weights and configuration; part of the model's name.

Anything here that changes gives the model another name, so state of one setting is never read under
another. What no version string shows (a math library's switch in the environment) is caught by the
start-up fingerprint instead.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from surefoot.engine.hf.attention import folds
from surefoot.engine.hf.forward import LOGITS_TO_KEEP
from surefoot.engine.hf.vision import Vision

NUMERICS_VERSION = 1  # raised by hand when our own code computes other bits
GRID_RULE = "1: ends at absolute multiples of block_tokens, then one tail"
ATOMIC_GRID_RULE = "2: as 1; an end inside an image moves to the image's end"
# Packages that transformers or torch switches code paths for when they are installed.
KERNEL_PACKAGES = (
    "causal-conv1d",
    "fbgemm-gpu",
    "fla-core",
    "flash-attn",
    "flash-attn-3",
    "flash-linear-attention",
    "intel-extension-for-pytorch",
    "kernels",
    "liger-kernel",
    "mamba-ssm",
    "torchao",
    "triton",
    "xformers",
)


def numerics(
    model: Any, *, threads: int, block_tokens: int, vision: Vision | None = None
) -> dict[str, str]:
    """Return what decides this process's bits, as text, for ``identity.model_name``.

    Args:
        model: the loaded model, on its device.
        threads: the fixed thread count.
        block_tokens: the grid's step.
        vision: what the model sees with; None for a model of text.
    """
    facts: dict[str, object] = {
        "version": NUMERICS_VERSION,
        "grid": GRID_RULE,
        "block_tokens": block_tokens,
        "batch": 1,
        "logits_to_keep": LOGITS_TO_KEEP,
        "threads": threads,
        "dtype": model.dtype,
        "attention": model.config.get_text_config(decoder=True)._attn_implementation,
        "decode_attention": "folded heads" if folds(model) else "as prefill",
        "torch": torch.__version__,
        "torch build": torch.__config__.show(),
        "transformers": version("transformers"),
    }
    if vision is not None:
        facts["vision attention"] = model.config.vision_config._attn_implementation
        if vision.tower.atomic_spans:
            facts["grid"] = ATOMIC_GRID_RULE
    facts |= {f"package {name}": _version(name) for name in KERNEL_PACKAGES}
    facts |= _precision() | _device(model.device)
    return {name: str(fact) for name, fact in facts.items()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _precision() -> dict[str, object]:
    backends: Any = torch.backends  # partly untyped
    cuda, mkldnn = backends.cuda, bool(backends.mkldnn.is_available())
    return {
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "flush denormal": torch.tensor([1e-40]).mul(1.0).item() == 0.0,
        "mkldnn": mkldnn and backends.mkldnn.enabled,
        "mkldnn bf16": mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "bf16 reduction": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "fp16 reduction": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "sdpa kernels": (
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ),
    }


def _device(device: torch.device) -> dict[str, object]:
    backends: Any = torch.backends
    match device.type:
        case "cpu":
            capability: object = backends.cpu.get_cpu_capability()
        case "cuda":
            card = torch.cuda.get_device_properties(device)
            cudnn = backends.cudnn.version()
            capability = (card.name, card.major, card.minor, torch.version.cuda, cudnn)
        case other:
            capability = other
    return {"device": device.type, "capability": capability}
