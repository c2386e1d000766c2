"""What this process computes: a digest of real state and logits, and a check that restores it.

Version strings do not show everything that changes bits, so a fixed prompt of two blocks and a tail
is computed at start-up and its digest becomes part of the model's name. Then the same run restores
its own first block from cut parts and must reproduce the rest bit for bit (I5).
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch

from surefoot.engine import Placed, Sampled, Sampling
from surefoot.engine.hf.run import HfRun
from surefoot.engine.hf.table import StateTable
from surefoot.engine.hf.weights import tensor_bytes
from surefoot.identity import Buffer, tensors_digest
from surefoot.prompt import Prompt, grid

TAIL_TOKENS = 17
_SPREAD = 2_654_435_761  # a prime near 2**32 / golden ratio: consecutive ids fall far apart

_Tensor = tuple[str, str, tuple[int, ...], Buffer]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the start-up run found; ``mismatch`` says what a restore did not reproduce."""

    digest: bytes
    mismatch: str | None
    prefill_tokens_per_s: float


def fingerprint(
    model: Any,
    table: StateTable | None,
    *,
    block_tokens: int,
    context_tokens: int,
    clock: Callable[[], float],
) -> Fingerprint:
    """Compute the fixed prompt, cold and (where there is a table) restored.

    Args:
        model: a causal language model, in evaluation mode.
        table: how its state is cut; None if it is served without a cache.
        block_tokens: the grid's step.
        context_tokens: the prompt is cut short to fit.
        clock: seconds, monotonic.
    """
    prompt = _prompt(model, min(2 * block_tokens + TAIL_TOKENS, context_tokens - 1))
    cold = _Trace(model, table, prompt, block_tokens, clock)
    cold.compute(restored=())
    mismatch = None
    if table is not None:
        warm = _Trace(model, table, prompt, block_tokens, clock)
        warm.compute(restored=cold.first_block)
        mismatch = _difference(cold.tensors[-len(warm.tensors) :], warm.tensors)
        # State may fade within a block; what was installed must come out again as well.
        mismatch = mismatch or _changed_by_install(table, cold.first_block)
    return Fingerprint(tensors_digest(cold.tensors), mismatch, max(cold.rates))


def _prompt(model: Any, length: int) -> Prompt:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return Prompt.of(place * _SPREAD % vocabulary for place in range(1, length + 1))


@dataclass(slots=True)
class _Trace:
    """One run over the prompt that keeps every bit it saw."""

    model: Any
    table: StateTable | None
    prompt: Prompt
    block_tokens: int
    clock: Callable[[], float]
    tensors: list[_Tensor] = field(default_factory=list)
    first_block: list[Placed] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def compute(self, *, restored: Sequence[Placed]) -> None:
        """Prefill by the grid, the first block restored or not, and decode one token."""
        whole = grid(self.prompt, self.block_tokens)
        run = HfRun(self.model, self.table, self.prompt, Sampling(), choose=self._keep)
        with closing(run):
            if restored:
                run.install(whole[0], restored)
            for end in sorted({*whole, len(self.prompt)}):
                if end > run.position:
                    self._prefill(run, end)
                    if self.table is not None and end in whole:
                        self._keep_parts(run, self.table, end)
            run.sample()
            run.feed(self.prompt.tokens(0, 1)[0])
            run.sample()

    def _prefill(self, run: HfRun, end: int) -> None:
        start = run.position
        began = self.clock()
        run.prefill(end)
        self.rates.append((end - start) / max(self.clock() - began, 1e-6))

    def _keep_parts(self, run: HfRun, table: StateTable, end: int) -> None:
        start = end - self.block_tokens
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
        (
            f"{one.part.group} {component.name} of block [{one.start}, {one.end})",
            component.dtype,
            component.shape,
            component.data,
        )
        for one in placed
        for component in one.part.components
    ]


def _difference(cold: Sequence[_Tensor], warm: Sequence[_Tensor]) -> str | None:
    for one, other in zip(cold, warm, strict=True):
        if one[:3] != other[:3] or bytes(one[3]) != bytes(other[3]):
            return other[0]
    return None
