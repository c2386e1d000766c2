"""What goes into a turn and what comes out of it, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from surefoot.chat.request import Input
from surefoot.engine import Engine, Sampling
from surefoot.identity import KeyId
from surefoot.prompt import MediaItem
from surefoot.receipt import Receipt
from surefoot.state import state_bytes


class CacheMode(StrEnum):
    """What a request lets the cache do: the values of the header ``x-surefoot-cache``."""

    USE = "use"
    READ = "read"
    WRITE = "write"
    BYPASS = "bypass"

    @property
    def reads(self) -> bool:
        """Whether stored state may be restored."""
        return self in (CacheMode.USE, CacheMode.READ)

    @property
    def writes(self) -> bool:
        """Whether computed state may be committed."""
        return self in (CacheMode.USE, CacheMode.WRITE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One request, checked on the wire; ``id`` becomes the receipt's."""

    id: str
    input: Input
    sampling: Sampling
    max_tokens: int | None = None  # None: to the edge of the model's context
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    mode: CacheMode = CacheMode.USE
    key: KeyId | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class TokenText:
    """One generated token as the API shows it: its text, its bytes and log-probabilities."""

    token: int
    text: str
    raw: bytes
    logprob: float | None = None
    top: tuple[tuple[str, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is now certain (stop strings are held back).

    ``tokens`` are those chosen since the last delta; given only when log-probabilities were asked.
    """

    text: str
    tokens: tuple[TokenText, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a turn; always the last event, also of a cancelled one."""

    receipt: Receipt
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a turn that could not be answered; ``receipt`` is None if no prompt was made."""

    error: Exception
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a turn will hold at most; nothing of it is allocated until the turn is resumed."""

    nbytes: int

    @classmethod
    def of(cls, engine: Engine, tokens: int, media: Sequence[MediaItem] = ()) -> "Needs":
        """Return what a sequence holds that grows to ``tokens``: state, and features of ``media``.

        A model without groups is served without a cache, on layers whose size nobody states: 0.
        """
        nbytes = state_bytes(engine.groups, tokens, engine.block_tokens)
        if engine.features is not None:
            shown = {item.name: item.tokens for item in media}
            nbytes += sum(map(engine.features.feature_bytes, shown.values()))
        return cls(nbytes)


Event: TypeAlias = Delta | Done | Failed
Unit: TypeAlias = Event | Needs | None  # None: a unit of work that has nothing to show
