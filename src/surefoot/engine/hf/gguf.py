"""A GGUF file, expanded once into a folder of safetensors and a tokenizer.

Packed weights compute other bits with other kernels, so they are unpacked to bfloat16 and from then
on are a model folder like any other. The folder is named by the file's content. It is written aside
and renamed, and a manifest with every file's digest is checked at each later start: a folder that
is damaged or half written is expanded anew.
"""

import json
import mmap
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from surefoot.errors import SetupError
from surefoot.identity import tensors_digest

VERSION = "bf16-1"  # raised by hand when the same file must expand to something else
_MANIFEST = "manifest.json"
_NEEDS = ("gguf", "accelerate")


def expanded(file: Path, cache_folder: Path, progress: Callable[[str], None]) -> Path:
    """Return the folder that holds ``file`` as safetensors, expanding it if need be.

    Args:
        file: a GGUF file.
        cache_folder: where expanded models are kept; created if it does not exist.
        progress: told before something slow happens.

    Raises:
        SetupError: the file, the folder or the installed packages do not allow it.
    """
    try:
        if not file.is_file() or not _is_gguf(file):
            raise SetupError(f"{file} is not a GGUF file; give the path of one that is")
        folder = cache_folder / "gguf" / f"{file_digest(file).hex()}-{VERSION}"
        if intact(folder):
            return folder
        progress(f"expanding {file.name} to bfloat16, once")
        _expand_aside(file, folder)
    except OSError as error:
        raise SetupError(
            f"{file} could not be expanded into {cache_folder}: {error.strerror or error}"
        ) from error
    if not intact(folder):
        raise SetupError(f"{folder} is not what was just written to it; check the disk")
    return folder


def intact(folder: Path) -> bool:
    """Return whether ``folder`` holds exactly what its manifest says."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        found = {one.name: file_digest(one).hex() for one in _files(folder)}
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and bool(found) and manifest == found


def file_digest(file: Path) -> bytes:
    """Digest a file's content."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        if not size:
            return tensors_digest([("file", "uint8", (0,), b"")])
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                return tensors_digest([("file", "uint8", (size,), view)])
            finally:
                view.release()


def _is_gguf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"GGUF"


def _expand_aside(file: Path, folder: Path) -> None:
    """Expand into a folder of this process's own, then rename it to ``folder``."""
    _require_packages()
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    aside.mkdir()
    try:
        _write(file, aside)
        digests = {one.name: file_digest(one).hex() for one in _files(aside)}
        (aside / _MANIFEST).write_text(json.dumps(digests, indent=1), encoding="utf-8")
        if not intact(folder):  # another process may have been faster
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _require_packages() -> None:
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise SetupError(
            f"reading GGUF files needs {' and '.join(missing)}; "
            "install with: pip install 'surefoot[gguf]'"
        )


def _remove_abandoned(folder: Path) -> None:
    # A process that died while expanding leaves its folder; a living one's is left alone.
    for partial in folder.parent.glob(f"{folder.name}.*.partial"):
        owner = partial.name.removesuffix(".partial").rpartition(".")[2]
        if not owner.isdigit() or not _alive(int(owner)):
            shutil.rmtree(partial, ignore_errors=True)


def _alive(process: int) -> bool:
    if process == os.getpid():
        return False  # ours, from an earlier attempt or an earlier bearer of the number
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write(file: Path, folder: Path) -> None:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(file.parent),
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    except Exception as error:  # a damaged file raises anything, down to a plain Exception
        reason = str(error).strip().partition("\n")[0]
        raise SetupError(f"{file} could not be read as a GGUF model: {reason}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise SetupError(f"{file} lacks tensors of its model: {', '.join(missing[:3])}")
    _forget_packing(model)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def _forget_packing(model: Any) -> None:
    # The tensors are plain by now; a configuration that says otherwise would be loaded as packed.
    if "quantization_config" in vars(model.config):
        del model.config.quantization_config


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.name != _MANIFEST)
