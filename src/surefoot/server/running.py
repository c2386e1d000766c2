"""One submitted turn: its events as they come, and the client that may leave at any moment.

The engine thread only hands an event to the loop, so a client that reads slowly delays nobody. A
client that leaves cancels its turn at once, whether or not anything is being sent to it; one that
falls too far behind does so as well, since what waits for it is memory.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Receive

from surefoot.errors import CapacityError
from surefoot.scheduler import Delta, Done, Event, Failed, Ticket, TurnRequest, Turns

# Events that may wait for a client to read on: minutes of most answers, tens of MB at the most.
MOST_BEHIND = 4096


class ClientGone(Exception):
    """The client left; whatever is sent now reaches nobody."""


class RunningTurn:
    """A turn in flight; ``close`` it, whatever happens."""

    def __init__(self, turns: Turns, request: TurnRequest, most_behind: int | None) -> None:
        self._most_behind = most_behind
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._left_behind = False
        self._watch: asyncio.Task[None] | None = None
        # An event is taken on the loop, so none before this has returned.
        deliver = into(asyncio.get_running_loop(), self.put)
        self._ticket: Ticket = turns.submit(request, deliver)

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

    def put(self, event: Event) -> None:
        """Take an event from the engine; on the event loop."""
        if self._left_behind:
            return
        waiting, most = self._events.qsize(), self._most_behind
        if most is not None and waiting >= most and isinstance(event, Delta):
            self._left_behind = True
            self._ticket.cancel()
            event = Failed(CapacityError(f"the client fell {most} events behind its answer"), None)
        self._events.put_nowait(event)

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


def run(
    turns: Turns, request: TurnRequest, receive: Receive, *, most_behind: int | None = None
) -> RunningTurn:
    """Submit a turn and watch its client.

    Args:
        turns: where to submit it.
        request: the turn.
        receive: tells that the client left.
        most_behind: events that may wait for the client; the next one cancels the turn.

    Raises:
        CapacityError: it cannot be queued.
    """
    running = RunningTurn(turns, request, most_behind)
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
