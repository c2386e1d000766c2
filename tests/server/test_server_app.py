"""The routes, over ASGI: bodies, streams, receipts, refusals."""

import json
import logging

import pytest
from scripted import CHAT, RECEIPT, TEXT, Server, chunks, done, error, hello

from surefoot.errors import CapacityError, EngineError, RequestError
from surefoot.receipt import Finish
from surefoot.scheduler import Delta, Failed, TokenText
from surefoot.server import Limits

CHAT_HEAD = {"id": "chatcmpl-id0", "created": 1_800_000_000, "model": "served"}
TEXT_HEAD = {"id": "cmpl-id0", "created": 1_800_000_000, "model": "served"}
USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 2,
    "total_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 32},
}


def receipt(id_):
    return RECEIPT.to_json() | {"id": id_}


def test_a_chat_answer_is_openais_with_a_receipt():
    response = Server().chat()
    assert response.json() == {
        **CHAT_HEAD,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "surefoot": receipt("chatcmpl-id0"),
    }


def test_a_text_answer_is_openais_with_a_receipt():
    assert Server().text().json() == {
        **TEXT_HEAD,
        "object": "text_completion",
        "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
        "surefoot": receipt("cmpl-id0"),
    }


def test_a_chat_stream_ends_with_the_receipt_in_the_finish_chunk():
    response = Server().chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    head = CHAT_HEAD | {"object": "chat.completion.chunk"}

    def chunk(delta, finish=None):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**head, "choices": [choice]}

    assert chunks(response) == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop") | {"surefoot": receipt("chatcmpl-id0")},
    ]


def test_a_stream_with_usage_ends_with_the_receipt_in_the_usage_chunk():
    for endpoint in ("chat", "text"):
        response = getattr(Server(), endpoint)(stream=True, stream_options={"include_usage": True})
        *before, finish, last = chunks(response)
        assert [one["usage"] for one in (*before, finish)] == [None] * (len(before) + 1)
        assert finish["choices"][0]["finish_reason"] == "stop"
        assert (last["choices"], last["usage"]) == ([], USAGE)
        assert last["surefoot"]["prompt_tokens"] == 40
        assert not any("surefoot" in one for one in (*before, finish))


def test_a_text_stream_is_openais():
    found = chunks(Server().text(stream=True))
    assert [one["choices"][0]["text"] for one in found] == ["Hel", "lo", ""]
    assert [one["choices"][0]["finish_reason"] for one in found] == [None, None, "stop"]
    assert {one["object"] for one in found} == {"text_completion"}
    assert found[-1]["surefoot"] == receipt("cmpl-id0")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (RequestError("'messages' is too long", param="messages"), 400),
        (CapacityError("full", retry_after_s=9), 503),
        (EngineError("the runtime failed"), 500),
    ],
)
def test_a_failure_before_the_first_event_has_its_status(stream, cause, status):
    server = Server(lambda request: [Failed(cause, None)])
    for response in (server.chat(stream=stream), server.text(stream=stream)):
        assert error(response, status)["message"] == str(cause)
        assert ("surefoot" in response.json()) is False
        assert response.headers.get("retry-after") == ("9" if status == 503 else None)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_with_a_receipt_shows_it(stream):
    failed = Failed(EngineError("x"), RECEIPT)
    response = Server(lambda request: [failed]).chat(stream=stream)
    assert response.status_code == 500
    assert response.json()["surefoot"] == RECEIPT.to_json()


def test_a_failure_after_the_stream_began_is_an_error_event_and_the_end():
    server = Server(lambda request: [Delta("He", ()), Failed(EngineError("broke"), RECEIPT)])
    response = server.chat(stream=True)
    assert response.status_code == 200
    last = response.text.strip().split("\n\n")[-1]
    event = json.loads(last.removeprefix("data: "))
    assert event["error"]["message"] == "broke"
    assert event["surefoot"] == RECEIPT.to_json()
    assert "[DONE]" not in response.text


def test_a_plain_answer_that_fails_half_way_is_an_error():
    server = Server(lambda request: [Delta("He", ()), Failed(EngineError("broke"), RECEIPT)])
    assert error(server.chat(), 500)["message"] == "broke"


@pytest.mark.parametrize(("finish", "status"), [(Finish.CANCELLED, 503), (Finish.ERROR, 500)])
def test_a_turn_that_was_cut_off_is_no_answer(finish, status):
    server = Server(lambda request: [done(finish=finish)])
    assert server.chat().status_code == status
    assert server.chat(stream=True).status_code == status
    half = Server(lambda request: [Delta("He", ()), done(finish=finish)])
    assert half.chat().status_code == status
    streamed = half.chat(stream=True).text
    assert "before its answer ended" in streamed
    assert "[DONE]" not in streamed


def test_a_bug_in_a_turn_is_told_by_number_only(caplog):
    server = Server(lambda request: [Failed(ValueError("secret"), RECEIPT)])
    for response in (server.chat(), server.chat(stream=True)):
        assert "secret" not in response.text
        assert "internal error id" in error(response, 500)["message"]


def test_a_bug_in_the_server_is_told_by_number_only(caplog):
    def broken(request):
        raise ZeroDivisionError("secret")

    with caplog.at_level(logging.ERROR):
        response = Server(broken).chat()
    assert error(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text


def test_a_bug_while_streaming_is_an_error_event(caplog):
    server = Server(lambda request: [Delta("x", (TokenText(1, "x", None, -1.0, ()),)), done()])
    response = server.chat(stream=True, logprobs=True)
    assert "internal error" in response.text
    assert "[DONE]" not in response.text


def test_a_full_queue_is_503_with_retry_after():
    def full(request):
        raise CapacityError("64 requests are waiting", retry_after_s=3)

    response = Server(full).chat()
    assert error(response, 503)["code"] == "try_again_later"
    assert response.headers["retry-after"] == "3"


def test_while_loading_what_needs_the_model_is_503():
    server = Server(loading=True)
    for response in (
        server.get("/health"),
        server.get("/v1/cache"),
        server.chat(),
        server.text(),
        server.body(b"{"),
    ):
        assert "loading" in error(response, 503)["message"]
        assert int(response.headers["retry-after"]) > 0
    [model] = server.get("/v1/models").json()["data"]
    assert (model["max_model_len"], model["input_modalities"]) == (None, None)
    server.backend.turns = server.turns
    assert server.get("/health").json() == {"status": "ok"}
    assert server.chat().status_code == 200


def test_while_loading_keys_are_checked_and_not_yet_named():
    def no_secret_yet(key):
        raise AssertionError("the store is not open")

    server = Server(loading=True, api_keys=("k",), key_id=no_secret_yet)
    headers = {"authorization": "Bearer k"}
    error(server.chat(headers=headers), 503)
    error(server.get("/v1/cache", headers=headers), 503)
    assert server.get("/v1/models", headers=headers).status_code == 200
    assert server.get("/metrics", headers=headers).status_code == 200
    error(server.chat(), 401)


def test_the_one_model_is_listed_and_shown():
    server = Server(model="org/name")
    model = {
        "id": "org/name",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "surefoot",
        "max_model_len": 8192,
        "input_modalities": ["text", "image"],
    }
    assert server.get("/v1/models").json() == {"object": "list", "data": [model]}
    for path in ("/v1/models/org/name", "/v1/models/org%2Fname"):
        assert server.get(path).json() == model


def test_a_model_that_does_not_see_says_so():
    [model] = Server(takes_images=False).get("/v1/models").json()["data"]
    assert model["input_modalities"] == ["text"]


def test_another_model_is_not_found():
    server = Server()
    for response in (server.get("/v1/models/other"), server.chat(model="other")):
        found = error(response, 404)
        assert (found["code"], found["param"]) == ("model_not_found", "model")
        assert '"other"' in found["message"]
        assert '"served"' in found["message"]


def test_the_status_is_the_backends():
    server = Server()
    assert server.get("/v1/cache").json() == server.backend.status()


def test_a_path_or_method_that_is_not_there_has_the_same_shape():
    server = Server()
    assert error(server.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error(server.get("/docs"), 404)["code"] == "not_found"
    assert error(server.get("/v1/completions"), 405)["code"] == "method_not_allowed"


def test_a_body_is_read_up_to_its_limit_and_no_further():
    whole = json.dumps(TEXT).encode()
    exact = Server(limits=Limits(body_bytes=len(whole)))
    assert exact.body(whole, "/v1/completions").status_code == 200
    found = error(exact.body(whole + b" ", "/v1/completions"), 413)
    assert str(len(whole)) in found["message"]


def test_the_turns_ticket_is_closed_after_every_answer():
    for script in (hello, lambda request: [Failed(EngineError("x"), None)]):
        server = Server(script)
        for stream in (False, True):
            server.chat(stream=stream)
            assert server.turns.tickets[-1].cancelled.is_set()


def test_without_a_wall_clock_an_answer_is_dated_by_the_server():
    assert Server(wall_clock=None).chat().json()["created"] == 1_700_000_000


def test_no_answer_or_page_shows_the_prompt():
    server = Server()
    asked = CHAT["messages"] + [{"role": "user", "content": "a secret"}]
    assert "secret" not in server.chat(messages=asked).text
    assert "secret" not in server.get("/metrics").text + server.get("/v1/cache").text
