"""A body and headers to a turn: what is honoured reaches it, as it was sent."""

import pytest
from scripted import TEXT, Server, error

from surefoot.chat.request import ChatInput, TextInput, TokensInput
from surefoot.scheduler import CacheMode, Sampling
from surefoot.server.reading import CACHE_HEADER

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_defaults_are_openais_and_the_seed_is_drawn():
    server = Server()
    server.chat()
    turn = server.asked
    assert turn.sampling == Sampling(seed=4242)
    assert (turn.sampling.temperature, turn.sampling.top_p) == (1.0, 1.0)
    assert (turn.max_tokens, turn.stop, turn.ignore_eos, turn.mode) == (
        None,
        (),
        False,
        CacheMode.USE,
    )
    assert (turn.key, turn.cache_salt, turn.id) == (None, None, "chatcmpl-id0")
    server.text()
    assert (server.asked.max_tokens, server.asked.id) == (16, "cmpl-id1")


def test_everything_that_is_honoured_reaches_the_turn():
    server = Server()
    shared = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "seed": 11,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"3": -100, "4": 1.5},
    }
    expected = {**shared, "logit_bias": {3: -100.0, 4: 1.5}}
    more = {"stop": ["a", "b"], "cache_salt": "tenant", "ignore_eos": True}
    server.chat(
        **shared, **more, max_completion_tokens=9, logprobs=True, top_logprobs=3, tools=[TOOL]
    )
    chat = server.asked
    assert chat.sampling == Sampling(**expected, top_logprobs=3)
    assert (chat.max_tokens, chat.stop, chat.cache_salt) == (9, ("a", "b"), "tenant")
    assert chat.ignore_eos
    assert chat.input.tools == (TOOL,)
    server.text(**shared, **more, max_tokens=8, logprobs=0, prompt=[[1, 2]])
    text = server.asked
    assert text.sampling == Sampling(**expected, top_logprobs=0)
    assert (text.max_tokens, text.input) == (8, TokensInput((1, 2)))
    server.text(prompt=["one"], stop="x")
    assert (server.asked.input, server.asked.stop) == (TextInput("one"), ("x",))


def test_logprobs_without_top_logprobs_are_of_the_chosen_token_only():
    server = Server()
    server.chat(logprobs=True)
    assert server.asked.sampling.top_logprobs == 0
    server.chat(logprobs=False)
    assert server.asked.sampling.top_logprobs is None
    assert error(server.chat(logprobs=False, top_logprobs=1))["param"] == "top_logprobs"
    for wrong in (-1, 21, True):
        assert error(server.chat(logprobs=True, top_logprobs=wrong))["param"] == "top_logprobs"


def test_both_names_of_max_tokens_together_are_refused():
    found = error(Server().chat(max_tokens=5, max_completion_tokens=5))
    assert found["param"] == "max_completion_tokens"


def test_tool_choice_none_leaves_the_tools_out_of_the_prompt():
    server = Server()
    assert server.chat(tools=[TOOL], tool_choice="none").status_code == 200
    assert server.asked.input.tools == ()
    assert server.chat(tools=[TOOL], tool_choice="auto").status_code == 200
    assert server.asked.input.tools == (TOOL,)
    assert error(server.chat(tools=[TOOL], tool_choice="required"))["param"] == "tool_choice"


def test_stream_options_need_a_stream_and_known_keys():
    server = Server()
    for options in ({"include_usage": True}, {"include_obfuscation": False}, {}, None):
        assert server.chat(stream=True, stream_options=options).status_code == 200
    for options in ({"include_usage": 1}, {"include_obfuscation": True}, {"x": 1}, []):
        found = error(server.chat(stream=True, stream_options=options))
        assert found["param"].startswith("stream_options")


def test_echo_is_for_text_prompts_without_logprobs():
    server = Server()
    assert error(server.text(echo=True, logprobs=0))["param"] == "echo"
    assert "logprobs" in error(server.text(echo=True, logprobs=0))["message"]
    assert error(server.text(echo=True, prompt=[1, 2]))["param"] == "echo"
    assert server.text(echo=False, logprobs=1).status_code == 200


@pytest.mark.parametrize("mode", list(CacheMode))
def test_the_cache_header_sets_the_mode(mode):
    server = Server()
    assert server.chat(headers={CACHE_HEADER: mode.value}).status_code == 200
    assert server.asked.mode is mode


@pytest.mark.parametrize("sent", ["", "USE", "off", "use,read", "use "])
def test_any_other_cache_header_is_refused(sent):
    headers = [(CACHE_HEADER, sent)]
    if sent == "use ":
        headers = [(CACHE_HEADER, "use"), (CACHE_HEADER, "use")]
    found = error(Server().ask("POST", "/v1/completions", json=TEXT, headers=headers))
    assert found["param"] == CACHE_HEADER
    assert "use, read, write, bypass" in found["message"]


def test_messages_reach_the_turn_as_they_are():
    server = Server()
    server.chat(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert isinstance(server.asked.input, ChatInput)
    assert [one.content for one in server.asked.input.messages] == ["a", "b"]
