"""One submitted turn: its events as they come, and the client that may leave at any moment.

The engine thread only hands an event to the loop, so a client that reads slowly delays nobody. A
client that leaves cancels its turn at once, whether or not anything is being sent to it.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Receive

from surefoot.scheduler import Done, Event, Failed, Ticket, TurnRequest, Turns


class ClientGone(Exception):
    """The client left; whatever is sent now reaches nobody."""


class RunningTurn:
    """A turn in flight; ``close`` it, whatever happens."""

    def __init__(self, ticket: Ticket, events: "asyncio.Queue[Event | None]") -> None:
        self._ticket = ticket
        self._events = events
        self._watch: asyncio.Task[None] | None = None

    async def next(self) -> Event:
        """Return the next event.

        Raises:
            ClientGone: the client left; the turn is already cancelled.
        """
        event = await self._events.get()
        if event is None:
            raise ClientGone
        return event

    async def rest(self) -> list[Event]:
        """Return all events to the last one."""
        events = [await self.next()]
        while not isinstance(events[-1], Done | Failed):
            events.append(await self.next())
        return events

    def watch(self, receive: Receive) -> None:
        """Notice a client that leaves; the request's body must have been read."""
        self._watch = asyncio.create_task(self._until_gone(receive))

    def close(self) -> None:
        """Cancel what is still running; nothing happens if the turn has ended."""
        self._ticket.cancel()
        if self._watch is not None:
            self._watch.cancel()

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._ticket.cancel()
        self._events.put_nowait(None)


def run(turns: Turns, request: TurnRequest, receive: Receive) -> RunningTurn:
    """Submit a turn and watch its client.

    Raises:
        CapacityError: it cannot be queued.
    """
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    deliver = into(asyncio.get_running_loop(), events.put_nowait)
    running = RunningTurn(turns.submit(request, deliver), events)
    running.watch(receive)
    return running


def into(loop: asyncio.AbstractEventLoop, put: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a ``deliver`` for the engine thread that never waits and never raises."""

    def deliver(event: Event) -> None:
        try:
            loop.call_soon_threadsafe(put, event)
        except RuntimeError:
            # The loop is closed: the server has stopped, and nobody waits for this event.
            assert loop.is_closed()

    return deliver
