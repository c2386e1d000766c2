"""The outermost layer: foreign hosts, too many requests or bytes at once, and bugs.

A request's bytes are held from their arrival to the end of its answer, in ``scope[SHARE]``.
A bug is answered once, here, with a number that the log has too. Plain ASGI, so that nothing stands
between a route and the client it watches.
"""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.errors import CapacityError, SurefootError
from surefoot.server.access import Access
from surefoot.server.refusals import error_body, refuse
from surefoot.server.room import Room

SHARE = "surefoot.share"  # what a request holds of the room, in its scope


class Edge:
    """Wraps the app."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        requests: int,
        room: Room,
        new_id: Callable[[], str],
    ) -> None:
        self._app = app
        self._access = access
        self._requests = requests
        self._room = room
        self._new_id = new_id
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._open += 1
        started = False
        share = scope[SHARE] = self._room.share()

        async def held() -> Message:
            message = await receive()
            share.take(len(message.get("body", b"")))
            return message

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, held, tracked)
        except SurefootError as error:
            await refuse(error, self._new_id)(scope, receive, send)
        except Exception as error:  # noqa: BLE001  the outermost handler
            if started:
                error_body(error, self._new_id)  # logged; the answer that began just ends
            else:
                await refuse(error, self._new_id)(scope, receive, send)
        finally:
            self._open -= 1
            share.close()

    def _admit(self, scope: Scope) -> None:
        self._access.check_site(Headers(scope=scope))
        # Whoever watches over the server must be let in when it is full.
        if self._open > self._requests and scope["path"].startswith("/v1/"):
            raise CapacityError(f"this server answers at most {self._requests} requests at once")
