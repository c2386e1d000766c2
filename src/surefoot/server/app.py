"""The routes: read, submit, show."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from surefoot.chat.request import ChatInput
from surefoot.errors import CapacityError, RequestError, SurefootError, TooLarge
from surefoot.identity import KeyId
from surefoot.scheduler import Delta, Done, Event, Failed, Turns
from surefoot.server.access import Access
from surefoot.server.config import Backend, ServerConfig
from surefoot.server.edge import SHARE, Edge
from surefoot.server.images import Place, with_files
from surefoot.server.openapi import describe
from surefoot.server.reading import CACHE_HEADER, Asked, check_model, read_chat, read_text
from surefoot.server.refusals import NoSuchPage, WrongMethod, error_body, refuse
from surefoot.server.room import Share
from surefoot.server.running import MOST_BEHIND, ClientGone, RunningTurn, run
from surefoot.server.shapes import ChatShape, Shape, TextShape, unfinished
from surefoot.server.values import parse_object

LOADING_RETRY_S = 2
CLIENT_GONE = 499  # never seen by anybody; nginx's number for it
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

Read = Callable[[Mapping[str, Any], Headers, ServerConfig, KeyId | None], Asked]


def create_app(config: ServerConfig, backend: Backend) -> FastAPI:
    """Return the server's ASGI app; the backend may still be loading."""
    # A redirect would be a status that no page has, to a place that the Host header names.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    access = Access(config)
    routes = _Routes(config, backend, access)
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_api_route("/openapi.json", routes.description, methods=["GET"])
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/models/{model:path}", routes.model, methods=["GET"])
    app.add_api_route("/v1/cache", routes.cache, methods=["GET"])
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"])
    app.add_api_route("/v1/completions", routes.completions, methods=["POST"])
    app.add_exception_handler(SurefootError, routes.refused)
    app.add_exception_handler(HTTPException, routes.not_routed)
    if config.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", CACHE_HEADER],
        )
    app.add_middleware(
        Edge,
        access=access,
        limits=config.limits,
        new_id=config.random_id,
    )
    return app


class _Routes:
    """One method per path."""

    def __init__(self, config: ServerConfig, backend: Backend, access: Access) -> None:
        self._config = config
        self._backend = backend
        self._access = access

    async def health(self) -> Response:
        """Say whether the model can answer."""
        self._turns()
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Show the counters; with keys, they need one."""
        self._access.check_key(request.headers)
        loading = self._backend.turns is None
        text = self._backend.metrics.text(None if loading else self._backend.status())
        return Response(text, media_type=PROMETHEUS)

    async def description(self, request: Request) -> Response:
        """Describe all of this; with keys, it needs one."""
        self._access.check_key(request.headers)
        return JSONResponse(describe(self._config))

    async def models(self, request: Request) -> Response:
        """List the one model."""
        self._access.check_key(request.headers)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, model: str, request: Request) -> Response:
        """Show the one model."""
        self._access.check_key(request.headers)
        check_model(model, self._config)
        return JSONResponse(self._model())

    async def cache(self, request: Request) -> Response:
        """Show the backend's status, to an admin."""
        self._access.check_admin(request.headers)
        self._turns()
        return JSONResponse(self._backend.status())

    async def chat(self, request: Request) -> Response:
        """Answer a chat."""
        takes_images = self._backend.takes_images
        limits = self._config.limits
        most = limits.chat_body_bytes if takes_images else limits.body_bytes
        read = partial(read_chat, takes_images=takes_images)
        return await self._answer(request, read, ChatShape, most)

    async def completions(self, request: Request) -> Response:
        """Continue a text."""
        return await self._answer(request, read_text, TextShape, self._config.limits.body_bytes)

    async def refused(self, request: Request, error: Exception) -> Response:
        """Answer an error raised on purpose."""
        return refuse(error, self._config.random_id)

    async def not_routed(self, request: Request, error: Exception) -> Response:
        """Answer a path or a method that is not there, in the shape of every other error."""
        assert isinstance(error, HTTPException)
        place = f"{request.method} {request.url.path[:100]}"
        wrong = {404: NoSuchPage, 405: WrongMethod}.get(error.status_code, RequestError)
        hint = "; try GET /v1/models or POST /v1/chat/completions" if wrong is NoSuchPage else ""
        response = refuse(wrong(f"{place}: {error.detail}{hint}"), self._config.random_id)
        response.headers.update(error.headers or {})  # a 405 says what is allowed
        return response

    async def _answer(
        self, request: Request, read: Read, shape_of: type[Shape], most: int
    ) -> Response:
        api_key = self._access.check_key(request.headers)
        turns = self._turns()
        # The secret that names keys is the store's, which is open once there are turns.
        key = None if api_key is None else self._config.key_id(api_key)
        try:
            asked = await self._images(await self._read(request, read, key, most), request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        shape = shape_of(asked, self._config.model, self._config.now())
        behind = MOST_BEHIND if asked.stream else None
        running = run(turns, asked.turn, request.receive, most_behind=behind)
        response: Response = Response(status_code=CLIENT_GONE)
        try:
            if asked.stream:
                response = await self._stream(running, shape)
            else:
                response = self._plain(await running.rest(), shape)
        except ClientGone:
            return response
        finally:
            if not isinstance(response, _Stream):
                running.close()
        return response

    async def _read(self, request: Request, read: Read, key: KeyId | None, most: int) -> Asked:
        """Read a body of at most ``most`` bytes; nothing of it but what is returned stays held."""
        body = await _body(request, most)
        asked = read(parse_object(body), request.headers, self._config, key)
        image_characters = 0 if asked.images is None else asked.images.characters
        if len(body) - image_characters > self._config.limits.body_bytes:
            raise _too_large(self._config.limits.body_bytes, "without its images")
        return asked

    async def _images(self, asked: Asked, request: Request) -> Asked:
        """Fetch what is to be fetched."""
        images, fetcher, chat = asked.images, self._config.fetcher, asked.turn.input
        if images is None or not images.remote:
            return asked
        assert fetcher is not None
        assert isinstance(chat, ChatInput)
        share: Share = request.scope[SHARE]

        def take(place: Place, nbytes: int) -> None:
            images.take(place, nbytes)
            share.take(nbytes)

        most = self._config.limits.image_bytes
        files = await fetcher.fetch(images.remote, most_bytes=most, take=take)
        return replace(asked, turn=replace(asked.turn, input=with_files(chat, files)))

    def _plain(self, events: list[Event], shape: Shape) -> Response:
        last = events[-1]
        if isinstance(last, Failed):
            return refuse(last.error, self._config.random_id, last.receipt)
        assert isinstance(last, Done)
        error = unfinished(last)
        if error is not None:
            return refuse(error, self._config.random_id, last.receipt)
        return JSONResponse(shape.body((one for one in events if isinstance(one, Delta)), last))

    async def _stream(self, running: RunningTurn, shape: Shape) -> Response:
        # The status waits for the first event, so that a refusal by the turn has its own.
        first = await running.next()
        if isinstance(first, Delta):
            return _Stream(_chunks(first, running, shape, self._config.random_id), running)
        error = first.error if isinstance(first, Failed) else unfinished(first)
        if error is not None:
            return refuse(error, self._config.random_id, first.receipt)
        return _Stream(_chunks(first, running, shape, self._config.random_id), running)

    def _turns(self) -> Turns:
        turns = self._backend.turns
        if turns is None:
            raise CapacityError("the model is still loading", retry_after_s=LOADING_RETRY_S)
        return turns

    def _model(self) -> dict[str, Any]:
        loading = self._backend.turns is None
        return {
            "id": self._config.model,
            "object": "model",
            "created": self._config.created,
            "owned_by": "surefoot",
            "max_model_len": None if loading else self._backend.context_tokens,
            "input_modalities": None if loading else self._modalities(),
        }

    def _modalities(self) -> list[str]:
        return ["text", "image"] if self._backend.takes_images else ["text"]


class _Stream(Response):
    """Server-sent events of a running turn, which it closes at the end."""

    def __init__(self, chunks: AsyncIterator[bytes], running: RunningTurn) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        del self.headers["content-length"]
        self._chunks = chunks
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; ``receive`` belongs to the turn's watch."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except OSError:
            # How an ASGI server may say that the client left (spec 2.4); nobody reads on.
            return
        finally:
            self._running.close()


async def _chunks(
    event: Event, running: RunningTurn, shape: Shape, new_id: Callable[[], str]
) -> AsyncIterator[bytes]:
    """Yield a stream's events; one that fails ends with an error event, and without [DONE]."""
    try:
        for chunk in shape.begin():
            yield _event(chunk)
        while isinstance(event, Delta):
            for chunk in shape.delta(event):
                yield _event(chunk)
            event = await running.next()
        if isinstance(event, Failed):
            yield _event(error_body(event.error, new_id, event.receipt))
            return
        error = unfinished(event)
        if error is not None:
            yield _event(error_body(error, new_id, event.receipt))
            return
        for chunk in shape.end(event):
            yield _event(chunk)
        yield b"data: [DONE]\n\n"
    except ClientGone:
        return
    except Exception as error:  # noqa: BLE001  the outermost handler of an answer that began
        yield _event(error_body(error, new_id))


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


async def _body(request: Request, most: int) -> bytes:
    """Read the body, and no more of it than is allowed."""
    said = request.headers.get("content-length", "")
    if said.isascii() and said.isdecimal() and int(said[:20]) > most:
        raise _too_large(most)  # before any of it takes room
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def _too_large(most: int, what: str = "in all") -> TooLarge:
    return TooLarge(f"the body is larger than {most} bytes {what}, the most this server reads")
