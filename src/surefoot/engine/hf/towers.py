"""What differs between families that see: a tower's arguments, and where image tokens stand.

``TOWERS`` is the one table of families that are served with images. All of them take an image's
features through the same forward call (``sight``); what a row of the table knows is how the tower
is called, how many tokens stand for an image, and what else a block's call must say so that it says
the same whatever was computed before (I5).

Read in transformers 5.24: models/qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, qwen4_exp, gemma4.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import torch

from surefoot.prompt import MediaItem, Prompt


class Places(Protocol):
    """Where the tokens of one prompt stand, and the tokens generated after it."""

    def arguments(self, start: int, end: int) -> dict[str, torch.Tensor]:
        """Return what a forward call on the tokens ``[start, end)`` must say of their places."""
        ...


class Tower(Protocol):
    """How one family's tower is called and its image tokens are placed."""

    @property
    def atomic_spans(self) -> bool:
        """Whether tokens of an image see later ones of the same image."""
        ...

    @property
    def patch_values(self) -> int:
        """The length of a row of an item's tensor."""
        ...

    @property
    def small_grid(self) -> tuple[int, ...]:
        """The grid of an image of six tokens, two high and three wide."""
        ...

    def tokens(self, grid: Sequence[int]) -> int:
        """Return how many placeholder tokens stand for an image of this grid."""
        ...

    def arguments(self, grid: Sequence[int], pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tower's arguments for one image alone."""
        ...

    def places(self, prompt: Prompt, items: Sequence[MediaItem], device: torch.device) -> Places:
        """Place the tokens of ``prompt``; ``items`` are those of its spans, one each."""
        ...


class QwenTower:
    """Qwen: text and image tokens rotate by time, height and width (M-RoPE); causal throughout.

    An item's grid is (temporal, height, width) in patches; ``merge`` x ``merge`` of them make one
    token.
    """

    atomic_spans = False

    def __init__(self, config: Any) -> None:
        """Read the sizes that the family's configuration states."""
        vision = config.vision_config
        self._merge: int = vision.spatial_merge_size
        self.small_grid = (1, 2 * self._merge, 3 * self._merge)
        self.patch_values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2

    def tokens(self, grid: Sequence[int]) -> int:
        """Return how many placeholder tokens stand for an image of this grid."""
        return prod(grid) // self._merge**2

    def arguments(self, grid: Sequence[int], pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tower's arguments for one image alone."""
        return {
            "pixel_values": pixels,
            "image_grid_thw": torch.tensor([list(grid)], device=pixels.device),
        }

    def places(self, prompt: Prompt, items: Sequence[MediaItem], device: torch.device) -> Places:
        """Place the tokens of ``prompt``; ``items`` are those of its spans, one each."""
        grids = [
            (item.grid[0], item.grid[1] // self._merge, item.grid[2] // self._merge)
            for item in items
        ]
        return RotaryPlaces(prompt, grids, device)


class RotaryPlaces:
    """Positions on four rows: the token's own, then time, height and width.

    An image's tokens stand at its first position plus their place in the grid, and what follows
    goes on behind its longer side. They are a function of the tokens and grids before them: a
    prompt that ends inside an image has the positions of the longer one it begins.
    """

    def __init__(
        self, prompt: Prompt, grids: Sequence[tuple[int, int, int]], device: torch.device
    ) -> None:
        """Lay out ``prompt``; ``grids`` are (time, height, width) in tokens, one per span."""
        pieces = []
        token = position = 0
        for span, (times, height, width) in zip(prompt.media, grids, strict=True):
            pieces.append(_line(position, span.start - token))
            position += span.start - token
            inside = torch.cartesian_prod(
                torch.arange(times), torch.arange(height), torch.arange(width)
            )
            pieces.append(inside.T[:, : span.length] + position)
            position += max(height, width)
            token = span.end
        pieces.append(_line(position, len(prompt) - token))
        rotary = torch.cat(pieces, dim=1)
        own = torch.arange(len(prompt))[None]
        self._positions = torch.cat([own, rotary])[:, None].to(device)
        self._next = position + len(prompt) - token

    def arguments(self, start: int, end: int) -> dict[str, torch.Tensor]:
        """Return positions [4, 1, tokens], int64; generated tokens follow the prompt's last."""
        tokens = self._positions.shape[2]
        if end <= tokens:
            return {"position_ids": self._positions[:, :, start:end]}
        assert start >= tokens, (start, tokens)
        own = torch.arange(start, end, device=self._positions.device)
        rotary = own - tokens + self._next
        return {"position_ids": torch.stack([own, rotary, rotary, rotary])[:, None]}


def _line(position: int, count: int) -> torch.Tensor:
    return torch.arange(position, position + count).expand(3, -1)


class GemmaTower:
    """Gemma: positions are plain; in some models an image's tokens see each other both ways.

    An item's grid is (height, width) in patches, row by row; ``pool`` x ``pool`` of them make one
    token.
    """

    def __init__(self, config: Any) -> None:
        """Read the sizes that the family's configuration states."""
        self._pool: int = config.vision_config.pooling_kernel_size
        self.small_grid = (2 * self._pool, 3 * self._pool)
        self.patch_values = 3 * config.vision_config.patch_size**2
        self.atomic_spans = config.get_text_config().use_bidirectional_attention == "vision"

    def tokens(self, grid: Sequence[int]) -> int:
        """Return how many placeholder tokens stand for an image of this grid."""
        return prod(grid) // self._pool**2

    def arguments(self, grid: Sequence[int], pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tower's arguments for one image alone; a patch's position is (x, y)."""
        rows, columns = (torch.arange(side, device=pixels.device) for side in grid)
        places = torch.cartesian_prod(rows, columns).flip(1)
        return {"pixel_values": pixels[None], "image_position_ids": places[None]}

    def places(self, prompt: Prompt, items: Sequence[MediaItem], device: torch.device) -> Places:
        """Place the tokens of ``prompt``; ``items`` are those of its spans, one each."""
        return TokenKinds(prompt, device)


class TokenKinds:
    """Which tokens are an image's, counted from the prompt's first token on.

    The model numbers images in what it is told, and compares by absolute place: told of the block
    alone, it would let the wrong tokens see each other.
    """

    def __init__(self, prompt: Prompt, device: torch.device) -> None:
        """Mark the spans of ``prompt``."""
        self._kinds = torch.zeros(1, len(prompt), dtype=torch.int64, device=device)
        for span in prompt.media:
            self._kinds[:, span.start : span.end] = 1

    def arguments(self, start: int, end: int) -> dict[str, torch.Tensor]:
        """Return the kinds of all tokens before ``end``; those that are generated are text."""
        generated = max(0, end - self._kinds.shape[1])
        kinds = torch.nn.functional.pad(self._kinds[:, :end], (0, generated))
        return {"mm_token_type_ids": kinds}


TOWERS: Mapping[str, Callable[[Any], Tower]] = {
    "qwen3_vl": QwenTower,
    "qwen3_vl_moe": QwenTower,
    "qwen3_5": QwenTower,
    "qwen3_5_moe": QwenTower,
    "qwen4_exp": QwenTower,
    "gemma4": GemmaTower,
}


def sees(config: Any) -> bool:
    """Return whether a model of this configuration is served with images."""
    return config.model_type in TOWERS and config.vision_config is not None
