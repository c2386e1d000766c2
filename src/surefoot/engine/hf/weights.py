"""What a model consists of as it lies in memory: every parameter and buffer, digested.

The files it came from are not asked: a checkpoint may lack a tensor, a loader may cast one, and two
processes would then serve two models under one name. Tied weights are digested under each of their
names; a buffer counts whether or not it is ever saved.
"""

from collections.abc import Iterator

import torch

from surefoot.identity import Buffer, tensors_digest


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


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
