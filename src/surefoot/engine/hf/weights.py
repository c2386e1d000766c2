"""What a model consists of as it lies in memory: every parameter and buffer, digested.

The files it came from are not asked: a checkpoint may lack a tensor, a loader may cast one, and two
processes would then serve two models under one name. Tied weights are digested under each of their
names; a buffer counts whether or not it is ever saved.
"""

import warnings
from collections.abc import Iterator
from math import prod

import torch

from surefoot.identity import Buffer, tensors_digest

with warnings.catch_warnings():
    # torch warns, once per process, that a tensor over read-only bytes could be written to. Ours
    # are only ever copied from; spend the warning here rather than in some later restore.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def weights_digest(model: torch.nn.Module) -> bytes:
    """Digest name, dtype, shape and bytes of all tensors of ``model``, sorted by name.

    Gigabytes per second: a contiguous tensor on the CPU is read where it lies.
    """
    return tensors_digest(
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor_bytes(tensor))
        for name, tensor in sorted(_tensors(model), key=lambda pair: pair[0])
    )


def tensor_bytes(tensor: torch.Tensor) -> Buffer:
    """Return the raw bytes of ``tensor`` in C order; a view of it where that is possible."""
    if not tensor.numel():
        return b""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def host_tensor(dtype: str, shape: tuple[int, ...], data: Buffer) -> torch.Tensor:
    """Return a tensor over raw bytes in C order, to be copied from and nothing else."""
    if not prod(shape):
        return torch.empty(shape, dtype=torch_dtype(dtype))
    return torch.frombuffer(data, dtype=torch_dtype(dtype)).view(shape)


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
