"""What a server is given: settings, sources of randomness and time, and the backend behind it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from surefoot.identity import KeyId
from surefoot.scheduler import Turns
from surefoot.server.fetching import Fetcher
from surefoot.server.limits import Limits
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
    def takes_images(self) -> bool:
        """Whether the model sees; meaningful once ``turns`` is not None."""
        ...

    @property
    def metrics(self) -> Metrics:
        """What ``/metrics`` shows; whoever runs the turns feeds it their receipts."""
        ...

    def status(self) -> dict[str, Any]:
        """Return what ``/v1/cache`` shows, quickly; called only when ``turns`` is not None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What is served, to whom, and within which limits.

    ``hosts`` and ``origins`` are allowed besides the server's own. Without API keys nobody needs
    one; without a ``fetcher`` no image is fetched. An answer's ``created`` is the wall clock's, or
    the server's own where none is given.
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
    limits: Limits = field(default_factory=Limits)
    fetcher: Fetcher | None = None
    wall_clock: Callable[[], float] | None = None

    def now(self) -> int:
        """Return the time an answer is dated by, in seconds since 1970."""
        return self.created if self.wall_clock is None else int(self.wall_clock())
