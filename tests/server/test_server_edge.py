"""The outermost layer: full servers, bugs, and what is no request."""

import asyncio
import logging

import httpx
import pytest
from scripted import CHAT, Server, config, done, error

from surefoot.server import Limits
from surefoot.server.access import Access
from surefoot.server.edge import Edge


def test_a_full_server_says_so_but_stays_watched():
    async def story():
        server = Server(lambda request: [], limits=Limits(requests=1))
        first = asyncio.create_task(post(server))
        while not server.turns.tickets:
            await asyncio.sleep(0)  # one turn of the loop, not a time
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found = error(await client.post("/v1/chat/completions", json=CHAT), 503)
            assert "at most 1 requests" in found["message"]
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/metrics")).status_code == 200
            server.turns.deliver(done())
            assert (await first).status_code == 200
            server.turns.script = lambda request: [done()]
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200

    asyncio.run(asyncio.wait_for(story(), 20))


async def post(server):
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.post("/v1/chat/completions", json=CHAT)


async def ask(edge, path="/v1/models", headers=((b"host", b"localhost"),), kind="http"):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "method": "GET", "path": path, "headers": list(headers)}
    await edge(scope, None, send)
    return sent


def edge_around(app):
    return Edge(app, access=Access(config()), limits=Limits(requests=1), new_id=lambda: "b1")


@pytest.mark.parametrize("started", [False, True])
def test_a_bug_is_answered_once_and_logged(started, caplog):
    async def broken(scope, receive, send):
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError("secret")

    with caplog.at_level(logging.ERROR):
        sent = asyncio.run(ask(edge_around(broken)))
    starts = [one["status"] for one in sent if one["type"] == "http.response.start"]
    assert starts == [200 if started else 500]
    assert "secret" not in str(sent)
    assert "bug b1" in caplog.text


def test_a_request_that_failed_makes_room_again():
    async def broken(scope, receive, send):
        raise ZeroDivisionError

    edge = edge_around(broken)
    for _ in range(3):
        [start, _] = asyncio.run(ask(edge))
        assert start["status"] == 500


def test_what_is_no_request_passes():
    async def app(scope, receive, send):
        await send(scope["type"])

    assert asyncio.run(ask(edge_around(app), headers=(), kind="lifespan")) == ["lifespan"]
