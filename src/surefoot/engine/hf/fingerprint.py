"""What this process computes: a digest of real state and logits, and a check that restores it.

Version strings do not show everything that changes bits, so a fixed prompt of two blocks and a tail
is computed at start-up and its digest becomes part of the model's name. Then the same run restores
its own first block from cut parts and must reproduce the rest bit for bit (I5).

A model that sees is shown a small image in the second block; what its tower makes of it is part of
the digest as well, and the tower must repeat itself.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch

from surefoot.engine import Placed, Sampled, Sampling
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.table import StateTable
from surefoot.engine.hf.vision import Vision
from surefoot.engine.hf.weights import tensor_bytes
from surefoot.identity import Buffer, tensors_digest
from surefoot.prompt import MediaSpan, Prompt, grid
from surefoot.state import Component

TAIL_TOKENS = 17
_SPREAD = 2_654_435_761  # a prime near 2**32 / golden ratio: consecutive ids fall far apart

_Tensor = tuple[str, str, tuple[int, ...], Buffer]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the start-up run found.

    ``mismatch`` says what a restore did not reproduce, ``unsteady`` what the vision tower did not
    repeat; None where nothing was wrong.
    """

    digest: bytes
    mismatch: str | None
    prefill_tokens_per_s: float
    unsteady: str | None = None


def fingerprint(
    model: Any,
    table: StateTable | None,
    *,
    vision: Vision | None = None,
    block_tokens: int,
    context_tokens: int,
    clock: Callable[[], float],
) -> Fingerprint:
    """Compute the fixed prompt, cold and (where there is a table) restored.

    Args:
        model: a causal language model, in evaluation mode.
        table: how its state is cut; None if it is served without a cache.
        vision: what it sees with; None for a model of text.
        block_tokens: the grid's step.
        context_tokens: the prompt is cut short to fit.
        clock: seconds, monotonic.
    """
    prompt = _prompt(model, min(2 * block_tokens + TAIL_TOKENS, context_tokens - 1))
    seen: list[_Tensor] = []
    unsteady = None
    if vision is not None:
        prompt = _with_image(prompt, vision, block_tokens)
        once, again = (
            _named(vision.encode(vision.small).components, "%s of an image") for _ in range(2)
        )
        seen, unsteady = once, _difference(once, again)
    cold = _Trace(model, table, prompt, block_tokens, clock, vision)
    cold.compute(restored=())
    mismatch = None
    if table is not None:
        warm = _Trace(model, table, prompt, block_tokens, clock, vision)
        warm.compute(restored=cold.first_block)
        mismatch = _difference(cold.tensors[-len(warm.tensors) :], warm.tensors)
        # State may fade within a block; what was installed must come out again as well.
        mismatch = mismatch or _changed_by_install(table, cold.first_block)
    digest = tensors_digest([*seen, *cold.tensors])
    return Fingerprint(digest, mismatch, max(cold.rates), unsteady)


def _prompt(model: Any, length: int) -> Prompt:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return Prompt.of(place * _SPREAD % vocabulary for place in range(1, length + 1))


def _with_image(prompt: Prompt, vision: Vision, block_tokens: int) -> Prompt:
    """Put the small image behind the second block's first token, if the prompt is long enough."""
    image, start = vision.small, block_tokens + 1
    # The fixed ids know nothing of a vocabulary's special tokens.
    spare = next(token for token in range(len(prompt)) if token not in vision.reserved)
    tokens = [spare if token in vision.reserved else token for token in prompt.tokens()]
    if start + image.tokens > len(tokens):
        return Prompt.of(tokens)
    tokens[start : start + image.tokens] = [vision.placeholder] * image.tokens
    return Prompt.of(tokens, (MediaSpan(start, image.tokens, image.name),))


@dataclass(slots=True)
class _Trace:
    """One run over the prompt that keeps every bit it saw."""

    model: Any
    table: StateTable | None
    prompt: Prompt
    block_tokens: int
    clock: Callable[[], float]
    vision: Vision | None
    tensors: list[_Tensor] = field(default_factory=list)
    first_block: list[Placed] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def compute(self, *, restored: Sequence[Placed]) -> None:
        """Prefill by the grid, the first block restored or not, and decode one token."""
        atomic = self.vision is not None and self.vision.tower.atomic_spans
        whole = grid(self.prompt, self.block_tokens, atomic=atomic)
        with closing(self._run()) as run:
            if restored:
                run.install(whole[0], restored)
            for end in sorted({*whole, len(self.prompt)}):
                if end > run.position:
                    start = run.position
                    self._prefill(run, end)
                    if self.table is not None and end in whole:
                        self._keep_parts(run, self.table, start)
            run.sample()
            run.feed(self.prompt.tokens(0, 1)[0])
            run.sample()

    def _run(self) -> HfRun:
        media = [self.vision.small] if self.vision and self.prompt.media else []
        run = HfRun(
            self.model,
            self.table,
            self.prompt,
            Sampling(),
            choose=self._keep,
            vision=self.vision,
            media=media,
        )
        for item in media:
            assert self.vision is not None
            # Encoded for each run anew: if the tower did not repeat itself, the restore would tell.
            run.supply(item.name, self.vision.encode(item))
        return run

    def _prefill(self, run: HfRun, end: int) -> None:
        start = run.position
        began = self.clock()
        run.prefill(end)
        self.rates.append((end - start) / max(self.clock() - began, 1e-6))

    def _keep_parts(self, run: HfRun, table: StateTable, start: int) -> None:
        end = run.position
        parts = run.cut(start, [group.name for group in table.groups])
        placed = [Placed(start, end, part) for part in parts]
        if start == 0:
            self.first_block = placed
        self.tensors += _tensors(placed)

    def _keep(
        self,
        logits: torch.Tensor,
        *,
        prompt_ids: Sequence[int],
        generated: Sequence[int],
        sampling: Sampling,
        position: int,
    ) -> Sampled:
        """Stand in for ``sampling.choose``."""
        dtype = str(logits.dtype).removeprefix("torch.")
        data = bytes(tensor_bytes(logits))
        self.tensors.append((f"logits at {position}", dtype, tuple(logits.shape), data))
        return Sampled(0)


def _changed_by_install(table: StateTable, placed: Sequence[Placed]) -> str | None:
    end = placed[0].end
    cache = table.install(end, placed, room=end)
    parts = table.cut(cache, 0, end, [group.name for group in table.groups])
    again = [Placed(0, end, part) for part in parts]
    return _difference(_tensors(placed), _tensors(again))


def _tensors(placed: Sequence[Placed]) -> list[_Tensor]:
    return [
        named
        for one in placed
        for named in _named(
            one.part.components, f"{one.part.group} %s of block [{one.start}, {one.end})"
        )
    ]


def _named(components: Sequence[Component], name: str) -> list[_Tensor]:
    return [(name % one.name, one.dtype, one.shape, one.data) for one in components]


def _difference(cold: Sequence[_Tensor], warm: Sequence[_Tensor]) -> str | None:
    for one, other in zip(cold, warm, strict=True):
        if one[:3] != other[:3] or bytes(one[3]) != bytes(other[3]):
            return other[0]
    return None
