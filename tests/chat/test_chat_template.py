"""The chat template: what it has no place for is refused by name, never dropped."""

import pytest
from small_tokenizers import CHATML, FULL

from surefoot.chat.request import ChatInput, Message, Role, ToolCall
from surefoot.chat.template import Template, client_values
from surefoot.errors import RequestError

USER, ASSISTANT, TOOL, DEVELOPER = Role.USER, Role.ASSISTANT, Role.TOOL, Role.DEVELOPER
HELLO = (Message(role=USER, content="hello"),)
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a city"}}
CALL = ToolCall("call_1", "weather", '{"city": "Köln", "days": 2}')


def text(tokenizer, prompt):
    return tokenizer.decode(prompt.tokens(), skip_special_tokens=False)


def refused(chat, messages, tools=()):
    with pytest.raises(RequestError) as caught:
        chat.prompt(ChatInput(messages, tools))
    return caught.value


@pytest.mark.parametrize(
    ("messages", "tools", "field"),
    [
        (HELLO, (WEATHER,), "tools"),
        (
            (*HELLO, Message(role=ASSISTANT, content="", tool_calls=(CALL,))),
            (),
            "messages[1].tool_calls[0]",
        ),
        ((Message(role=USER, content="a", name="ada"),), (), "messages[0].name"),
    ],
)
def test_what_a_template_has_no_place_for_is_refused_by_name(make_chat, messages, tools, field):
    chat, _ = make_chat("byte_level", CHATML)
    error = refused(chat, messages, tools)
    assert error.param == field
    assert f"'{field}'" in str(error)


FIRST_CALL_ONLY = FULL.replace(
    "for call in message.tool_calls or []", "for call in (message.tool_calls or [])[:1]"
)


NO_ARGUMENTS = FULL.replace("{{ call.function.arguments | tojson }}", "")


NO_TEXT_BESIDE_CALLS = FULL.replace(
    "{{ message.content }}", "{% if not message.tool_calls %}{{ message.content }}{% endif %}"
)


NO_TOOL_ROLE = "{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (FIRST_CALL_ONLY, "messages[1].tool_calls[1]"),
        (NO_ARGUMENTS, "messages[1].tool_calls[0].function.arguments"),
        (NO_TEXT_BESIDE_CALLS, "messages[1].content"),
    ],
)
def test_a_template_that_drops_a_part_of_a_message_is_found_out(make_chat, template, field):
    chat, _ = make_chat("byte_level", template)
    both = Message(role=ASSISTANT, content="let me see", tool_calls=(CALL, CALL))
    assert refused(chat, (*HELLO, both)).param == field


def test_a_message_of_a_role_that_a_template_skips_is_refused(make_chat):
    chat, _ = make_chat("byte_level", NO_TOOL_ROLE)
    error = refused(chat, (*HELLO, Message(role=TOOL, content="42", tool_call_id="1")))
    assert error.param == "messages[1].content"


def test_a_tool_messages_id_and_name_are_not_demanded_of_a_template(make_chat):
    chat, tokenizer = make_chat("byte_level", CHATML)
    prompt = chat.prompt(
        ChatInput((*HELLO, Message(role=TOOL, content="42", tool_call_id="1", name="f")))
    )
    assert "<|im_start|>tool\n42<|im_end|>" in text(tokenizer, prompt)


def test_developer_is_system_where_the_template_does_not_know_it(make_chat):
    messages = (Message(role=DEVELOPER, content="be brief"), *HELLO)
    chat, tokenizer = make_chat("byte_level", CHATML)
    assert text(tokenizer, chat.prompt(ChatInput(messages))).startswith("<|im_start|>system\n")
    knowing = "{# developer #}" + CHATML
    chat, tokenizer = make_chat("byte_level", knowing)
    assert text(tokenizer, chat.prompt(ChatInput(messages))).startswith("<|im_start|>developer\n")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + none }}", "can only concatenate"),
        ("{{ messages[0].nothing.more }}", "nothing"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_a_template_that_fails_is_a_refusal_that_says_why(make_chat, template, why):
    chat, _ = make_chat("byte_level", template)
    error = refused(chat, HELLO)
    assert (error.param, why in str(error)) == ("messages", True)


def test_arguments_are_an_object_to_the_template_in_the_clients_order(make_chat):
    chat, tokenizer = make_chat()
    order = ToolCall("1", "f", '{"b": 1, "a": [true, null]}')
    message = Message(role=ASSISTANT, content="", tool_calls=(order,))
    assert '<call>f {"b": 1, "a": [true, null]}' in text(
        tokenizer, chat.prompt(ChatInput((*HELLO, message)))
    )
    for odd in ("", "[1]", "{", '"x"', "[" * 100_000):
        message = Message(role=ASSISTANT, content="", tool_calls=(ToolCall("1", "f", odd),))
        client = client_values(ChatInput((message,)))
        assert client[0]["tool_calls"][0]["function"]["arguments"] == odd


def test_everything_a_client_sent_goes_through_the_mark(make_chat):
    _, tokenizer = make_chat()
    said = Message(role=ASSISTANT, content="c", name="n", tool_call_id="i", tool_calls=(CALL,))
    marked = []
    Template(tokenizer).render(
        ChatInput((said,), (WEATHER,)), mark=lambda value: marked.append(value) or value
    )
    assert marked[0] == WEATHER
    assert marked[1:4] == ["c", "n", "i"]
    assert marked[4]["function"]["name"] == "weather"
