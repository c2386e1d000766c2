"""Many turns, one engine thread; the contract comes first and the body follows."""

from collections.abc import Callable
from typing import Any, Protocol

from surefoot.engine import Sampling
from surefoot.turn import CacheMode, Delta, Done, Event, Failed, TokenText, TurnRequest


class Ticket(Protocol):
    """A queued or running turn."""

    def cancel(self) -> None:
        """Stop the turn at the end of its current unit; callable from any thread, idempotent."""
        ...


class Turns(Protocol):
    """What the server needs of a scheduler."""

    def submit(self, request: TurnRequest, deliver: Callable[[Event], None]) -> Ticket:
        """Queue a turn; ``deliver`` is called on the engine thread: Deltas, then Done or Failed.

        Raises:
            CapacityError: the queue is full.
        """
        ...

    def status(self) -> dict[str, Any]:
        """Return counts a person can wait on: ``running``, ``queued``, ``idle_work``."""
        ...


__all__ = [
    "CacheMode",
    "Delta",
    "Done",
    "Event",
    "Failed",
    "Sampling",
    "Ticket",
    "TokenText",
    "TurnRequest",
    "Turns",
]
