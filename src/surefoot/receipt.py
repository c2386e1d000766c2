"""The account of one turn: what it reused, computed and refused, and why. Its numbers are the only
numbers: usage, metrics and log lines derive from it.

``restored + computed + unreached == prompt`` (I11) is asserted at construction, as is that every
restored token is named with its tier.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What the receipt accounts for."""

    TURN = "turn"
    IDLE = "idle"


class Finish(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


class Miss(StrEnum):
    """Why a restore did not stand at the limit."""

    COLD = "cold"  # nothing of this prompt is stored
    DIVERGED = "diverged"  # the stored prefix ends before the limit: other tokens, or none yet
    EVICTED = "evicted"  # parts that were stored are gone
    NO_SNAPSHOT = "no_snapshot"  # rows reach further than any kept recurrent snapshot
    TOO_SHORT = "too_short"  # the prompt has no boundary below its last token
    BYPASS = "bypass"  # the request asked not to read
    CORRUPT = "corrupt"  # a record failed verification
    QUARANTINED = "quarantined"  # a record is fenced
    DEADLINE = "deadline"  # loading took longer than computing would
    TIER_ERROR = "tier_error"  # a tier failed
    BUSY = "busy"  # the loaders' queue was full
    UNSUPPORTED = "unsupported"  # this model is served without a cache


@dataclass(frozen=True, slots=True)
class Media:
    """One media item of the prompt.

    ``feature_hit``: its features were stored, or the state that was made of them was, so that the
    vision tower did not run for it. An item that a cancelled turn never came to is none.
    """

    kind: str
    name: str
    tokens: int
    feature_hit: bool

    def to_json(self) -> dict[str, Any]:
        """Return the wire form."""
        return {
            "kind": self.kind,
            "name": self.name,
            "tokens": self.tokens,
            "feature_hit": self.feature_hit,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Milliseconds since the request was queued, or of one phase; None where it did not happen."""

    queue: float = 0.0
    restore: float = 0.0
    media: float = 0.0  # decoding images, and running the vision tower
    prefill: float = 0.0
    ttft: float | None = None
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one turn did; counts are in tokens, names are hex, None where it does not apply."""

    id: str
    kind: Kind
    model: str
    finish: Finish
    prompt_tokens: int
    restored_tokens: int
    computed_tokens: int
    unreached_tokens: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    boundary_tokens: int | None = None
    block_name: str | None = None
    state_tokens: int | None = None
    state_digest: str | None = None
    common_prefix_tokens: int | None = None
    diverged_at_token: int | None = None
    miss_reason: Miss | None = None
    exact: str = "bitwise"
    suspect: bool = False  # what the turn stood on was quarantined after its first token
    verified: bool | None = None
    decode: str = "alone"
    media: tuple[Media, ...] = ()
    committed_tokens: int = 0
    salted: bool = False
    timings_ms: Timings = Timings()

    def __post_init__(self) -> None:
        total = self.restored_tokens + self.computed_tokens + self.unreached_tokens
        assert total == self.prompt_tokens, self  # I11
        assert sum(self.sources.values()) == self.restored_tokens, self  # I11
        counts = (self.restored_tokens, self.computed_tokens, self.unreached_tokens)
        assert min(*counts, *self.sources.values()) >= 0, self
        if self.unreached_tokens:
            assert self.finish in (Finish.CANCELLED, Finish.ERROR), self

    def to_json(self) -> dict[str, Any]:
        """Return the wire form; every field is present."""
        timings = self.timings_ms
        return {
            "id": self.id,
            "kind": self.kind.value,
            "model": self.model,
            "finish": self.finish.value,
            "prompt_tokens": self.prompt_tokens,
            "restored_tokens": self.restored_tokens,
            "computed_tokens": self.computed_tokens,
            "unreached_tokens": self.unreached_tokens,
            "sources": dict(self.sources),
            "boundary_tokens": self.boundary_tokens,
            "block_name": self.block_name,
            "state_tokens": self.state_tokens,
            "state_digest": self.state_digest,
            "common_prefix_tokens": self.common_prefix_tokens,
            "diverged_at_token": self.diverged_at_token,
            "miss_reason": self.miss_reason.value if self.miss_reason else None,
            "exact": self.exact,
            "suspect": self.suspect,
            "verified": self.verified,
            "decode": self.decode,
            "media": [one.to_json() for one in self.media],
            "committed_tokens": self.committed_tokens,
            "salted": self.salted,
            "timings_ms": {
                "queue": timings.queue,
                "restore": timings.restore,
                "media": timings.media,
                "prefill": timings.prefill,
                "ttft": timings.ttft,
                "total": timings.total,
            },
        }
