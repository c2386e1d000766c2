"""What a prompt says is in no page, no error and no log line; what a client sends is in no path.

A word is planted wherever a request can hold one, in requests that are answered and in requests
that are refused, and then looked for everywhere. The answers themselves, and ``echo``, may hold it.
"""

import json
import logging
import sys

import pytest
from housed import C, housed
from scripted import CHAT, TEXT, Server, image

from surefoot.errors import EngineError
from surefoot.scheduler import Failed

WORD = "canarybird"
DIGITS = 77777  # a planted token
PAGES = (
    "/health",
    "/metrics",
    "/v1/cache",
    "/v1/models",
    "/v1/models/served",
    "/v1/models/other",
    "/openapi.json",
    "/nothing",
)


def says(role="user", content=WORD, **more):
    return {"role": role, "content": content, **more}


def called(name=WORD, arguments=WORD, **more):
    function = {"name": name, "arguments": arguments}
    return [{"id": WORD, "type": "function", "function": function, **more}]


def tool(**function):
    return [{"type": "function", "function": {"name": "f"} | function}]


ANSWERED = [
    ("chat", {"messages": [says("system"), says(name=WORD), says()]}),
    ("chat", {"messages": [says("assistant", None, tool_calls=called()), says("tool"), says()]}),
    ("chat", {"messages": [says()], "tools": tool(description=WORD, parameters={WORD: WORD})}),
    ("chat", {"messages": [says(content=[{"type": "text", "text": WORD}])], "stop": [WORD]}),
    ("chat", {"messages": [says(content=[image(b"\x01" + WORD.encode())])]}),
    ("chat", {"messages": [says()], "user": WORD, "metadata": {"a": WORD}, "cache_salt": WORD}),
    ("chat", {"messages": [says()], "stream": True}),
    ("text", {"prompt": WORD}),
    ("text", {"prompt": [WORD], "stream": True}),
    ("text", {"prompt": [5] * 20}),
]
REFUSED = [
    ("chat", {"messages": WORD}),
    ("chat", {"messages": [WORD]}),
    ("chat", {"messages": {"content": WORD}}),
    ("chat", {"messages": [says(content={"text": WORD})]}),
    ("chat", {"messages": [says(content=[WORD])]}),
    ("chat", {"messages": [says(content=[{"type": "text", "text": [WORD]}])]}),
    ("chat", {"messages": [says(content=[{"type": "text", "text": WORD, "more": WORD}])]}),
    ("chat", {"messages": [says("assistant", None, tool_calls=WORD), says()]}),
    ("chat", {"messages": [says("assistant", None, tool_calls=[WORD]), says()]}),
    ("chat", {"messages": [says("assistant", "", tool_calls=called([WORD])), says()]}),
    ("chat", {"messages": [says("assistant", "", tool_calls=called(arguments=[WORD])), says()]}),
    ("chat", {"messages": [says("tool", tool_call_id=[WORD])]}),
    ("chat", {"messages": [says(name=[WORD])]}),
    ("chat", {"messages": [says(content=WORD * 200)]}),
    ("chat", {"messages": [says(content=[image(b"")])]}),
    ("chat", {"messages": [says(content=[image("data:image/png;base64," + WORD)])]}),
    ("chat", {"messages": [says(content=[image("data:image/png," + WORD)])]}),
    ("chat", {"messages": [says(content=[image(WORD.encode(), detail="high")])]}),
    ("chat", {"messages": [says("system", [image(WORD.encode())])]}),
    ("chat", {"messages": [says(content=[image("file:///" + WORD)])]}),
    ("chat", {"messages": [says(content=[image("https://example.org/" + WORD)])]}),
    ("chat", {"messages": [says()], "tools": WORD}),
    ("chat", {"messages": [says()], "tools": [WORD]}),
    ("chat", {"messages": [says()], "tools": tool(name=f"{WORD} !")}),
    ("chat", {"messages": [says()], "tools": tool(description=[WORD])}),
    ("chat", {"messages": [says()], "tools": tool(parameters=[WORD])}),
    ("chat", {"messages": [says()], "tools": tool(strict=WORD)}),
    ("chat", {"messages": [says()], "stop": {WORD: WORD}}),
    ("chat", {"messages": [says()], "stop": [WORD * 100]}),
    ("chat", {"messages": [says()], "cache_salt": f"{WORD}/"}),
    ("chat", {"messages": [says()], "cache_salt": [WORD]}),
    ("chat", {"messages": [says()], "temperature": 9}),
    ("text", {"prompt": {WORD: WORD}}),
    ("text", {"prompt": [WORD, WORD]}),
    ("text", {"prompt": [[WORD]]}),
    ("text", {"prompt": [DIGITS, DIGITS, WORD]}),
    ("text", {"prompt": [DIGITS, -1]}),
    ("text", {"prompt": WORD * 200}),
    ("text", {"prompt": ""}),
]
BODIES = [
    f'{{"model": "served", "prompt": "{WORD}',
    f'{{"model": "served", "prompt": {WORD}}}',
    f'["{WORD}"]',
    f'"{WORD}"',
    f'{{"model": "served", "prompt": "{WORD}", "prompt": "{WORD}"}}',
    f'{{"model": "served", "prompt": "{WORD}\\ud800"}}',
    f'{{"model": "served", "prompt": "{WORD}", "temperature": 1e999}}',
]


def assert_silent(text):
    assert WORD not in text
    assert str(DIGITS) not in text


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.DEBUG)
    return caplog


def pages(server):
    return "".join(server.get(path).text for path in PAGES)


def test_a_prompt_that_is_answered_is_nowhere_else(logged, tmp_path):
    with housed(tmp_path, idle=4) as house:
        for endpoint, fields in ANSWERED:
            for _ in range(2):
                response = getattr(house, endpoint)(**{"max_tokens": 3} | fields)
                assert response.status_code == 200, response.text
                assert_silent(response.text)
        assert_silent(pages(house))
        assert any(receipt.restored_tokens for receipt in house.receipts)
        assert house.bugs == []
    assert_silent(logged.text)


def test_a_prompt_that_is_refused_is_not_repeated(logged):
    with housed() as house:
        for endpoint, fields in REFUSED:
            response = getattr(house, endpoint)(**fields)
            assert response.status_code in (400, 413), (fields, response.text)
            assert_silent(response.text)
        for body in BODIES:
            response = house.body(body.encode(), "/v1/completions")
            assert response.status_code == 400
            assert_silent(response.text)
        assert_silent(pages(house))
        assert house.bugs == []
    assert_silent(logged.text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [EngineError("out of memory"), ZeroDivisionError("by zero")])
def test_a_prompt_whose_turn_fails_is_not_repeated(logged, stream, error):
    server = Server(lambda request: [Failed(error, None)])
    for endpoint, fields in ANSWERED:
        response = getattr(server, endpoint)(**fields | {"stream": stream})
        assert response.status_code == 500
        assert_silent(response.text)
    assert_silent(logged.text)


def test_a_key_is_not_repeated(logged):
    server = Server(api_keys=(f"{WORD}-1",))
    for sent in (f"Bearer {WORD}", f"Bearer {WORD}-1", f"Basic {WORD}", WORD):
        for path in PAGES:
            assert_silent(server.get(path, headers={"authorization": sent}).text)
    assert_silent(logged.text)


def test_a_key_of_any_length_in_an_object_is_shown_no_longer_than_other_values():
    body = json.dumps(TEXT)[:-1] + f', "{"x" * 10_000}": 1, "{"x" * 10_000}": 2}}'
    assert len(Server().body(body.encode(), "/v1/completions").text) < 500
    assert len(Server().text(**{"y" * 10_000: 1}).text) < 500


# --- paths ---------------------------------------------------------------------------------------

SEEN = []
WATCHED = ("open", "os.", "shutil.", "sqlite3.connect", "glob.", "pathlib.")


def _watch(event, arguments):
    if SEEN and event.startswith(WATCHED):
        SEEN.append(f"{event} {arguments!r}")


sys.addaudithook(_watch)  # for good: there is no way to take a hook out again


@pytest.fixture
def watched():
    SEEN.append("begin")
    yield SEEN
    SEEN.clear()


NASTY = (WORD, f"../{WORD}", f"..\\{WORD}", f"/{WORD}", f"..{WORD}..", f"{WORD}\0", f"C:{WORD}")


def test_nothing_that_a_client_sends_is_part_of_a_path(tmp_path, watched):
    store = tmp_path / "store"
    with housed(store, api_keys=tuple(NASTY[:3])) as house:
        headers = {"authorization": f"Bearer {WORD}"}
        for one in NASTY:
            url = image(f"file:///{one}")
            house.chat(headers, cache_salt=one)
            house.chat(headers, model=one)
            house.chat(headers, user=one, prompt_cache_key=one, metadata={one: one})
            house.chat(headers, messages=[says(content=[url])])
            house.chat(headers, messages=[says(content=[image(b"\x01" + one.encode())])])
            house.chat(headers, messages=[says(name=one, content=one)])
            house.text(headers, prompt=one * C)
            house.text({"authorization": f"Bearer {one}".encode()}, prompt=one * C)
            house.chat(headers | {"x-surefoot-cache": "../use", "x-request-id": one[:6]})
            for path in (f"/v1/models/{one}", f"/v1/cache/{one}", f"/{one}"):
                house.get(path.replace("\0", "%00"), headers=headers)
        house.cache.drain(20)
        assert house.cache.status()["tiers"]["ssd"]["bytes"] > 0
    opened = [line for line in watched if str(store) in line]
    assert len(opened) > 10  # the watch works
    assert [line for line in watched if WORD in line] == []
    outside = {path.name for path in tmp_path.iterdir()} - {"store"}
    assert outside == set()
    names = [path.relative_to(store).as_posix() for path in store.rglob("*")]
    assert [name for name in names if WORD in name or ".." in name] == []


def test_the_default_chat_is_answered():
    # What every refusal above is measured against.
    with housed() as house:
        assert house.chat(**CHAT | {"max_tokens": 2}).status_code == 200
