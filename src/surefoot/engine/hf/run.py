"""One sequence on a transformers model: the engine's ``Run``.

Prefill takes the prompt by the grid, alone, with positions passed and one row of logits, so the
same tokens on the same state give the same bits whatever was restored before (I5). Decode may use
another attention call than prefill; a tail of one token is prefill all the same.
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import torch
from transformers import DynamicCache

from surefoot.engine import Placed, Sampled, Sampling
from surefoot.engine.hf.attention import decoding
from surefoot.engine.hf.forward import Forward
from surefoot.engine.hf.sight import Sight
from surefoot.engine.hf.table import SequenceCache, StateTable
from surefoot.engine.hf.vision import Vision
from surefoot.errors import EngineError
from surefoot.prompt import MediaItem, MediaName, Prompt, grid
from surefoot.state import Features, Part


class Choose(Protocol):
    """How a token is chosen from logits; ``sampling.choose``."""

    def __call__(
        self,
        logits: torch.Tensor,
        *,
        prompt_ids: Sequence[int],
        generated: Sequence[int],
        sampling: Sampling,
        position: int,
    ) -> Sampled:
        """Choose the token that follows ``position`` tokens; must leave ``logits`` unchanged."""
        ...


class HfRun:
    """One sequence being computed; its buffers are reachable from nowhere else."""

    def __init__(
        self,
        model: Any,
        table: StateTable | None,
        prompt: Prompt,
        sampling: Sampling,
        *,
        choose: Choose,
        vision: Vision | None = None,
        media: Sequence[MediaItem] = (),
    ) -> None:
        """Stand at position 0; nothing is computed or allocated yet.

        Args:
            model: a causal language model, in evaluation mode.
            table: how its state is cut; None serves without a cache on transformers' own layers.
            prompt: tokens and media spans.
            sampling: how ``sample`` chooses.
            choose: the function that does.
            vision: what the model sees with; None for a model of text.
            media: the items of the prompt's spans, in their order, and maybe more.
        """
        assert vision is not None or not prompt.media, "media spans need a vision tower"
        self._model = model
        self._forward = Forward(model)
        self._table = table
        self._sight = Sight(vision, prompt, media) if vision is not None else None
        self._atomic = vision is not None and vision.tower.atomic_spans
        self._prompt = prompt
        self._tokens = prompt.tokens()
        self._ids = torch.tensor([self._tokens], device=model.device)
        self._sampling = sampling
        self._choose = choose
        self._cache: Any = None
        self._position = 0
        self._block_start: int | None = None  # of the unit just prefilled; None after a decode
        self._logits: torch.Tensor | None = None
        self._generated: list[int] = []
        self._closed = False

    @property
    def position(self) -> int:
        """Tokens consumed so far: restored, prefilled and fed."""
        return self._position

    def install(self, boundary: int, parts: Sequence[Placed]) -> None:
        """Stand at ``boundary`` tokens; only at position 0, all or nothing (I5).

        Raises:
            ValueError: the parts are not what the boundary needs; the run is untouched.
        """
        assert self._table is not None, "this model is served without a cache"
        assert self._position == 0, self._position
        assert not self._closed, "the run is closed"
        assert boundary <= len(self._tokens), (boundary, len(self._tokens))
        # Room for the next block too, or the first forward pass would copy every row once more;
        # for no more than that, or its stacks would be larger than those of a run that computed.
        ends = (
            *grid(self._prompt, self._table.block_tokens, atomic=self._atomic),
            len(self._tokens),
        )
        room = min((end for end in ends if end > boundary), default=boundary)
        self._cache = self._table.install(boundary, parts, room=room)
        self._position = boundary

    def supply(self, media: MediaName, features: Features) -> None:
        """Copy in an item's features, before the first block that needs them.

        Raises:
            ValueError: they do not fit the engine's schema; the run is untouched.
        """
        assert self._sight is not None, "a model of text has no features"
        self._sight.supply(media, features)

    def prefill(self, end: int) -> None:
        """Consume prompt tokens ``[position, end)`` in one pass: a whole block or the tail.

        Raises:
            EngineError: the model failed; the run can only be closed.
        """
        start = self._position
        assert start < end <= len(self._tokens), (start, end, len(self._tokens))
        self._advance(self._ids[:, start:end])
        self._block_start = start

    def cut(self, start: int, groups: Collection[str]) -> tuple[Part, ...]:
        """Copy out the parts of the block ``[start, position)`` that was just prefilled."""
        assert self._table is not None
        assert start == self._block_start, (start, self._block_start)
        return self._table.cut(self._cache, start, self._position, groups)

    def sample(self) -> Sampled:
        """Choose the next token from the last logits; the same call gives the same token."""
        assert self._logits is not None, "nothing was computed yet"
        return self._choose(
            self._logits,
            prompt_ids=self._tokens,
            generated=tuple(self._generated),
            sampling=self._sampling,
            position=self._position,
        )

    def feed(self, token: int) -> None:
        """Consume one generated token.

        Raises:
            EngineError: the model failed; the run can only be closed.
        """
        assert self._position == len(self._tokens) + len(self._generated), self._position
        with decoding(self._model):
            self._advance(torch.tensor([[token]], device=self._ids.device))
        self._generated.append(token)
        self._block_start = None

    def close(self) -> None:
        """Free the buffers; the run is unusable afterwards."""
        self._closed = True
        self._cache = self._logits = self._block_start = self._sight = None

    def _advance(self, ids: torch.Tensor) -> None:
        assert not self._closed, "the run is closed"
        end = self._position + ids.shape[1]
        try:
            with torch.inference_mode():
                self._make_room(end)
                sight = self._sight.arguments(self._position, end) if self._sight else None
                self._logits = self._forward(ids, self._position, self._cache, sight)
        except (RuntimeError, IndexError) as error:
            self.close()
            raise EngineError(f"the model failed at token {self._position}: {error}") from error
        self._position = end

    def _make_room(self, end: int) -> None:
        if self._cache is None and self._table is None:
            self._cache = DynamicCache(config=self._model.config)
        elif self._cache is None and self._table is not None:
            self._cache = self._table.fresh(end)
        elif isinstance(self._cache, SequenceCache):
            self._cache.reserve(end, self._position)
