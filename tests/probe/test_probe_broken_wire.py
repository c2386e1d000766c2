"""The broken server as clients meet it: what it offers, what it refuses, and over a socket."""

import asyncio
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import pytest
from broken_client import (
    CHAT,
    COLOUR,
    PATIENCE_S,
    Server,
    picture,
    secret,
    shown,
    user,
)

from surefoot.testing.broken_engine import COMPUTE_S, DECODE_S
from surefoot.testing.broken_faults import Behaviour, Fault, Skills
from surefoot.testing.broken_server import (
    Front,
    VirtualClock,
    listening,
    server_of,
)
from surefoot.testing.broken_state import UNKNOWN
from surefoot.testing.broken_wire import MODEL

# --- honest behaviours ---------------------------------------------------------------------------


def test_honest_noise_moves_logprobs_a_little_and_no_text():
    async def run():
        server = Server(None, Behaviour(jitter=0.02))
        first, again, third = [await server.ask(secret("483920")) for _ in range(3)]
        assert again.bits == third.bits
        assert again.text == first.text
        moved = (
            again.logprobs[0]["content"][0]["logprob"] - first.logprobs[0]["content"][0]["logprob"]
        )
        assert 0 < abs(moved) < 0.05

    asyncio.run(run())


def test_what_does_not_repeat_says_it_in_other_words():
    async def run():
        server = Server(None, Behaviour(repeats=False))
        heard = [await server.ask(secret("483920")) for _ in range(8)]
        assert len({got.text for got in heard}) > 2
        assert all(got.text.endswith("483920") for got in heard)

    asyncio.run(run())


def test_what_is_not_offered_is_not_there():
    async def run():
        nothing = Behaviour(offers_logprobs=False, offers_counters=False, caches=False)
        server = Server(None, nothing)
        got = [await server.ask(secret("483920")) for _ in range(2)][1]
        assert (got.text, got.logprobs[0], got.cached) == ("483920", None, None)
        assert got.ttft_s > got.prompt * COMPUTE_S
        few = Behaviour(sees_images=False, knows_tools=False)
        assert (await Server(None, few).ask([user(picture("red"), COLOUR)])).status == 400
        assert (
            await Server(None, few).ask(secret("1"), tools=[{"type": "function"}])
        ).status == 400
        weak = Behaviour(skills=Skills(secret=False, colour=False, recall_tokens=20))
        assert (await Server(None, weak).ask(secret("483920"))).text == UNKNOWN
        assert (await Server(None, weak).ask([user(picture("red"), COLOUR)])).text == (UNKNOWN)

    asyncio.run(run())


@pytest.mark.parametrize(("most", "finish", "said"), [(1, "length", 1), (9, "stop", 2)])
def test_an_answer_is_cut_where_the_request_says(most, finish, said):
    async def run():
        body = {"messages": secret("483920"), "max_tokens": most}
        answered = (await Server().client.post(CHAT, json=body)).json()
        assert answered["choices"][0]["finish_reason"] == finish
        assert answered["usage"]["completion_tokens"] == said

    asyncio.run(run())


def test_salts_are_checked_only_where_they_are_known():
    async def run():
        for salt in ("", "a" * 129, 7, ["a"]):
            assert (await Server().ask(secret("483920"), cache_salt=salt)).status == 400
            deaf = Server(None, Behaviour(knows_salts=False))
            assert (await deaf.ask(secret("483920"), cache_salt=salt)).status == 200

    asyncio.run(run())


def test_keys_are_let_in_by_name_and_kept_apart_where_they_are():
    async def run():
        for apart in (True, False):
            server = Server(None, Behaviour(api_keys=("one", "two"), keys_apart=apart))
            assert (await server.ask(secret("483920"))).status == 401
            assert (await server.ask(secret("483920"), key="three")).status == 401
            assert (await server.ask(secret("483920"), key="one")).cached == 0
            assert bool((await server.ask(secret("483920"), key="two")).cached) is not apart

    asyncio.run(run())


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": "hello"},
        {"messages": [{"content": "hello"}]},
        {"messages": [user("hello")], "top_logprobs": 21},
        {"messages": [user("very " * 9000)]},
        {"messages": [user(shown(b"no picture"), COLOUR)]},
        {"messages": [user({"type": "image_url", "image_url": {"url": "http://a/b.png"}}, "?")]},
    ],
)
def test_what_cannot_be_understood_is_refused_in_openais_shape(fields):
    async def run():
        response = await Server().client.post(CHAT, json=fields)
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"

    asyncio.run(run())


# --- over a socket -------------------------------------------------------------------------------


@asynccontextmanager
async def served(front):
    """Serve on a socket of this machine; yield a client of it."""
    server = server_of(front)
    with listening(0) as sock:
        serving = asyncio.create_task(server.serve([sock]))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
            yield client
        server.should_exit = True
        await serving


def test_over_a_socket_come_the_same_bytes_as_through_the_transport():
    async def run():
        beside = Server()
        async with served(Front(pass_time=VirtualClock().pass_time)) as client:
            for fields in ({"stream": True}, {"stream": False}, {"cache_salt": 7}):
                body = {"messages": secret("483920"), "logprobs": True} | fields
                heard = await client.post(CHAT, json=body)
                expected = await beside.client.post(CHAT, json=body)
                assert heard.status_code == expected.status_code
                assert heard.content == expected.content
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == MODEL
            assert (await client.get("/v1/nothing")).status_code == 404

    asyncio.run(run())


def test_over_a_socket_a_client_that_hangs_up_cancels_its_turn():
    left = asyncio.Event()
    decoded = []

    async def stands_still_after_a_token(seconds):
        decoded.extend([seconds] if seconds == DECODE_S else [])
        if len(decoded) == 2 and not left.is_set():
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

    async def run():
        body = {"messages": secret("483920"), "stream": True}
        front = Front(Fault.POISONED, pass_time=stands_still_after_a_token)
        async with served(front) as client:
            async with client.stream("POST", CHAT, json=body) as response:
                await anext(response.aiter_lines())
            await left.wait()
            poisoned = await client.post(CHAT, json=body | {"stream": False})
            assert poisoned.json()["choices"][0]["message"]["content"] != "483920"

    asyncio.run(run())


def test_whoever_is_told_where_it_is_can_connect_before_it_serves():
    with listening(0) as sock, socket.create_connection(sock.getsockname(), timeout=PATIENCE_S):
        pass


def test_as_a_process_it_says_where_it_is_and_restarts_on_request():
    command = [sys.executable, "-m", "surefoot.testing.broken_server"]
    command += ["--fault", Fault.OTHER_WEIGHTS, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            heard = []
            for _ in range(2):
                body = {"messages": secret("483920", sentences=2)}
                answered = httpx.post(f"{url}/chat/completions", json=body, timeout=PATIENCE_S)
                heard.append(answered.json()["choices"][0]["message"]["content"])
                restart = url.replace("/v1", "/restart")
                assert httpx.post(restart, timeout=PATIENCE_S).status_code == 200
        finally:
            process.terminate()
    assert heard[0] == "483920" != heard[1]
