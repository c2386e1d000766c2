"""A loaded model's vision tower: one image alone becomes features, as host bytes.

An image is never encoded with others, so its features are a function of the image. What they look
like is found by encoding a small image at start-up, not assumed.
"""

from math import prod
from typing import Any

import torch

from surefoot import identity
from surefoot.engine.hf.towers import TOWERS, sees
from surefoot.engine.hf.weights import host_tensor, tensor_bytes
from surefoot.errors import EngineError
from surefoot.prompt import MediaItem
from surefoot.state import DTYPE_BYTES, ROWS, Component, ComponentSchema, Features, FeatureSchema

_SPREAD = 40_503  # an odd number near 2**16 / golden ratio: neighbours differ much


class Vision:
    """The tower of a model that sees, and what its features and placeholder tokens are.

    ``tower`` holds what the family decides; ``placeholder`` is the token that stands for an image,
    ``reserved`` are all tokens that stand for media of some kind.
    """

    def __init__(self, model: Any) -> None:
        """Probe the tower of ``model`` with one small image.

        Raises:
            EngineError: the tower cannot be run.
        """
        config = model.config
        self._model = model
        self.device: torch.device = model.device
        self.tower = TOWERS[config.model_type](config)
        self.placeholder: int = config.image_token_id
        others = (getattr(config, name, None) for name in ("video_token_id", "audio_token_id"))
        self.reserved = frozenset({self.placeholder, *(one for one in others if one is not None)})
        self.small = small_item(self.tower.small_grid, self.tower.patch_values, tokens=6)
        tensors = self._encode(self.small)
        self.schema = FeatureSchema(tuple(_schema(*named) for named in tensors.items()))

    def encode(self, item: MediaItem) -> Features:
        """Run the tower on one image, alone; the result shares nothing with the model.

        Raises:
            EngineError: the tower failed.
        """
        assert item.kind == "image", item.kind
        assert item.tokens == self.tower.tokens(item.grid), (item.tokens, item.grid)
        assert item.shape == (prod(item.grid), self.tower.patch_values), (item.shape, item.grid)
        features = Features(
            tuple(
                Component(name, _dtype(tensor), tuple(tensor.shape), bytes(tensor_bytes(tensor)))
                for name, tensor in self._encode(item).items()
            )
        )
        assert self.schema.mismatch(features, item.tokens) is None, item
        return features

    def _encode(self, item: MediaItem) -> dict[str, torch.Tensor]:
        try:
            with torch.inference_mode():
                pixels = host_tensor(item.dtype, item.shape, item.data).clone().to(self.device)
                arguments = self.tower.arguments(item.grid, pixels)
                output = self._model.get_image_features(**arguments, return_dict=True)
                stacked = getattr(output, "deepstack_features", None) or ()
                return {
                    "features": torch.cat(list(output.pooler_output)),
                    **{f"deepstack-{i}": torch.cat(list(one)) for i, one in enumerate(stacked)},
                }
        except (RuntimeError, IndexError, ValueError) as error:
            raise EngineError(f"the vision tower failed: {error}") from error


def vision_of(model: Any) -> Vision | None:
    """Return what ``model`` sees with; None if it takes text only.

    Raises:
        EngineError: it has a tower that cannot be run.
    """
    return Vision(model) if sees(model.config) else None


def small_item(grid: tuple[int, ...], patch_values: int, *, tokens: int) -> MediaItem:
    """Return an image that is the same in every process, in the form that a tower consumes."""
    shape = (prod(grid), patch_values)
    values = torch.arange(1, prod(shape) + 1) * _SPREAD % 2**16 / 2**16
    data = bytes(tensor_bytes(values.to(torch.float32)))
    name = identity.media_name(b"start-up", "float32", shape, grid, data)
    return MediaItem(name, "image", tokens, "float32", shape, grid, data)


def _schema(name: str, tensor: torch.Tensor) -> ComponentSchema:
    assert tensor.shape[0] == 6, (name, tuple(tensor.shape))
    assert _dtype(tensor) in DTYPE_BYTES, tensor.dtype
    return ComponentSchema(name, _dtype(tensor), (ROWS, *tensor.shape[1:]))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
