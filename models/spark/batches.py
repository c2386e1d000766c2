"""Conversations as tensors: token ids, labels on the answers, pixels, positions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from models.spark.conversation import Conversation
from models.spark.network import (
    CHANNEL_MEAN,
    CHANNEL_STD,
    MAX_PIXELS,
    MERGE,
    MIN_PIXELS,
    PATCH_PX,
    TEMPORAL,
)

IGNORED = -100


class Grid(NamedTuple):
    """An image's patches: rows and columns. The network sees one token per MERGE x MERGE."""

    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """How many tokens the image is."""
        return self.rows * self.columns // MERGE**2


@dataclass(frozen=True, slots=True)
class Batch:
    """What one forward pass reads.

    ``inputs`` are the network's keyword arguments: input_ids [rows, tokens], position_ids
    [3, rows, tokens], and with images pixel_values [patches, 1536] f32 and image_grid_thw.
    ``labels`` [rows, tokens] hold the ids of the answers and IGNORED elsewhere.
    """

    inputs: dict[str, Tensor]
    labels: Tensor


class Encoder:
    """Turns conversations into batches with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._text = tokenizer.backend_tokenizer
        token = tokenizer.convert_tokens_to_ids
        self._start, self._end = token("<|im_start|>"), token("<|im_end|>")
        self._pad, self._image = token("<|endoftext|>"), token("<|image_pad|>")

    def batch(self, conversations: Sequence[Conversation]) -> Batch:
        """Return the conversations as rows, padded on the right."""
        rows = [self._row(conversation) for conversation in conversations]
        width = max(len(ids) for ids, _, _ in rows)
        ids = torch.full((len(rows), width), self._pad)
        labels = torch.full((len(rows), width), IGNORED)
        pixels: list[np.ndarray] = []
        grids: list[Grid] = []
        positions = torch.zeros(3, len(rows), width, dtype=torch.long)
        for index, (row, its_labels, images) in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            labels[index, : len(row)] = torch.tensor(its_labels)
            its_grids = [grid for _, grid in images]
            positions[:, index] = self._positions(ids[index].tolist(), its_grids)
            pixels += [patches for patches, _ in images]
            grids += its_grids
        inputs = {"input_ids": ids, "position_ids": positions}
        if grids:
            inputs["pixel_values"] = torch.from_numpy(np.concatenate(pixels))
            inputs["image_grid_thw"] = torch.tensor([[1, *grid] for grid in grids])
            inputs["mm_token_type_ids"] = (ids == self._image).int()
        return Batch(inputs, labels)

    def _row(
        self, conversation: Conversation
    ) -> tuple[list[int], list[int], list[tuple[np.ndarray, Grid]]]:
        """Write the template's tokens by hand, because labels need to know who speaks."""
        ids: list[int] = []
        labels: list[int] = []
        images = [patches(image) for image in conversation.images]
        grids = iter([grid for _, grid in images])
        for turn in conversation.turns:
            head = [self._start, *self._ids(f"{turn.role}\n")]
            body = [*self._ids(turn.text), self._end]
            spread: list[int] = []
            for one in body:
                spread += [one] * (next(grids).tokens if one == self._image else 1)
            answers = spread if turn.role == "assistant" else [IGNORED] * len(spread)
            tail = self._ids("\n")
            ids += head + spread + tail
            labels += [IGNORED] * len(head) + answers + [IGNORED] * len(tail)
        return ids, labels, images

    def _ids(self, text: str) -> list[int]:
        return list(self._text.encode(text).ids)

    def _positions(self, row: list[int], grids: list[Grid]) -> Tensor:
        """Return M-RoPE positions [3, tokens]: an image advances by its longer side only."""
        spans: list[Tensor] = []
        at, next_position, remaining = 0, 0, iter(grids)
        while at < len(row):
            if row[at] == self._image:
                grid = next(remaining)
                height, width = grid.rows // MERGE, grid.columns // MERGE
                down = torch.arange(height).repeat_interleave(width)
                across = torch.arange(width).repeat(height)
                spans.append(torch.stack((torch.zeros_like(down), down, across)) + next_position)
                next_position += max(height, width)
                at += grid.tokens
            else:
                end = row.index(self._image, at) if self._image in row[at:] else len(row)
                spans.append(torch.arange(end - at).expand(3, -1) + next_position)
                next_position += end - at
                at = end
        return torch.cat(spans, dim=1)


def patches(image: Image.Image) -> tuple[np.ndarray, Grid]:
    """Do what the stock image processor does, bit for bit, in less time.

    Returns the patches [rows * columns, 3 * 2 * 16 * 16] f32, ordered by groups of MERGE x MERGE.
    """
    width, height = _fitted(image.width, image.height)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    levels = (np.asarray(image, np.float32) / 255.0 - CHANNEL_MEAN) / CHANNEL_STD
    grid = Grid(height // PATCH_PX, width // PATCH_PX)
    blocks = levels.transpose(2, 0, 1).reshape(
        3, grid.rows // MERGE, MERGE, PATCH_PX, grid.columns // MERGE, MERGE, PATCH_PX
    )
    # [row group, column group, row, column, channel, y, x], then the same frame twice in time.
    blocks = blocks.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    frames = np.broadcast_to(blocks, (*blocks.shape[:5], TEMPORAL, PATCH_PX, PATCH_PX))
    return np.ascontiguousarray(frames.reshape(grid.rows * grid.columns, -1)), grid


def _fitted(width: int, height: int) -> tuple[int, int]:
    """Return the size that the processor resizes to, multiples of 32 within the pixel limits."""
    step = PATCH_PX * MERGE
    wide, high = round(width / step) * step, round(height / step) * step
    if wide * high > MAX_PIXELS:
        scale = math.sqrt(width * height / MAX_PIXELS)
        high = max(step, math.floor(height / scale / step) * step)
        wide = max(step, math.floor(width / scale / step) * step)
    elif wide * high < MIN_PIXELS:
        scale = math.sqrt(MIN_PIXELS / (width * height))
        high = math.ceil(height * scale / step) * step
        wide = math.ceil(width * scale / step) * step
    return wide, high
