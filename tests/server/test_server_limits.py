"""How much may be sent and held: each limit to its last, and one at its limit always fits."""

import asyncio
import json

import httpx
import pytest
from housed import CONTEXT, housed
from scripted import CHAT, TEXT, Server, done, error, image

from surefoot import settings
from surefoot.server import Limits

MIB = 2**20


def test_the_defaults_let_a_whole_context_and_its_images_through():
    limits = Limits()
    assert limits.body_bytes == 16 * MIB
    assert limits.messages == 4096
    assert (limits.images, limits.image_bytes) == (32, 20 * MIB)
    assert (limits.files_bytes, limits.chat_body_bytes) == (48 * MIB, 80 * MIB)
    assert (limits.room_bytes, limits.client_bytes) == (256 * MIB, 128 * MIB)
    assert (limits.requests, limits.client_requests, limits.connections) == (256, 32, 512)
    assert (limits.stall_s, limits.body_s) == (20, 120)


@pytest.mark.parametrize("image_bytes", [1, 48 * MIB, 48 * MIB + 1, 2**30])
def test_an_image_at_its_limit_fits_into_what_holds_it(image_bytes):
    limits = Limits(image_bytes=image_bytes)
    assert image_bytes <= limits.files_bytes
    assert -(-image_bytes // 3) * 4 + limits.body_bytes <= limits.chat_body_bytes
    assert limits.chat_body_bytes <= limits.client_bytes <= limits.room_bytes


# --- each limit, over HTTP: one below, exactly, one above ----------------------------------------

SMALL = Limits(body_bytes=2000, messages=5, images=3, image_bytes=100)
USER = {"role": "user", "content": "hi"}


def chat_body(nbytes):
    """A chat of exactly that many bytes."""
    empty = json.dumps(CHAT | {"user": ""}).encode()
    return json.dumps(CHAT | {"user": "x" * (nbytes - len(empty))}).encode()


def text_body(nbytes):
    """A completion of exactly that many bytes."""
    empty = json.dumps(TEXT | {"prompt": ""}).encode()
    return json.dumps(TEXT | {"prompt": "x" * (nbytes - len(empty))}).encode()


def calls(count):
    function = {"name": "f", "arguments": "{}"}
    one = {"id": "1", "type": "function", "function": function}
    return chat(messages=[{"role": "assistant", "content": "", "tool_calls": [one] * count}, USER])


def chat(**fields):
    return json.dumps(CHAT | fields).encode()


def text(**fields):
    return json.dumps(TEXT | fields).encode()


def shown(*files):
    parts = [image(bytes(size)) for size in files]
    return chat(messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}])


def tools(count):
    return [{"type": "function", "function": {"name": "f"}}] * count


FILES = Limits().files_bytes
LARGE = Limits(image_bytes=FILES)
# What is limited: (the most, a body that holds that many, the server's limits, its status above).
BOUNDED = {
    "bytes of a chat": (2000, chat_body, SMALL, 413),
    "bytes of a completion": (2000, text_body, SMALL, 413),
    "messages": (5, lambda n: chat(messages=[USER] * n), SMALL, 413),
    "tool calls": (5, calls, SMALL, 413),
    "images": (3, lambda n: shown(*[1] * n), SMALL, 413),
    "bytes of an image": (100, shown, SMALL, 413),
    "bytes of all images": (FILES, lambda n: shown(FILES // 2, n - FILES // 2), LARGE, 413),
    "tools": (128, lambda n: chat(tools=tools(n)), Limits(), 400),
    "stops": (16, lambda n: text(stop=["x"] * n), Limits(), 400),
    "characters of a stop": (256, lambda n: text(stop="x" * n), Limits(), 400),
    "characters of a salt": (128, lambda n: text(cache_salt="x" * n), Limits(), 400),
    "top logprobs": (20, lambda n: text(logprobs=n), Limits(), 400),
    "a seed": (2**63 - 1, lambda n: text(seed=n), Limits(), 400),
    "a token id": (2**32 - 1, lambda n: text(prompt=[n]), Limits(), 400),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_bounded_is_taken_to_the_last_and_no_further(name):
    most, body_of, limits, status = BOUNDED[name]
    server = Server(limits=limits)
    for count, expected in ((most - 1, 200), (most, 200), (most + 1, status)):
        body = body_of(count)
        path = "/v1/completions" if b'"prompt"' in body[:60] else "/v1/chat/completions"
        response = server.body(body, path)
        assert response.status_code == expected, (count, response.text[:300])
    assert len(server.turns.requests) == 2


@pytest.mark.parametrize("endpoint", ["chat", "text"])
def test_a_prompt_may_fill_the_context_but_for_one_token(endpoint):
    with housed() as house:
        length = CONTEXT - 1 if endpoint == "text" else CONTEXT - 1 - len("u:;a:")
        for tokens, status in ((length - 1, 200), (length, 200), (length + 1, 400)):
            content = "x" * tokens
            response = (
                house.text(prompt=content, max_tokens=1)
                if endpoint == "text"
                else house.chat(messages=[{"role": "user", "content": content}], max_tokens=1)
            )
            assert response.status_code == status
        assert response.json()["error"]["code"] == "context_length_exceeded"


def at_work(server, count, headers=None):
    """Tasks of requests that are being answered, once all have been taken or refused."""
    return [asyncio.create_task(send(server, headers)) for _ in range(count)]


async def send(server, headers=None):
    transport = httpx.ASGITransport(server.app, client=("10.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.post("/v1/chat/completions", json=CHAT, headers=headers)


async def taken(server, count):
    while len(server.turns.tickets) < count:
        await asyncio.sleep(0)  # one turn of the loop, not a time


KEYED = {"api_keys": ("a", "b"), "host": "0.0.0.0"}
BEYOND = {"host": "0.0.0.0"}


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(
    ("changes", "headers", "most", "status", "kind"),
    [
        (KEYED, {"authorization": "Bearer a"}, 3, 429, "rate_limit_error"),
        (BEYOND, None, 3, 429, "rate_limit_error"),
        ({"limits": Limits(requests=3)}, None, 3, 503, "overloaded_error"),
    ],
)
def test_requests_at_work_are_bounded_by_client_and_in_all(
    count, changes, headers, most, status, kind
):
    async def story():
        limits = {"limits": Limits(client_requests=3)}
        server = Server(lambda request: [], **limits | changes)
        tasks = at_work(server, min(count, most), headers)
        await taken(server, len(tasks))
        if count > most:
            response = await send(server, headers)
            found = error(response, status)
            assert found["type"] == kind
            assert int(response.headers["retry-after"]) >= 1
            if status == 429:
                assert found["code"] == "too_many_requests"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        server.turns.script = lambda request: [done()]
        assert (await send(server, headers)).status_code == 200

    asyncio.run(asyncio.wait_for(story(), 20))


def test_one_key_at_its_limit_keeps_nobody_else_out():
    async def story():
        server = Server(lambda request: [], limits=Limits(client_requests=3), **KEYED)
        greedy, modest = ({"authorization": f"Bearer {key}"} for key in "ab")
        tasks = at_work(server, 3, greedy)
        await taken(server, 3)
        error(await send(server, greedy), 429)
        error(await send(server, {"authorization": "Bearer x"}), 401)
        server.turns.script = lambda request: [done()]
        for _ in range(5):
            assert (await send(server, modest)).status_code == 200
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_on_this_machine_alone_one_address_may_have_every_place():
    async def story():
        server = Server(lambda request: [], limits=Limits(requests=5, client_requests=1))
        tasks = at_work(server, 5)
        await taken(server, 5)
        error(await send(server), 503)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_two_clients_at_their_limit_leave_others_places_in_the_queue():
    least = settings.QUEUED.default + settings.RUNNING.default
    assert 2 * Limits().client_requests < least <= Limits().requests
    assert (settings.CLIENT_REQUESTS.default, settings.STALL_S.default) == (
        Limits().client_requests,
        Limits().stall_s,
    )
