"""The outermost layer: foreign hosts, too many requests or bytes, dribbled bodies, and bugs.

A request's bytes are held from their arrival to the end of its answer, in ``scope[SHARE]``.
A bug is answered once, here, with a number that the log has too. Plain ASGI, so that nothing stands
between a route and the client it watches.
"""

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.errors import SurefootError
from surefoot.server.access import Access
from surefoot.server.limits import Limits
from surefoot.server.refusals import error_body, refuse
from surefoot.server.room import Room, Share
from surefoot.server.upload import Upload

SHARE = "surefoot.share"  # what a request holds of the room, in its scope


class Edge:
    """Wraps the app."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        limits: Limits,
        new_id: Callable[[], str],
    ) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._room = Room(limits, lambda: asyncio.get_running_loop().time())
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        share: Share | None = None
        try:
            share = scope[SHARE] = self._admit(scope)
            await self._app(scope, Upload(receive, share, self._limits).receive, tracked)
        except SurefootError as error:
            await refuse(error, self._new_id)(scope, receive, send)
        except Exception as error:  # noqa: BLE001  the outermost handler
            if started:
                error_body(error, self._new_id)  # logged; the answer that began just ends
            else:
                await refuse(error, self._new_id)(scope, receive, send)
        finally:
            if share is not None:
                share.close()

    def _admit(self, scope: Scope) -> Share:
        headers = Headers(scope=scope)
        self._access.check_site(headers)
        # Whoever watches over the server must be let in when it is full.
        if not scope["path"].startswith("/v1/"):
            return self._room.enter(None, watching=True)
        return self._room.enter(self._access.client(headers, scope.get("client")))
