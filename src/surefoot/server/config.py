"""What a server is given: settings, sources of randomness and time, and the backend behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from surefoot.identity import KeyId
from surefoot.scheduler import Turns
from surefoot.server.metrics import Metrics


class Backend(Protocol):
    """The model behind the server, which may still be loading."""

    @property
    def turns(self) -> Turns | None:
        """Where turns are submitted; None while the model is loading."""
        ...

    @property
    def context_tokens(self) -> int:
        """The most tokens of a prompt and its answer; meaningful once ``turns`` is not None."""
        ...

    @property
    def metrics(self) -> Metrics:
        """What ``/metrics`` shows; whoever runs the turns feeds it their receipts."""
        ...

    def status(self) -> dict[str, Any]:
        """Return what ``/v1/cache`` shows, quickly; called only when ``turns`` is not None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one client may send, and all of them together."""

    body_bytes: int = 16 * 2**20  # about 4 million tokens: more than any context
    messages: int = 4096
    requests: int = 256  # at work or waiting at once; each may hold a body


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What is served, to whom, and within which limits.

    ``hosts`` and ``origins`` are allowed besides the server's own. Without API keys nobody needs
    one. An answer's ``created`` is the wall clock's, or the server's own where none is given.
    """

    model: str
    created: int
    random_seed: Callable[[], int]  # 63 bits
    random_id: Callable[[], str]
    key_id: Callable[[str], KeyId]
    api_keys: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    limits: Limits = Limits()
    wall_clock: Callable[[], float] | None = None

    def now(self) -> int:
        """Return the time an answer is dated by, in seconds since 1970."""
        return self.created if self.wall_clock is None else int(self.wall_clock())
