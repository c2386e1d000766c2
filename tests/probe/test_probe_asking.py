"""Answers in the shapes that real servers send, over a transport that streams."""

import asyncio
import html
import json
from urllib.parse import quote, quote_plus

import httpx
import pytest

from surefoot.errors import CapacityError, RequestError
from surefoot.probe.asking import (
    BROKE_WAITS_S,
    BUSY_TRIES,
    HUNG_UP,
    NEVER,
    PATIENCE_S,
    Asker,
    must_answer,
)

KEY = "sk-very-secret-0451"


class Scripted(httpx.AsyncBaseTransport):
    """Answers each request with the next step of a script, and keeps what was sent."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.sent = []
        self.closed = 0

    async def handle_async_request(self, request):
        body = await request.aread()
        self.sent.append((request, json.loads(body) if body else None))
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        status, headers, chunks = step
        return httpx.Response(status, headers=headers, stream=_Stream(self, chunks))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, owner, chunks):
        self._owner, self._chunks = owner, chunks

    async def __aiter__(self):
        for chunk in self._chunks:
            yield chunk

    async def aclose(self):
        self._owner.closed += 1


def stream(*chunks):
    lines = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return 200, {"content-type": "text/event-stream"}, [*lines, b"data: [DONE]\n\n"]


def refusal(status, body, **headers):
    return status, headers, [json.dumps(body).encode()]


def piece(text=None, **choice):
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None, **choice}]}


def asked(*steps, keys=(), body=None, pieces=None):
    """Return what came back, what was sent, and how long the asker waited in between."""
    transport = Scripted(*steps)
    waits, ticks = [], iter(range(10_000))

    async def sleep(seconds):
        waits.append(seconds)

    async def go():
        async with Asker(
            "http://server/v1/",
            keys=keys,
            clock=lambda: float(next(ticks)),
            sleep=sleep,
            transport=transport,
        ) as asker:
            asker.model = "m"
            if pieces is not None:
                return await asker.leave(body or {"messages": []}, pieces=pieces)
            return await asker.ask(body or {"messages": []})

    return asyncio.run(go()), transport, waits


def test_a_streamed_answer_is_read_whole():
    shown = {
        "content": [
            {
                "token": "48",
                "logprob": -0.25,
                "top_logprobs": [
                    {"token": "48", "logprob": -0.25},
                    {"token": "9", "logprob": -3.5},
                ],
            }
        ]
    }
    reply, transport, _ = asked(
        stream(
            {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
            piece("48", logprobs=shown),
            piece("3920"),
            piece(finish_reason="stop"),
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 700,
                    "completion_tokens": 2,
                    "prompt_tokens_details": {"cached_tokens": 512},
                },
            },
        )
    )
    assert (reply.text, reply.finish, reply.ok) == ("483920", "stop", True)
    assert (reply.prompt_tokens, reply.completion_tokens) == (700, 2)
    assert reply.counters == {"cached_tokens": 512}
    assert reply.tokens[0].top == (("48", -0.25), ("9", -3.5))
    assert reply.ttft_s < reply.total_s
    request, body = transport.sent[0]
    assert str(request.url) == "http://server/v1/chat/completions"
    assert "authorization" not in request.headers
    assert body["temperature"] == 0
    assert body["stream_options"] == {"include_usage": True}


def test_the_first_token_is_the_first_that_says_something():
    """A chunk with the role alone is sent before anything was computed, by some servers."""
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    reply, _, _ = asked(stream(role, role, piece("a"), piece("b")))
    at_once, _, _ = asked(stream(piece("a"), piece("b")))
    assert at_once.ttft_s < reply.ttft_s < reply.total_s


@pytest.mark.parametrize(
    ("chunk", "counters"),
    [
        ({"timings": {"cache_n": 40, "prompt_n": 7}}, {"timings.cache_n": 40}),
        ({"surefoot": {"restored_tokens": 256}}, {"receipt": 256}),
        ({"usage": {"prompt_cache_hit_tokens": 64}}, {"prompt_cache_hit_tokens": 64}),
        ({"usage": {"input_tokens_details": {"cached_tokens": 9}}}, {"input_cached_tokens": 9}),
        ({"usage": {"prompt_tokens_details": None}}, {}),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": None}}}, {}),
        ({"usage": None}, {}),
        ({"surefoot": None}, {}),
    ],
)
def test_counters_of_reuse_are_found_where_servers_put_them(chunk, counters):
    reply, _, _ = asked(stream(piece("a"), {"choices": [], **chunk}))
    assert reply.counters == counters


def test_an_answer_in_one_piece_is_taken_too():
    body = {
        "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3},
    }
    reply, _, _ = asked((200, {"content-type": "application/json"}, [json.dumps(body).encode()]))
    assert (reply.text, reply.finish, reply.prompt_tokens) == ("hi", "stop", 3)


def test_thoughts_are_kept_apart_and_searched_with_the_answer():
    thought = {"choices": [{"delta": {"reasoning_content": "hm 483920"}, "finish_reason": None}]}
    reply, _, _ = asked(stream(thought, piece("ok")))
    assert (reply.reasoning, reply.text) == ("hm 483920", "ok")
    assert "483920" in reply.said


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"error": {"message": "no such field"}}, "400: no such field"),
        ({"error": "plain words"}, "400: plain words"),
        ({"detail": "fastapi's own"}, "400: fastapi's own"),
        ({"odd": 1}, '400: {"odd": 1}'),
    ],
)
def test_a_refusal_is_a_reply_with_the_servers_words(body, says):
    reply, _, _ = asked(refusal(400, body))
    assert (reply.status, reply.error, reply.ok) == (400, says, False)


def test_an_error_inside_a_stream_is_an_error():
    reply, _, _ = asked(stream(piece("a"), {"error": {"message": "engine died"}}))
    assert not reply.ok
    assert "engine died" in reply.error


@pytest.mark.parametrize("junk", [b"data: {nonsense\n\n", b"data: [1]\n\n"])
def test_what_is_no_json_is_an_error_and_no_crash(junk):
    reply, _, _ = asked((200, {"content-type": "text/event-stream"}, [junk]))
    assert not reply.ok


def test_a_busy_server_is_asked_again_after_the_time_it_names():
    busy = refusal(429, {"error": {"message": "later"}}, **{"retry-after": "7"})
    reply, transport, waits = asked(busy, busy, stream(piece("a")))
    assert reply.ok
    assert (len(transport.sent), waits) == (3, [7.0, 7.0])
    reply, transport, _ = asked(*[busy] * BUSY_TRIES)
    assert not reply.ok
    assert len(transport.sent) == BUSY_TRIES


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        (
            {
                "retry-after": "Mon, 30 Nov 2026 10:00:30 GMT",
                "date": "Mon, 30 Nov 2026 10:00:05 GMT",
            },
            25,
        ),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT"}, 1),
        ({"retry-after": "nan"}, 1),
        ({"retry-after": "soon"}, 1),
        ({"retry-after": "0"}, 1),
        ({"retry-after": "1e9"}, 120),
        ({}, 1),
    ],
)
def test_how_long_to_wait_is_read_in_any_form(headers, wait):
    busy = refusal(429, {"error": {"message": "later"}}, **headers)
    _, _, waits = asked(busy, stream(piece("a")))
    assert waits == [wait]


@pytest.mark.parametrize(
    "accident",
    [
        httpx.RemoteProtocolError("peer closed"),
        refusal(502, {"error": "gone"}),
        stream(piece("a"), {"error": {"code": 502, "message": "Provider disconnected"}}),
    ],
)
def test_what_breaks_now_and_then_is_asked_again(accident):
    reply, _, waits = asked(accident, accident, stream(piece("a")))
    assert reply.ok
    assert waits == [*BROKE_WAITS_S]
    reply, transport, _ = asked(accident, accident, accident, stream(piece("a")))
    assert not reply.ok
    assert len(transport.sent) == 3


def test_a_server_that_asks_for_an_hour_is_left_busy():
    reply, transport, waits = asked(refusal(429, {"error": "later"}, **{"retry-after": "3600"}))
    assert reply.busy
    assert sum(waits) <= PATIENCE_S
    assert len(transport.sent) == 2


def test_silence_beyond_patience_is_never():
    reply, _, _ = asked(httpx.ReadTimeout("no byte"))
    assert reply.error == NEVER


def test_a_connection_that_breaks_is_an_error_of_the_request():
    broken = httpx.RemoteProtocolError("peer closed")
    reply, _, _ = asked(broken, broken)
    assert reply.status == 0
    assert "peer closed" in reply.error


def test_hanging_up_closes_the_stream_after_so_many_pieces():
    steps = stream(piece("a"), piece("b"), piece("c"))
    reply, transport, _ = asked(steps, pieces=2)
    assert reply.text == "ab"
    assert transport.closed == 1


@pytest.mark.parametrize("within_s", [3.0, None])
def test_hanging_up_before_the_answer_begins_ends_the_request(within_s):
    waits, ended = [], []

    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(request)

    async def sleep(seconds):
        waits.append(seconds)

    async def go():
        transport = Silent()
        async with Asker("http://s/v1", clock=float, sleep=sleep, transport=transport) as asker:
            leaving = asker.leave({"messages": []}, pieces=1, within_s=within_s)
            if within_s is not None:
                return await leaving
            # Who gives up on the hanging up takes the request along.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(leaving, 0.01)
            return None

    reply = asyncio.run(go())
    assert len(ended) == 1
    assert (reply and reply.error, waits) == ((HUNG_UP, [3.0]) if within_s else (None, []))


def test_a_key_is_sent_and_no_error_repeats_it():
    reply, transport, _ = asked(refusal(401, {"error": f"bad key {KEY}"}), keys=(KEY, "other"))
    assert transport.sent[0][0].headers["authorization"] == f"Bearer {KEY}"
    assert reply.error == "401: bad key [key]"


def test_an_answer_is_judged_as_it_came_though_a_key_stands_in_it():
    reply, _, _ = asked(stream(piece("473 07"), piece("7")), keys=("7",))
    assert reply.text == "473 077"


def test_a_key_that_is_a_word_of_ours_changes_no_kind_of_error():
    reply, _, _ = asked(httpx.ReadTimeout("no byte"), keys=(NEVER,))
    assert reply.error == NEVER


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (httpx.ReadTimeout("no byte"), CapacityError),
        (httpx.ConnectError("refused"), CapacityError),
        (refusal(500, {"error": "boom"}), CapacityError),
        (refusal(401, {"error": "bad key"}), RequestError),
        (refusal(404, {"error": "no such model"}), RequestError),
    ],
)
def test_a_server_that_does_not_answer_at_all_is_an_error_with_its_own_exit(step, kind):
    reply, _, _ = asked(step, step)
    with pytest.raises(kind):
        must_answer(reply, "http://server/v1")


def test_an_unreachable_server_is_said_to_be():
    async def go():
        transport = Scripted(httpx.ConnectError("refused"))
        async with Asker("http://server/v1", clock=lambda: 0.0, transport=transport) as asker:
            await asker.get("models")

    with pytest.raises(CapacityError, match="cannot be reached"):
        asyncio.run(go())


def test_a_restarting_server_is_waited_for_until_it_answers():
    """Models may be listed while they are loaded, so a chat is asked."""
    loading = refusal(500, {"error": "loading"})
    transport = Scripted(
        httpx.ConnectError("refused"),
        httpx.ConnectError("refused"),
        refusal(503, {}),
        loading,
        loading,
        stream(piece("a")),
    )
    now = [0.0]

    async def sleep(seconds):
        now[0] += seconds

    async def go(timeout_s):
        async with Asker(
            "http://server/v1", clock=lambda: now[0], sleep=sleep, transport=transport
        ) as asker:
            await asker.wait_answering(timeout_s=timeout_s)

    asyncio.run(go(60))
    assert len(transport.sent) == 6
    transport.steps = [refusal(503, {})] * 100
    with pytest.raises(CapacityError, match="did not come back"):
        asyncio.run(go(3))


# --- odd, and legal ------------------------------------------------------------------------------


def raw(*pieces):
    return 200, {"content-type": "text/event-stream"}, list(pieces)


LINE = json.dumps(piece("one\u2028two"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + LINE + b"\n\n"],
        [b"data:" + LINE + b"\r\n\r\n"],
        [b"data: " + LINE + b"\r\r"],
        [b": ping\n\ndata:\n\nevent: x\ndata: " + LINE + b"\n\n"],
        [bytes([one]) for one in b"data: " + LINE + b"\r\n\r\n"],
        [b"data: " + LINE],  # no line end at all
        [b"data: " + LINE[:20] + b"\ndata: " + LINE[20:] + b"\n\n"],
    ],
)
def test_events_are_read_as_the_standard_has_it(pieces):
    cut = pieces[0].count(b"data: ") == 2
    reply, _, _ = asked(raw(*pieces))
    assert reply.ok or cut  # a line end inside a JSON string is no JSON
    assert cut or reply.text == "one\u2028two"


def test_an_event_on_several_lines_is_one():
    written = json.dumps(piece("a"), indent=1).encode().replace(b"\n", b"\ndata: ")
    reply, _, _ = asked(raw(b"data: " + written + b"\n\n"))
    assert (reply.ok, reply.text) == (True, "a")


def test_pings_are_no_answer_and_an_answer_has_an_end():
    reply, _, _ = asked(raw(*[b": ping\n\n"] * 500))
    assert reply.error == NEVER
    reply, _, _ = asked(raw(*[b"data: " + LINE + b"\n\n"] * 2_000))
    assert "did not end" in reply.error


@pytest.mark.parametrize("status", [200, 502])
@pytest.mark.parametrize("begins", [b"", b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'])
def test_a_body_that_drips_for_ever_is_left(status, begins):
    class Drips(httpx.AsyncByteStream):
        async def __aiter__(self):
            yield begins
            await asyncio.Event().wait()

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            headers = {"content-type": "text/event-stream"}
            return httpx.Response(status, headers=headers, stream=Drips())

    async def go():
        async with Asker("http://s/v1", clock=lambda: 0.0, transport=Transport()) as asker:
            asker.patience_s = 0.01
            return await asker.ask({"messages": []})

    assert asyncio.run(go()).error == (
        "the answer did not end" if begins and status == 200 else NEVER
    )


CALL = {"index": 0, "id": "call-1", "function": {"name": "look", "arguments": '{"day'}}
REST = {"index": 0, "function": {"arguments": '": 1}'}}


def test_a_tool_call_is_its_name_and_its_arguments_however_it_is_cut():
    cut, _, _ = asked(stream(calls(CALL), calls(REST)))
    whole = {"index": 0, "id": "call-2", "function": {"name": "look", "arguments": '{"day": 1}'}}
    once, _, _ = asked(stream(piece("a"), calls(whole)))
    assert json.loads(cut.text) == [["look", '{"day": 1}']]
    assert once.text == f"a{cut.text}"


def calls(*said):
    return {"choices": [{"index": 0, "delta": {"tool_calls": said}, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("others", "tells"), [([-9999.0, -9999.0], False), ([-9999.0, -18.0], True), ([], False)]
)
def test_logprobs_of_choices_that_are_all_certain_are_none(others, tells):
    token = {"token": "4", "logprob": 0.0}
    top = [token, *({"token": f"{at}", "logprob": value} for at, value in enumerate(others, 5))]
    logprobs = {"content": [token | {"top_logprobs": top}]}
    reply, _, _ = asked(stream(piece("4", logprobs=logprobs)))
    assert (reply.tokens is not None) is tells


def test_no_answer_is_too_odd_to_be_read():
    deep, _, _ = asked((400, {}, [b"[" * 200_000]))
    assert deep.error.startswith("400: ")
    huge = piece("a", logprobs={"content": [{"token": "a", "logprob": -(10**400)}]})
    reply, _, _ = asked(stream(huge))
    assert (reply.text, reply.tokens) == ("a", None)
    headers = {"content-type": "text/event-stream; charset=rot13"}
    reply, _, _ = asked((200, headers, [b"data: " + LINE + b"\n\n"]))
    assert reply.text == "one\u2028two"


SECRET = "sk/SECRET+0123456789/abc=&"


@pytest.mark.parametrize(
    "written",
    [
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        html.escape(SECRET),
        "sk&#x2F;SECRET&#x2B;0123456789&#x2F;abc&#x3D;&#x26;",
        "sk&#47;SECRET&#43;0123456789&#47;abc&#61;&#38;",
        json.dumps(SECRET).strip('"').replace("/", "\\/"),
    ],
)
@pytest.mark.parametrize("before", [0, 150, 190, 390])
def test_no_spelling_of_a_key_and_no_part_of_it_is_in_an_error(written, before):
    page = ("x" * before + f"<a href='{written}'>").encode()
    reply, _, _ = asked((403, {"content-type": "text/html"}, [page]), keys=(SECRET,))
    assert "SECRET" not in reply.error
    assert "[key]" in reply.error or before > 300


def shown(*tokens):
    return {"content": [{"token": text, "logprob": value} for text, value in tokens]}


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [None]},
        {"choices": 3},
        {"choices": [{"delta": None, "logprobs": [1]}]},
        {"choices": [{"delta": {"content": None}, "logprobs": {"content": [None]}}]},
        {"choices": [{"delta": {}, "logprobs": {"content": [{"logprob": None}]}}]},
        {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": -1}}},
        {"choices": [], "usage": 7},
    ],
)
def test_odd_chunks_are_passed_over(chunk):
    reply, _, _ = asked(stream(chunk, piece("a")))
    assert (reply.ok, reply.text, reply.counters) == (True, "a", {})


def test_content_in_parts_is_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    reply, _, _ = asked(stream({"choices": [{"delta": {"content": parts}}]}))
    assert reply.text == "ab"


def test_logprobs_are_the_first_tokens_or_nobodys():
    whole, _, _ = asked(stream(piece("a", logprobs=shown(("a", -0.1))), piece("b")))
    assert whole.tokens[0].text == "a"
    late, _, _ = asked(stream(piece("a"), piece("b", logprobs=shown(("b", -0.1)))))
    assert late.tokens is None
    null, _, _ = asked(stream(piece("a", logprobs=shown(("a", None), ("b", -0.2)))))
    assert null.tokens is None or null.tokens[0].text == "b"


@pytest.mark.parametrize("key", ["sk-abc/def-0451", 'sk-"quoted"-0451', "sk-back\\slash-0451"])
def test_a_key_is_hidden_however_it_is_spelled(key):
    for said in (key, json.dumps(key), json.dumps(key).replace("/", "\\/"), repr([key])):
        reply, _, _ = asked(refusal(400, {"detail": [{"input": said}]}), keys=(key,))
        assert "0451" not in reply.error, reply.error
    long = "x" * 390 + key
    reply, _, _ = asked(refusal(400, {"error": {"message": long}}), keys=(key,))
    assert key[:6] not in reply.error
