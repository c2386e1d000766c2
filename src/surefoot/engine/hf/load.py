"""Loading a model: a hub id, a folder, a GGUF file or a built-in name.

A model is refused rather than repaired. A checkpoint that lacks a tensor would be completed with
random numbers, and one that needs code of its own would compute something nobody has read.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.utils import logging

from surefoot.engine.hf import builtin, gguf, smollm2
from surefoot.engine.hf.engine import HfEngine
from surefoot.engine.hf.towers import sees
from surefoot.errors import SetupError

DTYPES = ("bfloat16", "float32", "float16")
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
# What transformers raises at a source that it cannot load; anything else is a bug.
_UNLOADABLE = (OSError, ValueError, RuntimeError, LookupError, ImportError, SafetensorError)


def load_engine(
    model: str,
    *,
    threads: int,
    block_tokens: int,
    dtype: str | None,
    attention: str | None,
    device: str,
    cache_folder: Path,
    progress: Callable[[str], None],
    clock: Callable[[], float],
) -> HfEngine:
    """Load ``model`` and check it; takes seconds, and all of the model's memory.

    Fixes torch's thread count for the process.

    Args:
        model: a built-in name, a folder, a ``.gguf`` file, or a hub id ``owner/name``.
        threads: how many threads torch computes with; part of the model's name.
        block_tokens: the grid's step.
        dtype: one of ``DTYPES``; None is the checkpoint's own.
        attention: transformers' name of an attention implementation; None is ``sdpa`` where the
            family supports it, else ``eager``.
        device: where the model computes, as torch names it.
        cache_folder: where GGUF files are expanded.
        progress: told before something slow happens.
        clock: seconds, monotonic; prefill is timed with it.

    Raises:
        SetupError: the model, or one of the arguments, cannot be used as given.
        EngineError: the model was loaded but cannot be run.
    """
    if dtype is not None and dtype not in DTYPES:
        raise SetupError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    place = _device(device)
    torch.set_num_threads(threads)
    logging.disable_progress_bar()
    source = _source(model, cache_folder, progress)
    progress(f"loading {model}")
    loaded = _load(source, dtype, attention)
    try:
        _settle(loaded, place)
    except RuntimeError as error:
        raise SetupError(f"model {model} does not fit on {device}: {_line(error)}") from error
    return HfEngine(
        loaded,
        tokenizer_source=source,
        threads=threads,
        block_tokens=block_tokens,
        progress=progress,
        clock=clock,
    )


def _settle(model: torch.nn.Module, device: torch.device) -> None:
    """Move ``model`` to ``device``, into memory of its own.

    On the CPU, tensors are loaded as views of the mapped checkpoint: a file that is overwritten
    later would change the weights of a model that already has its name.
    """
    model.to(device)
    if device.type == "cpu":
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SetupError(f"device {name!r} is not one that torch knows") from error
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": _mps()}
    if not present.get(device.type, False):
        usable = ", ".join(kind for kind, here in present.items() if here)
        raise SetupError(f"device {name!r} is not available here; usable: {usable}")
    return device


def _mps() -> bool:
    return torch.backends.mps.is_available()


def _source(model: str, cache_folder: Path, progress: Callable[[str], None]) -> str:
    """Return the folder, or the hub id, that ``model`` means."""
    path = _built_in(model) or Path(model).expanduser()
    if path.suffix == ".gguf":
        folder = gguf.expanded(path.absolute(), cache_folder, progress)
        progress(f"weights: {path.name}, expanded to bfloat16")
        return str(folder)
    if path.is_dir():
        _check_folder(path)
        return str(path)
    if path.exists():
        raise SetupError(f"{path} is neither a model folder nor a .gguf file")
    if not _HUB_ID.fullmatch(model):
        raise SetupError(
            f"there is no model folder {model}; give a folder, a .gguf file, "
            f"a hub id such as owner/name, or {' or '.join(builtin.NAMES)}"
        )
    progress(f"{model} is no folder here: taking it for a hub id")
    return model


def _built_in(model: str) -> Path | None:
    match model:
        case builtin.SMOLLM2:
            return smollm2.weights_file()
        case builtin.SPARK:
            return builtin.spark_folder()
    return None


def _check_folder(folder: Path) -> None:
    try:
        names = {one.name for one in folder.iterdir()}
    except OSError as error:
        raise SetupError(f"model folder {folder} cannot be read: {error.strerror}") from error
    lacking = []
    if "config.json" not in names:
        lacking.append("config.json")
    if not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        lacking.append("*.safetensors")
    if lacking:
        raise SetupError(
            f"model folder {folder} lacks {' and '.join(lacking)}; "
            "give a folder that save_pretrained wrote"
        )


def _load(source: str, dtype: str | None, attention: str | None) -> Any:
    chosen: dict[str, Any] = {"dtype": "auto" if dtype is None else getattr(torch, dtype)}
    if attention is not None:
        chosen["attn_implementation"] = attention
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        # A model that sees is loaded whole: its text part alone has another class, and other state.
        kind = AutoModelForImageTextToText if sees(config) else AutoModelForCausalLM
        model, report = kind.from_pretrained(
            source,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
            **chosen,
        )
    except _UNLOADABLE as error:
        raise SetupError(f"model {source} cannot be loaded: {_why(error)}") from error
    _refuse_incomplete(source, report)
    return model.eval()


def _why(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text or "custom code" in text:
        return "it needs code of its own (auto_map), and surefoot runs no code that models bring"
    return _line(error)


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _refuse_incomplete(source: str, report: Mapping[str, Any]) -> None:
    """Refuse a model whose tensors are not all the checkpoint's own."""
    problems = {
        "lacks": sorted(report["missing_keys"]),
        "has other shapes than its configuration for": sorted(
            one if isinstance(one, str) else one[0] for one in report["mismatched_keys"]
        ),
        "could not be read for": [_line(ValueError(one)) for one in report["error_msgs"]],
    }
    for problem, names in problems.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise SetupError(f"model {source} {problem} {', '.join(names[:3])}{more}")
