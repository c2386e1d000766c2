"""The real ``openai`` client against a real server on a port of its own."""

import socket
import threading
from contextlib import contextmanager

import httpx
import openai
import pytest
import uvicorn
from scripted import CHAT, RECEIPT, TOKENS, Server, done, image

from surefoot.chat.request import Image
from surefoot.errors import EngineError, RequestError
from surefoot.scheduler import Delta, Failed
from surefoot.server import Limits

PATIENCE_S = 20
MESSAGES = CHAT["messages"]


@contextmanager
def listening(server, **settings):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # from here on a client can connect, and waits
        config = uvicorn.Config(
            server.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1, **settings
        )
        uvicorn_server = uvicorn.Server(config)
        thread = threading.Thread(
            target=uvicorn_server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            uvicorn_server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def server():
    return Server(api_keys=("a key",))


@pytest.fixture(scope="module")
def url(server):
    with listening(server) as url:
        yield url


@pytest.fixture
def client(server, url):
    server.turns.script = type(server.turns)().script
    with openai.OpenAI(base_url=f"{url}/v1", api_key="a key", max_retries=0) as client:
        yield client


def test_models_are_listed(client):
    assert [one.id for one in client.models.list()] == ["served"]
    assert client.models.retrieve("served").owned_by == "surefoot"


def test_a_plain_chat(client):
    answer = client.chat.completions.create(model="served", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens == 32
    assert answer.surefoot["sources"] == {"ram": 16, "ssd": 16}


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_chat(client, usage):
    more = {"stream_options": {"include_usage": True}} if usage else {}
    stream = client.chat.completions.create(model="served", messages=MESSAGES, stream=True, **more)
    chunks = list(stream)
    text = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(text) == "Hello"
    assert chunks[-1].surefoot == RECEIPT.to_json() | {"id": chunks[-1].id}
    assert (chunks[-1].usage is not None) == usage
    if usage:
        assert chunks[-1].usage.total_tokens == 42


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model="served", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert [one.token for one in content] == ["Hel", "lo"]
    assert [one.logprob for one in content] == [token.logprob for token in TOKENS]
    assert content[0].top_logprobs[1].bytes == [0xC3]
    stream = client.chat.completions.create(
        model="served", messages=MESSAGES, logprobs=True, top_logprobs=2, stream=True
    )
    streamed = [
        one
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content
    ]
    assert streamed == content


def test_a_text_completion_plain_and_streamed(client):
    plain = client.completions.create(model="served", prompt="once", logprobs=1)
    assert plain.choices[0].text == "Hello"
    assert plain.choices[0].logprobs.tokens == ["Hel", "lo"]
    stream = list(client.completions.create(model="served", prompt="once", stream=True))
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"
    assert stream[-1].surefoot["finish"] == "stop"


def test_the_clients_own_extras_pass(client, server):
    client.chat.completions.create(
        model="served",
        messages=MESSAGES,
        user="u",
        metadata={"a": "b"},
        store=False,
        n=1,
        parallel_tool_calls=True,
        service_tier="auto",
        response_format={"type": "text"},
        extra_body={"cache_salt": "s", "top_k": 3, "ignore_eos": True},
        extra_headers={"x-surefoot-cache": "bypass"},
    )
    assert (server.asked.cache_salt, server.asked.mode.value) == ("s", "bypass")


def test_an_image_reaches_the_model_bit_for_bit(client, server):
    file = bytes(range(256)) * 5000  # more than one packet
    parts = [image(file, detail="auto"), {"type": "text", "text": "what?"}, image(b"\x00")]
    messages = [{"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="served", messages=messages)
    assert answer.choices[0].message.content == "Hello"
    [message] = server.asked.input.messages
    assert message.content == (
        Image(file, "messages[0].content[0]"),
        "what?",
        Image(b"\x00", "messages[0].content[2]"),
    )


def test_an_image_that_is_too_large_is_a_413_that_names_it(client):
    parts = [image(b"a"), image(bytes(Limits().image_bytes + 1))]
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(
            model="served", messages=[{"role": "user", "content": parts}]
        )
    assert (caught.value.status_code, caught.value.param) == (413, "messages[0].content[1]")
    assert "image 2 (messages[0].content[1]) has 20,971,521 bytes" in caught.value.message


def test_a_conversation_goes_on_with_the_answer_sent_back(client, server):
    answer = client.chat.completions.create(model="served", messages=MESSAGES)
    again = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": "more"}]
    client.chat.completions.create(model="served", messages=again)
    assert [one.content for one in server.asked.input.messages] == ["hi", "Hello", "more"]


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"n": 2}, openai.BadRequestError, "n"),
        ({"model": "gpt-x"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"extra_body": {"unknown": 1}}, openai.BadRequestError, "unknown"),
    ],
)
def test_the_client_raises_its_own_errors(client, fields, kind, param):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "served", "messages": MESSAGES} | fields)
    assert caught.value.param == param


def test_a_wrong_key_is_an_authentication_error(url):
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="other", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.chat.completions.create(model="served", messages=MESSAGES)
    assert caught.value.code == "invalid_api_key"


def test_a_refusal_by_the_turn_is_a_proper_status_in_a_stream(client, server):
    server.turns.script = lambda request: [Failed(RequestError("no", param="tools"), None)]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="served", messages=MESSAGES, stream=True)
    assert caught.value.param == "tools"


def test_a_failure_in_a_stream_is_raised_after_its_text(client, server):
    server.turns.script = lambda request: [Delta("He", ()), Failed(EngineError("broke"), RECEIPT)]
    stream = client.chat.completions.create(model="served", messages=MESSAGES, stream=True)
    assert next(stream).choices[0].delta.role == "assistant"
    assert next(stream).choices[0].delta.content == "He"
    with pytest.raises(openai.APIError, match="broke"):
        next(stream)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_that_the_client_closes_cancels_its_turn(server, url, path):
    server.turns.script = lambda request: [Delta("Hel", ())]
    body = {"model": "served", "stream": True}
    body |= {"messages": MESSAGES} if "chat" in path else {"prompt": "once"}
    headers = {"authorization": "Bearer a key"}
    with (
        httpx.Client(trust_env=False) as http,
        http.stream("POST", url + path, json=body, headers=headers) as response,
    ):
        lines = response.iter_lines()  # kept: a dropped iterator closes the connection
        assert any("Hel" in line for line in lines)
        assert not server.turns.tickets[-1].cancelled.is_set()
    assert server.turns.tickets[-1].cancelled.wait(PATIENCE_S)


def test_a_plain_request_that_the_client_drops_cancels_its_turn(server, url):
    submitted = threading.Event()

    def script(request):
        submitted.set()
        return []

    server.turns.script = script
    host, port = url.removeprefix("http://").split(":")
    body = b'{"model": "served", "messages": [{"role": "user", "content": "hi"}]}'
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"authorization: Bearer a key\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert submitted.wait(PATIENCE_S)
    assert server.turns.tickets[-1].cancelled.wait(PATIENCE_S)


def test_text_is_delivered_from_another_thread_as_it_comes(client, server):
    submitted = threading.Event()
    server.turns.script = lambda request: submitted.set() or []
    seen = []

    def engine():
        assert submitted.wait(PATIENCE_S)
        for letter in "abc":
            server.turns.deliver(Delta(letter, ()))
        server.turns.deliver(done())

    thread = threading.Thread(target=engine)
    thread.start()
    stream = client.chat.completions.create(model="served", messages=MESSAGES, stream=True)
    seen = [chunk.choices[0].delta.content for chunk in stream]
    thread.join(PATIENCE_S)
    assert seen == ["", "a", "b", "c", None]
