"""Events in OpenAI's shapes: log-probabilities, usage, and where the receipt stands."""

import pytest
from scripted import RECEIPT, Server, chunks, done

from surefoot.receipt import Finish
from surefoot.scheduler import Delta, TokenText
from surefoot.server.shapes import LEAST_LOGPROB, unfinished


def test_echo_comes_first_plain_and_streamed():
    assert Server().text(echo=True).json()["choices"][0]["text"] == "onceHello"
    found = chunks(Server().text(echo=True, stream=True))
    assert [one["choices"][0]["text"] for one in found] == ["once", "Hel", "lo", ""]


HEL = {
    "token": "Hel",
    "logprob": -0.5,
    "bytes": [72, 101, 108],
    "top_logprobs": [
        {"token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108]},
        {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xC3]},
    ],
}


def test_chat_logprobs_are_openais_plain_and_streamed_alike():
    asked = {"logprobs": True, "top_logprobs": 2}
    plain = Server().chat(**asked).json()["choices"][0]["logprobs"]
    assert plain["content"][0] == HEL
    assert plain["refusal"] is None
    streamed = [
        one["choices"][0]["logprobs"] for one in chunks(Server().chat(stream=True, **asked))
    ]
    assert [one for part in streamed if part for one in part["content"]] == plain["content"]


def test_text_logprobs_are_openais_plain_and_streamed_alike():
    plain = Server().text(logprobs=2).json()["choices"][0]["logprobs"]
    assert plain == {
        "tokens": ["Hel", "lo"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [
            {"Hel": -0.5, "\ufffd": -9999.0},
            {"\ufffd": -0.1, "lo": -0.25},
        ],
        "text_offset": [0, 3],
    }
    found = [
        one["choices"][0]["logprobs"] for one in chunks(Server().text(stream=True, logprobs=2))
    ]
    parts = [one for one in found if one]
    assert {key: [item for one in parts for item in one[key]] for key in plain} == plain


def test_held_back_text_still_shows_its_tokens_logprobs():
    token = TokenText(1, "x", b"x", -1.0, ())
    server = Server(lambda request: [Delta("", (token,)), Delta("x", ()), done()])
    _, held, text, _ = chunks(server.chat(stream=True, logprobs=True))
    assert held["choices"][0]["delta"] == {"content": ""}
    assert held["choices"][0]["logprobs"]["content"][0]["token"] == "x"
    assert text["choices"][0]["logprobs"] is None


def test_offsets_count_whole_characters():
    halves = [TokenText(1, "\ufffd", b"\xc3", -1.0, ()), TokenText(2, "\ufffd", b"\xa9", -1.0, ())]
    after = TokenText(3, "z", b"z", -1.0, ())
    server = Server(lambda request: [Delta("éz", (*halves, after)), done()])
    assert server.text(logprobs=0).json()["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1]


@pytest.mark.parametrize(("finish", "reason"), [(Finish.STOP, "stop"), (Finish.LENGTH, "length")])
def test_the_finish_is_the_receipts(finish, reason):
    server = Server(lambda request: [done(finish=finish)])
    assert server.chat().json()["choices"][0]["finish_reason"] == reason
    assert chunks(server.chat(stream=True))[-1]["choices"][0]["finish_reason"] == reason


def test_an_empty_answer_is_an_answer():
    server = Server(lambda request: [done()])
    assert server.chat().json()["choices"][0]["message"]["content"] == ""
    assert len(chunks(server.chat(stream=True))) == 2


def test_only_a_turn_that_was_cut_off_is_unfinished():
    ended = {finish: unfinished(done(finish=finish)) for finish in Finish}
    assert {finish for finish, error in ended.items() if error is None} == {
        Finish.STOP,
        Finish.LENGTH,
        Finish.TOOL_CALLS,
    }


def test_infinity_has_a_stand_in_everywhere():
    token = TokenText(1, "x", b"x", float("-inf"), (("x", b"x", float("-inf")),))
    server = Server(lambda request: [Delta("x", (token,)), done()])
    assert str(LEAST_LOGPROB) in server.chat(logprobs=True, top_logprobs=1).text
    shown = server.text(logprobs=1).json()["choices"][0]["logprobs"]
    assert shown["token_logprobs"] == [LEAST_LOGPROB]
    assert shown["top_logprobs"] == [{"x": LEAST_LOGPROB}]


def test_the_receipt_is_in_the_last_chunk_only():
    for endpoint in ("chat", "text"):
        for more in ({}, {"stream_options": {"include_usage": True}}):
            found = chunks(getattr(Server(), endpoint)(stream=True, **more))
            assert ["surefoot" in one for one in found] == [False] * (len(found) - 1) + [True]
            assert found[-1]["surefoot"]["sources"] == RECEIPT.sources
