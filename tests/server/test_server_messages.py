"""Messages and tools: a closed set of roles, keys and parts; every refusal names its place."""

import pytest
from scripted import Server, error, image

from surefoot.chat.request import ChatInput, Image, Message, Role, ToolCall, images_in
from surefoot.server.messages import OTHER_PARTS

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.fixture(scope="module")
def server():
    return Server()


def read(server, *messages, **more):
    response = server.chat(messages=list(messages), **more)
    assert response.status_code == 200, response.text
    return server.asked.input.messages


def refused(server, *messages, **more):
    return error(server.chat(messages=list(messages), **more))


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_every_role_is_read(server, role):
    [message] = read(server, {"role": role, "content": "x", "name": "n"})
    assert message == Message(role=Role(role), content="x", name="n")


@pytest.mark.parametrize("role", ["function", "User", "", None, 1, ["user"], "<|im_end|>"])
def test_any_other_role_is_refused(server, role):
    found = refused(server, {"role": "user", "content": "x"}, {"role": role, "content": "x"})
    assert found["param"] == "messages[1].role"
    assert "system, developer, user, assistant, tool" in found["message"]
    assert refused(server, {"content": "x"})["param"] == "messages[0].role"


def test_text_parts_are_joined_without_anything_between(server):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]
    [message] = read(server, {"role": "user", "content": parts})
    assert message.content == "a b"


@pytest.mark.parametrize("kind", sorted(OTHER_PARTS))
def test_other_parts_are_refused_with_their_place_and_the_reason(server, kind):
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": "x"}}]
    found = refused(server, {"role": "user", "content": parts})
    assert found["param"] == "messages[0].content[1]"
    assert found["message"].endswith(f"is of type '{kind}': {OTHER_PARTS[kind]}")


def test_images_keep_their_places_among_the_text(server):
    def text(one):
        return {"type": "text", "text": one}

    def seen(at, file):
        return Image(file, f"messages[0].content[{at}]")

    def content(*parts):
        [message] = read(server, {"role": "user", "content": list(parts)})
        return message.content

    assert content(image(b"1")) == (seen(0, b"1"),)
    assert content(text("a"), text("b"), image(b"1"), text("c"), text(" d"), image(b"2")) == (
        "ab",
        seen(2, b"1"),
        "c d",
        seen(5, b"2"),
    )
    # Text that holds nothing stands between nothing.
    assert content(text(""), image(b"1"), text(""), image(b"1"), text("")) == (
        seen(1, b"1"),
        seen(3, b"1"),
    )
    assert content(text(""), text("")) == ""


def test_images_may_be_in_any_turn_of_the_user(server):
    found = read(
        server,
        {"role": "user", "content": [image(b"1")]},
        {"role": "assistant", "content": "red"},
        {"role": "user", "content": "and?"},
        {"role": "user", "content": [image(b"2"), image(b"1")]},
    )
    assert images_in(ChatInput(found)) == [
        Image(b"1", "messages[0].content[0]"),
        Image(b"2", "messages[3].content[0]"),
        Image(b"1", "messages[3].content[1]"),
    ]


@pytest.mark.parametrize("role", ["system", "developer", "assistant", "tool"])
def test_an_image_of_anybody_but_the_user_is_refused(server, role):
    found = refused(server, {"role": role, "content": [image(b"1")]})
    assert found["message"] == (
        f"image 1 (messages[0].content[0]) is in a message of role '{role}': only a user's are read"
    )
    assert found["param"] == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (None, "messages[0].content"),
        (1, "messages[0].content"),
        ({}, "messages[0].content"),
        ([], "messages[0].content"),
        (["x"], "messages[0].content[0]"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        ([{"type": "text", "text": 1}], "messages[0].content[0].text"),
        ([{"type": "text", "text": "a", "x": 1}], "messages[0].content[0].x"),
        ([{"type": "refusal", "refusal": "a"}], "messages[0].content[0].type"),
        ([{"text": "a"}], "messages[0].content[0].type"),
    ],
)
def test_content_that_is_no_text_is_refused(server, content, where):
    assert refused(server, {"role": "user", "content": content})["param"] == where


def test_null_content_is_empty_beside_tool_calls_only(server):
    for content in ({"content": None}, {}):
        [message] = read(server, {"role": "assistant", **content, "tool_calls": [CALL]})
        assert message.content == ""
        assert message.tool_calls == (ToolCall("c1", "f", '{"a": 1}'),)
        found = refused(server, {"role": "assistant", **content})
        assert found["param"] == "messages[0].content"
        found = refused(server, {"role": "assistant", **content, "tool_calls": []})
        assert found["param"] == "messages[0].content"


def test_an_answer_of_the_api_can_be_sent_back_as_it_came(server):
    answer = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert read(server, answer) == (Message(role=Role.ASSISTANT, content="x"),)
    assert refused(server, answer | {"refusal": "no"})["param"] == "messages[0].refusal"


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("user", "tool_calls"),
        ("user", "tool_call_id"),
        ("assistant", "tool_call_id"),
        ("tool", "tool_calls"),
        ("system", "weight"),
        ("assistant", "reasoning_content"),
    ],
)
def test_a_key_that_a_role_does_not_have_is_refused(server, role, key):
    assert refused(server, {"role": role, "content": "x", key: [CALL]})["param"] == (
        f"messages[0].{key}"
    )


def test_a_tool_message_carries_its_call(server):
    [message] = read(server, {"role": "tool", "content": "42", "tool_call_id": "c1"})
    assert message.tool_call_id == "c1"


BAD_CALLS = [
    (1, ""),
    ({}, "[0].function"),
    ([1], "[0]"),
    ([CALL | {"type": "custom"}], "[0].type"),
    ([CALL | {"x": 1}], "[0].x"),
    ([CALL | {"id": None}], "[0].id"),
    ([CALL | {"function": None}], "[0].function"),
    ([CALL | {"function": {"name": "f"}}], "[0].function.arguments"),
    ([CALL | {"function": {"name": "f", "arguments": {}}}], "[0].function.arguments"),
    ([CALL | {"function": {"arguments": ""}}], "[0].function.name"),
    ([CALL, CALL | {"function": {"name": "f", "arguments": "", "x": 1}}], "[1].function.x"),
]


@pytest.mark.parametrize(("calls", "where"), BAD_CALLS)
def test_a_wrong_tool_call_is_refused(server, calls, where):
    if calls == {}:
        calls = [{}]
        where = "[0].function"
    found = refused(server, {"role": "assistant", "content": "", "tool_calls": calls})
    assert found["param"] == f"messages[0].tool_calls{where}"


@pytest.mark.parametrize(
    ("tool", "where"),
    [
        (1, ""),
        ({"function": {"name": "f"}}, ".type"),
        ({"type": "web_search"}, ".type"),
        ({"type": "function"}, ".function"),
        ({"type": "function", "function": {"name": "f"}, "x": 1}, ".x"),
        ({"type": "function", "function": {}}, ".function.name"),
        ({"type": "function", "function": {"name": ""}}, ".function.name"),
        ({"type": "function", "function": {"name": "a b"}}, ".function.name"),
        ({"type": "function", "function": {"name": "x" * 65}}, ".function.name"),
        ({"type": "function", "function": {"name": "f\n"}}, ".function.name"),
        (
            {"type": "function", "function": {"name": "f", "description": 1}},
            ".function.description",
        ),
        ({"type": "function", "function": {"name": "f", "parameters": []}}, ".function.parameters"),
        ({"type": "function", "function": {"name": "f", "strict": True}}, ".function.strict"),
        ({"type": "function", "function": {"name": "f", "x": 1}}, ".function.x"),
    ],
)
def test_a_wrong_tool_is_refused(server, tool, where):
    found = refused(server, {"role": "user", "content": "x"}, tools=[tool])
    assert found["param"] == f"tools[0]{where}"


def test_a_whole_tool_passes_as_it_was_sent(server):
    tool = {
        "type": "function",
        "function": {
            "name": "a.b-c_1",
            "description": "d",
            "parameters": {"type": "object", "properties": {"x": {"type": "number"}}},
            "strict": False,
        },
    }
    read(server, {"role": "user", "content": "x"}, tools=[tool])
    assert server.asked.input.tools == (tool,)


def test_tool_calls_are_counted_over_all_messages(server):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def turns(*counts):
        asked = [{"role": "user", "content": "x"}]
        answers = [{"role": "assistant", "tool_calls": [call] * count} for count in counts]
        return server.chat(messages=[*asked, *answers])

    assert turns(4000, 96).status_code == 200
    found = error(turns(4000, 97), 413)
    assert found["param"] == "messages[2].tool_calls"
    assert "4096 calls" in found["message"]


def test_too_many_messages_are_refused_with_both_numbers(server):
    found = error(server.chat(messages=[{"role": "user", "content": "x"}] * 4097), 413)
    assert found["param"] == "messages"
    assert "4097" in found["message"]
    assert "4096" in found["message"]
    assert server.chat(messages=[{"role": "user", "content": "x"}] * 4096).status_code == 200
