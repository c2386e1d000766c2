"""One connection of a client: heads that dribble, bodies nobody reads, answers that are not read.

uvicorn times an idle connection alone, and any byte stops that clock. Here a head must be whole
within ``stall_s`` of the connection or of the last answer, and so must be what is left of a body
that was refused. An answer of which next to nothing can be sent for as long ends with its
connection, which cancels its turn. Where too many connections are open, the one that has asked for
nothing for the longest time makes place. All of this can go once uvicorn does it.
"""

import asyncio
import json
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from surefoot.errors import RequestError
from surefoot.server.limits import Limits
from surefoot.server.refusals import Late, error_body, row_of

PROGRESS_BYTES = 16 * 2**10  # that a client reads within ``stall_s``, unless there is less to read


class Connection(H11Protocol):
    """Speaks HTTP/1.1 with one client, for as long as that client does its part."""

    limits: ClassVar[Limits] = Limits()

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._waits: asyncio.TimerHandle | None = None  # for a head, or the rest of a body
        self._sends: asyncio.TimerHandle | None = None
        self._begun = False  # whether anything came since it waits
        self.waiting_since = 0.0

    @property
    def at_work(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head; an idle connection goes where there are too many."""
        super().connection_made(transport)
        self._wait()
        others = (one for one in self.connections if isinstance(one, Connection))
        # One that was closed in this turn of the loop is still listed, and makes place only once.
        still_open = [one for one in others if not one.transport.is_closing()]
        if len(still_open) > self.limits.connections:
            idle = [one for one in still_open if not one.at_work]
            min(idle, key=lambda one: one.waiting_since).end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self._stop_waiting()
        self._stop_sending()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; once a head is whole, its request is no longer waited for."""
        self._begun = True
        super().data_received(data)
        if self.at_work:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next head, and to see that the answer is read."""
        self._wait()
        super().on_response_complete()
        if self.at_work:  # a request that had been sent before its turn came
            self._stop_waiting()
        self._watch_sending()

    def pause_writing(self) -> None:
        """Begin to see that the answer is read."""
        super().pause_writing()
        self._watch_sending()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the shape of every other error."""
        self._refuse(RequestError("the request is not HTTP/1.1", code="invalid_http"))

    def end(self) -> None:
        """Close this connection now; an answer that is not sent yet is lost."""
        self.transport.abort()

    def _wait(self) -> None:
        self._stop_waiting()
        self._begun, self.waiting_since = False, self.loop.time()
        self._waits = self.loop.call_later(self.limits.stall_s, self._late)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _late(self) -> None:
        """Give up waiting; a client that had begun a head is told."""
        if self.transport.is_closing():
            return
        if self._begun and self.conn.their_state is h11.IDLE:
            self._refuse(Late(f"the head was not whole within {self.limits.stall_s:g} s"))
        else:
            self.transport.close()
            self._watch_sending()

    def _refuse(self, error: RequestError) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error_body(error, lambda: "")).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            head = h11.Response(status_code=row_of(error).status, headers=headers)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()
        self._watch_sending()

    def _watch_sending(self) -> None:
        """See that what is to be sent is read; call it where that may have begun."""
        self._stop_sending()
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            self._sends = self.loop.call_later(self.limits.stall_s, self._check_sending, unsent)

    def _stop_sending(self) -> None:
        if self._sends is not None:
            self._sends.cancel()
            self._sends = None

    def _check_sending(self, before: int) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent > before - PROGRESS_BYTES:
            self.end()
        else:
            self._watch_sending()

    def resume_writing(self) -> None:
        """Send on; what is left is read as well, or seen to at the next pause."""
        super().resume_writing()
        self._stop_sending()


def protocol_for(limits: Limits) -> type[asyncio.Protocol]:
    """Return what uvicorn's ``http`` setting is to be: connections within these limits."""

    class LimitedConnection(Connection):
        pass

    LimitedConnection.limits = limits
    return LimitedConnection
