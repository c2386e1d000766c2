"""A request's body as it arrives: counted, and not waited for without end.

Three things end the wait: nothing comes for a while, the whole takes too long, or the room that it
holds is needed for others while it dribbles. What comes after the body is the client's leaving, and
for that anybody may wait as long as the answer takes.
"""

import asyncio

from starlette.types import Message, Receive

from surefoot.errors import CapacityError
from surefoot.server.limits import Limits
from surefoot.server.refusals import Late
from surefoot.server.room import Share


class Upload:
    """Stands between a route and its client's ``receive``."""

    def __init__(self, receive: Receive, share: Share, limits: Limits) -> None:
        self._receive = receive
        self._share = share
        self._limits = limits
        self._ends_at: float | None = None  # when the body must be whole; None before it is awaited
        self._whole = False

    async def receive(self) -> Message:
        """Return the next ASGI message; its bytes are held in the request's share.

        Raises:
            Late: the body came too slowly.
            CapacityError: there is no room for it.
        """
        if self._whole:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._ends_at is None:
            self._ends_at = now + self._limits.body_s
        message = await self._within(now, min(now + self._limits.stall_s, self._ends_at))
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        self._share.take(len(message.get("body", b"")))
        return message

    async def _within(self, now: float, ends_at: float) -> Message:
        share, limits = self._share, self._limits
        try:
            async with asyncio.timeout_at(ends_at) as timeout:

                def stop() -> None:
                    if not timeout.expired():
                        timeout.reschedule(now)

                share.on_dismiss, share.arriving = stop, True
                return await self._receive()
        except TimeoutError:
            if share.dismissed:
                raise CapacityError(
                    "the body came slowly, and its room was needed for others; send it again later"
                ) from None
            if ends_at == self._ends_at:
                raise Late(f"the body was not whole within {limits.body_s:g} s") from None
            raise Late(f"nothing more of the body came for {limits.stall_s:g} s") from None
        finally:
            share.arriving = False
