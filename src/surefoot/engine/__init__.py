"""The engine's contract: prompt + parts -> tokens + new parts. One engine thread calls all of it.

``engine/hf`` keeps it on transformers; ``testing`` has a fake that needs no model, and
``EngineContract`` is the suite both must pass. An engine computes a prompt by the grid alone, batch
1: ``prefill`` takes exactly one block or the tail, whatever was restored before (I5).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from surefoot.identity import ModelName
from surefoot.prompt import MediaItem, MediaName, Prompt
from surefoot.state import Features, FeatureSchema, Group, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen; ranges are checked where a request is read.

    Presence and frequency penalties count the tokens generated so far (as in OpenAI's API);
    ``repetition_penalty`` sees the prompt as well (as in transformers).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # 0: off
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None  # None: no logprobs at all


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token; log-probabilities are of the unmodified logits, natural log, float32."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A part and the block ``[start, end)`` it belongs to."""

    start: int
    end: int
    part: Part


class Run(Protocol):
    """One sequence being computed; its buffers are reachable from nowhere else."""

    @property
    def position(self) -> int:
        """Tokens consumed so far: restored, prefilled and fed."""
        ...

    def install(self, boundary: int, parts: Sequence[Placed]) -> None:
        """Stand at ``boundary`` tokens; only at position 0, all or nothing.

        Copies out of ``parts``, fills buffers that no sequence can see and hands them over in one
        step. Every length, counter and flag is derived from ``boundary``, never read from a part.

        Raises:
            ValueError: a part does not fit its group's schema; the run is untouched.
        """
        ...

    def supply(self, media: MediaName, features: Features) -> None:
        """Hand over an item's features, before the first block that needs them; only copied from.

        Raises:
            ValueError: they do not fit the engine's schema; the run is untouched.
        """
        ...

    def prefill(self, end: int) -> None:
        """Consume prompt tokens ``[position, end)`` in one pass: a whole block or the tail.

        Every media item with a token in there must have been supplied.
        """
        ...

    def cut(self, start: int, groups: Collection[str]) -> tuple[Part, ...]:
        """Copy out the parts of the block ``[start, position)`` that was just prefilled."""
        ...

    def sample(self) -> Sampled:
        """Choose the next token from the last logits; the same call gives the same token."""
        ...

    def feed(self, token: int) -> None:
        """Consume one generated token."""
        ...

    def close(self) -> None:
        """Free the buffers; the run is unusable afterwards."""
        ...


class Engine(Protocol):
    """A loaded model that starts runs; its properties are fixed for the life of the process."""

    @property
    def model(self) -> ModelName:
        """The name of the weights and of what this process computes with them."""
        ...

    @property
    def ingredients(self) -> Mapping[str, str]:
        """What the model's name was made of, as text to keep beside it; digests are hex.

        Two models that should be one differ in at least one of them, and it says which.
        """
        ...

    @property
    def groups(self) -> tuple[Group, ...]:
        """The model's state groups; empty when it is served without a cache."""
        ...

    @property
    def block_tokens(self) -> int:
        """The grid's step, in tokens."""
        ...

    @property
    def atomic_spans(self) -> bool:
        """Whether media spans must not be cut by the grid."""
        ...

    @property
    def context_tokens(self) -> int:
        """The most tokens a sequence may hold, prompt and answer together."""
        ...

    @property
    def unsupported(self) -> str | None:
        """Why this model is served without a cache; None when it is served with one."""
        ...

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def prefill_tokens_per_s(self) -> float:
        """Measured at start-up; a restore may take no longer than computing would."""
        ...

    @property
    def features(self) -> FeatureSchema | None:
        """What the vision tower makes of an item; None for a model that takes no media."""
        ...

    def encode(self, item: MediaItem) -> Features:
        """Run the vision tower on one item, alone; the result is owned by the caller.

        Raises:
            EngineError: the tower failed.
        """
        ...

    def begin(self, prompt: Prompt, sampling: Sampling, media: Sequence[MediaItem] = ()) -> Run:
        """Start a sequence at position 0; nothing is computed yet.

        Args:
            prompt: tokens and media spans.
            sampling: how tokens are chosen.
            media: the prompt's items, one per span and in their order (an item twice, if it is
                there twice). More items than spans are those of a longer prompt that this one
                begins; its last span may be cut short.
        """
        ...


__all__ = ["Engine", "Placed", "Run", "Sampled", "Sampling"]
