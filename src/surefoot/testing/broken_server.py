"""A server that is wrong on purpose: what ``surefoot probe`` must see through, over HTTP.

``Front`` answers requests in OpenAI's shape out of a ``BrokenEngine``. Two thin wrappers carry it:
a transport for httpx, without sockets and in virtual time, and an ASGI app, which
``python -m surefoot.testing.broken_server --fault NAME --port 0`` serves. Both stream chunk by
chunk; a stream that is closed early cancels its turn there.

``POST /restart`` starts the engine anew over the same disk, so that a restart command can.
"""

import argparse
import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import uvicorn

from surefoot.testing.broken_engine import BrokenEngine, NeverAnsweredError, PassTime
from surefoot.testing.broken_faults import Behaviour, Fault
from surefoot.testing.broken_wire import (
    MODEL,
    RefusedError,
    as_json,
    chunks,
    plain_body,
    read_ask,
)

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
Reply = tuple[int, dict[str, str], AsyncIterator[bytes]]
Message = MutableMapping[str, Any]


class VirtualClock:
    """Seconds that pass when somebody waits, and only then."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return the seconds that have passed."""
        return self._now

    async def pass_time(self, seconds: float) -> None:
        """Let so many seconds pass, and every other task have a turn."""
        self._now += seconds
        await asyncio.sleep(0)


class Front:
    """Answers HTTP requests; knows no socket."""

    def __init__(
        self,
        fault: Fault | None = None,
        behaviour: Behaviour | None = None,
        *,
        pass_time: PassTime = asyncio.sleep,
    ) -> None:
        self.behaviour = behaviour or Behaviour()
        self._engine = BrokenEngine(self.behaviour, fault, pass_time)
        self._number = 0

    def restart(self) -> None:
        """Drop what RAM holds and keep the disk."""
        self._engine.restart()

    async def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """Return status, headers and the body, piece by piece; header names are in lower case.

        Raises:
            NeverAnsweredError: nothing ever comes; the body raises it too.
        """
        try:
            return await self._routed(method, path, headers, body)
        except RefusedError as refused:
            return refused.status, dict(JSON), _once(as_json(refused.shown))

    async def _routed(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        key = self._key(headers)
        if (method, path) == ("POST", "/restart"):
            self.restart()
            return 200, dict(JSON), _once(b"{}")
        if (method, path) == ("GET", "/v1/models"):
            served = {"id": MODEL, "object": "model", "owned_by": "testing"}
            shown = {"object": "list", "data": [served | {"max_model_len": self.behaviour.context}]}
            return 200, dict(JSON), _once(as_json(shown))
        if (method, path) != ("POST", "/v1/chat/completions"):
            raise RefusedError(404, f"{method} {path} is not known", None)
        self._number += 1
        ask = read_ask(body, self.behaviour, key=key, number=self._number)
        said = self._engine.answer(ask.turn)
        if ask.stream:
            return 200, dict(EVENTS), chunks(ask, said, self.behaviour)
        whole = [one async for one in said]
        return 200, dict(JSON), _once(plain_body(ask, whole, self.behaviour))

    def _key(self, headers: dict[str, str]) -> str | None:
        keys = self.behaviour.api_keys
        if not keys:
            return None
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if key not in keys:
            raise RefusedError(401, "the API key is not known", None)
        return key if self.behaviour.keys_apart else None


class BrokenTransport(httpx.AsyncBaseTransport):
    """Carries httpx's requests to a ``Front``, in its time; what never comes is a read timeout."""

    def __init__(self, front: Front, pass_time: PassTime) -> None:
        self._front = front
        self._pass_time = pass_time

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; the response streams."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.aread()
        try:
            status, shown, pieces = await self._front.answer(
                request.method, request.url.path, headers, body
            )
        except NeverAnsweredError:
            raise await self._timed_out(request) from None
        stream = _Stream(pieces, lambda: self._timed_out(request))
        return httpx.Response(status, headers=shown, stream=stream, request=request)

    async def _timed_out(self, request: httpx.Request) -> httpx.ReadTimeout:
        patience: float | None = request.extensions.get("timeout", {}).get("read")
        assert patience is not None, "without a timeout this client would wait for ever"
        await self._pass_time(patience)
        return httpx.ReadTimeout("nothing came", request=request)


class _Stream(httpx.AsyncByteStream):
    """A body that comes piece by piece."""

    def __init__(
        self, pieces: AsyncIterator[bytes], timed_out: Callable[[], Awaitable[httpx.ReadTimeout]]
    ) -> None:
        self._pieces = pieces
        self._timed_out = timed_out

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                yield piece
        except NeverAnsweredError:
            raise await self._timed_out() from None

    async def aclose(self) -> None:
        await _close(self._pieces)


class BrokenApp:
    """The ASGI app over a ``Front``."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer one request; a client that hangs up cancels its turn."""
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        answering = asyncio.ensure_future(
            self._send(scope["method"], scope["path"], headers, body, send)
        )
        gone = asyncio.ensure_future(_gone(receive))
        await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (answering, gone):
            task.cancel()
        await asyncio.gather(answering, gone, return_exceptions=True)

    async def _send(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        try:
            status, shown, pieces = await self._front.answer(method, path, headers, body)
            named = [(name.encode(), value.encode()) for name, value in shown.items()]
            await send({"type": "http.response.start", "status": status, "headers": named})
            try:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            finally:
                await _close(pieces)
            await send({"type": "http.response.body", "body": b""})
        except NeverAnsweredError:
            await asyncio.Event().wait()


async def _gone(receive: Callable[[], Awaitable[Message]]) -> None:
    """Return when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _close(pieces: AsyncIterator[bytes]) -> None:
    """Close an asynchronous generator, and so whatever it was reading."""
    closing: Any = pieces
    await closing.aclose()


def listening(port: int) -> socket.socket:
    """Return a socket of this machine alone that may be connected to; any free port for 0."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    return sock


def server_of(front: Front) -> uvicorn.Server:
    """Return a web server over a ``Front``; give it a ``listening`` socket to serve."""
    return uvicorn.Server(uvicorn.Config(BrokenApp(front), log_level="warning", lifespan="off"))


def main(argv: list[str] | None = None) -> None:
    """Serve until stopped; the first line printed is the base URL."""
    reader = argparse.ArgumentParser(description=__doc__)
    faults = {fault.value: fault for fault in Fault}
    reader.add_argument("--fault", choices=faults)
    reader.add_argument("--port", type=int, default=0)
    reader.add_argument("--block-tokens", type=int, default=16)
    given = reader.parse_args(argv)
    front = Front(faults.get(given.fault), Behaviour(block_tokens=given.block_tokens))
    sock = listening(given.port)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}/v1", flush=True)
    server_of(front).run([sock])


if __name__ == "__main__":
    main()
