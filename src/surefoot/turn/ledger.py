"""A turn's running account, and what every turn stands on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from surefoot.cache import Cache, Plan, Restored
from surefoot.chat import Chat
from surefoot.engine import Engine
from surefoot.identity import Block, FeatureName
from surefoot.prompt import MediaItem, MediaName, MediaSpan
from surefoot.receipt import Finish, Kind, Media, Miss, Receipt, Timings
from surefoot.turn.request import TurnRequest


@dataclass(frozen=True, slots=True)
class Serving:
    """What every turn stands on; fixed for the life of the process."""

    engine: Engine
    chat: Chat
    cache: Cache
    clock: Callable[[], float]  # monotonic, seconds
    restore_floor_s: float  # a restore may always take this long, however fast computing is


@dataclass(slots=True)
class Ledger:
    """What a turn did so far; ``seal`` makes the receipt, whenever the turn ends (I11)."""

    request: TurnRequest
    serving: Serving
    queued_at: float
    kind: Kind = Kind.TURN
    prompt_tokens: int | None = None
    position: int = 0
    boundary: Block | None = None
    sources: Mapping[str, int] = field(default_factory=dict)
    plan: Plan | None = None
    restored: Restored | None = None
    anew: bool = False  # whether it was begun anew, since what it stood on was quarantined
    suspect: bool = False  # whether it was quarantined when tokens were out already
    miss: Miss | None = None
    verified: bool | None = None
    state_tokens: int | None = None
    state_digest: str | None = None
    committed_tokens: int = 0
    committed: list[tuple[str, int, bytes]] = field(default_factory=list)  # group, block, content
    ids: bytes = b""  # the prompt's tokens
    completion_tokens: int = 0
    text: str = ""
    media: list[MediaItem] = field(default_factory=list)  # in the request's order
    spans: tuple[MediaSpan, ...] = ()
    features: Mapping[MediaName, FeatureName] = field(default_factory=dict)
    supplied: dict[MediaName, bool] = field(default_factory=dict)  # whether they were stored
    started_at: float | None = None
    waited_s: float = 0.0  # for memory, since it was started
    restore_s: float = 0.0
    prefill_s: float = 0.0
    media_s: float = 0.0  # decoding images and running the vision tower
    first_token_at: float | None = None

    @property
    def reads(self) -> bool:
        """Whether stored state may be reused."""
        return self.request.mode.reads and not self.anew

    def begin_anew(self) -> None:
        """Forget what was reused, and reuse nothing from here on."""
        self.anew = True
        self.position = 0
        self.boundary = self.restored = self.verified = None
        self.sources = {}
        self.supplied.clear()

    def seal(self, finish: Finish) -> Receipt | None:
        """Return the receipt as of now; None if the turn never had a prompt."""
        if self.prompt_tokens is None:
            return None
        restored = self.boundary.end if self.boundary else 0
        return Receipt(
            id=self.request.id,
            kind=self.kind,
            model=self.serving.engine.model.hex(),
            finish=finish,
            prompt_tokens=self.prompt_tokens,
            restored_tokens=restored,
            computed_tokens=self.position - restored,
            unreached_tokens=self.prompt_tokens - self.position,
            sources=dict(self.sources),
            boundary_tokens=restored,
            block_name=self.boundary.name.hex() if self.boundary else None,
            state_tokens=self.state_tokens,
            state_digest=self.state_digest,
            common_prefix_tokens=self.plan.common_prefix_tokens if self.plan else None,
            diverged_at_token=self.plan.diverged_at_token if self.plan else None,
            miss_reason=self.miss,
            exact=self.serving.cache.exact,
            suspect=self.suspect,
            verified=self.verified,
            media=self._media(restored),
            committed_tokens=self.committed_tokens,
            salted=self.request.key is not None or self.request.cache_salt is not None,
            timings_ms=self._timings(),
        )

    def _media(self, restored: int) -> tuple[Media, ...]:
        """Account for each span; a hit is one for which the tower did not run, nor has to."""
        return tuple(
            Media(
                item.kind,
                item.name.hex(),
                item.tokens,
                self.supplied.get(item.name, span.end <= restored),
            )
            for span, item in zip(self.spans, self.media, strict=False)
        )

    def _timings(self) -> Timings:
        now = self.serving.clock()
        started = now if self.started_at is None else self.started_at
        first = self.first_token_at
        return Timings(
            queue=_ms(started - self.queued_at + self.waited_s),
            restore=_ms(self.restore_s),
            media=_ms(self.media_s),
            prefill=_ms(self.prefill_s),
            ttft=None if first is None else _ms(first - self.queued_at),
            total=_ms(now - self.queued_at),
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
