"""What one sequence shows to a model that sees: places of all tokens, features of image tokens.

A forward call says the same of a block whatever the rest of the prompt holds: a text block is
called alike in a prompt with images, before them and in one without, because its name is the same.
Everything is passed to the model; nothing of a sequence is left on it (I5).
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from surefoot.engine.hf.vision import Vision
from surefoot.engine.hf.weights import host_tensor
from surefoot.prompt import MediaItem, MediaName, MediaSpan, Prompt
from surefoot.state import Features


class Sight:
    """The media of one prompt; features are copied in when they are supplied."""

    def __init__(self, vision: Vision, prompt: Prompt, media: Sequence[MediaItem]) -> None:
        """Place the tokens of ``prompt``; ``media`` are its spans' items, and maybe more."""
        items = media[: len(prompt.media)]
        _check(vision, prompt, items)
        self._vision = vision
        self._spans = prompt.media
        self._tokens = {item.name: item.tokens for item in items}
        self._features: dict[MediaName, tuple[torch.Tensor, ...]] = {}
        self._places = vision.tower.places(prompt, items, vision.device)

    def supply(self, media: MediaName, features: Features) -> None:
        """Copy an item's features to the model's device.

        Raises:
            ValueError: they are not what the tower makes of this item.
        """
        mismatch = self._vision.schema.mismatch(features, self._tokens[media])
        if mismatch:
            raise ValueError(f"features of {media.hex()}: {mismatch}")
        self._features[media] = tuple(
            host_tensor(one.dtype, one.shape, one.data).clone().to(self._vision.device)
            for one in features.components
        )

    def arguments(self, start: int, end: int) -> dict[str, Any]:
        """Return what the forward call on the tokens ``[start, end)`` says besides their ids."""
        arguments: dict[str, Any] = dict(self._places.arguments(start, end))
        shown = [self._rows(span, start, end) for span in self._spans if _meets(span, start, end)]
        if shown:
            # One list per component, in the schema's order; each holds a piece per span.
            features, *stacked = (list(pieces) for pieces in zip(*shown, strict=True))
            arguments["mm_encoder_outputs"] = {
                "image": BaseModelOutputWithDeepstackFeatures(
                    pooler_output=features, deepstack_features=stacked
                )
            }
        return arguments

    def _rows(self, span: MediaSpan, start: int, end: int) -> tuple[torch.Tensor, ...]:
        assert span.media in self._features, f"features of {span} were not supplied"
        first, last = max(start, span.start) - span.start, min(end, span.end) - span.start
        return tuple(component[first:last] for component in self._features[span.media])


def _meets(span: MediaSpan, start: int, end: int) -> bool:
    return span.start < end and start < span.end


def _check(vision: Vision, prompt: Prompt, items: Sequence[MediaItem]) -> None:
    """Assert that the prompt's placeholders are its spans and nothing else."""
    assert len(items) == len(prompt.media), (len(items), prompt.media)
    expected = torch.zeros(len(prompt), dtype=torch.bool)
    for span, item in zip(prompt.media, items, strict=True):
        assert span.media == item.name, (span, item.name)
        # Only the beginning of a longer prompt may cut its last image short.
        assert span.length == item.tokens or span.end == len(prompt) < span.start + item.tokens
        expected[span.start : span.end] = True
    ids = torch.tensor(prompt.tokens())
    assert bool((ids == vision.placeholder).equal(expected)), "placeholders outside of spans"
    reserved = torch.isin(ids, torch.tensor(sorted(vision.reserved)))
    assert bool(reserved.equal(expected)), "a token that stands for media of another kind"
