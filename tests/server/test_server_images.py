"""Images in a body: the file's exact bytes, or a refusal that names the image and the reason."""

import asyncio
import base64
import binascii
import json

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scripted import CHAT, Server, data_url, done, error, image

from surefoot.chat.request import Image, Role, images_in
from surefoot.errors import RequestError, TooLarge
from surefoot.server import Limits
from surefoot.server.images import ImageReader

PATH = "messages[0].content[0]"
URL = "data:image/png;base64,"


@pytest.fixture(scope="module")
def server():
    return Server()


def ask(server, *parts, **more):
    return server.chat(messages=[{"role": "user", "content": list(parts)}], **more)


def files(server):
    return [one.data for one in images_in(server.asked.input)]


def reader(**limits):
    return ImageReader(Limits(**limits), takes_images=True, fetches=False)


@pytest.mark.parametrize(
    "part",
    [
        image(b"file"),
        image(b"file", detail="auto"),
        image(b"file", detail=None),
        {"type": "image_url", "image_url": data_url(b"file")},
        image(data_url(b"file", "image/x-unheard-of")),
        image("DATA:IMAGE/PNG;BASE64," + base64.b64encode(b"file").decode()),
        image("data:image/jpeg;name=a.jpg;base64," + base64.b64encode(b"file").decode()),
    ],
)
def test_an_image_reaches_the_turn_as_its_files_bytes(server, part):
    assert ask(server, part).status_code == 200
    [message] = server.asked.input.messages
    assert message.content == (Image(b"file", PATH),)


WRONG_URLS = {
    # no data URL
    "": "is no data: URL, and this server reads no files",
    "/etc/passwd": "is no data: URL, and this server reads no files",
    "cat.png": "is no data: URL, and this server reads no files",
    " " + URL + "YQ==": "is no data: URL, and this server reads no files",
    "file:///etc/passwd": "is no data: URL, and this server reads no files",
    "FILE:///etc/passwd": "is no data: URL, and this server reads no files",
    "//host/a.png": "is no data: URL, and this server reads no files",
    "blob:http://x/1": "is a blob: URL",
    "ftp://host/a.png": "is a ftp: URL",
    "C:\\a.png": "is a c: URL",
    "http://host/a.png": "start the server with --image-urls public",
    "HTTPS://host/a.png": "start the server with --image-urls public",
    # a data URL whose head is wrong
    "data:": "without base64",
    "data:image/png;base64": "without base64",
    "data:image/png,YQ==": "without base64",
    "data:image/png;base64;x=1,YQ==": "without base64",
    "data:image/png;name=" + "n" * 200 + ";base64,YQ==": "without base64",
    "data:;base64,YQ==": 'is of the media type "", which is not an image',
    "data:base64,YQ==": "without base64",
    "data:text/plain;base64,YQ==": 'is of the media type "text/plain"',
    "data:image/;base64,YQ==": 'is of the media type "image/"',
    "data:image/png\n;base64,YQ==": "is of the media type",
    "data:video/mp4;base64,YQ==": 'is of the media type "video/mp4"',
    # data that is not strictly base64
    URL: "is empty",
    URL + "YQ": "has 2 characters, no multiple of 4",
    URL + "YQ=": "has 3 characters, no multiple of 4",
    URL + "Y===": "'=' before its end",
    URL + "====": "'=' before its end",
    URL + "=" * 400: "'=' before its end",
    URL + "YQ==YQ==": "'=' before its end",
    URL + "YW Jj": "' ' at character 2",
    URL + "YW\nJjYW": "a line break at character 2: send it in one line",
    URL + "YWJ\tYWJj": "'\\t' at character 3",
    URL + "-_8=": "'-' at character 0; its alphabet ends in '+' and '/'",
    URL + "YWJjYW%3": "'%' at character 6",
    URL + "YWJ\u00e9": "'\\xe9' at character 3",
    URL + "YWJ\U0001f600": "'\\U0001f600' at character 3",
}


@pytest.mark.parametrize(("url", "why"), WRONG_URLS.items(), ids=lambda one: one[:40])
def test_a_url_that_is_not_read_is_refused_by_name_and_reason(server, url, why):
    found = error(ask(server, {"type": "text", "text": "a"}, image(b"fine"), image(url)))
    assert found["param"] == "messages[0].content[2]"
    assert found["message"].startswith("image 2 (messages[0].content[2]) ")
    assert why in found["message"]
    assert len(found["message"]) < 250


WRONG_PARTS = [
    (
        {"type": "image_url"},
        PATH,
        "image 1 (messages[0].content[0]) has an 'image_url' that is neither",
    ),
    (
        {"type": "image_url", "image_url": None},
        PATH,
        "image 1 (messages[0].content[0]) has an 'image_url' that is neither",
    ),
    (
        {"type": "image_url", "image_url": ["x"]},
        PATH,
        "image 1 (messages[0].content[0]) has an 'image_url' that is neither",
    ),
    (
        {"type": "image_url", "image_url": {}},
        PATH,
        "image 1 (messages[0].content[0]) has an 'image_url' whose 'url' is no string",
    ),
    (
        image(7),
        PATH,
        "image 1 (messages[0].content[0]) has an 'image_url' whose 'url' is no string",
    ),
    (image(b"f", format="image/png"), f"{PATH}.image_url.format", "is no field"),
    (image(b"f") | {"uuid": "1"}, f"{PATH}.uuid", "is no field"),
    (image(b"f", detail="low"), PATH, "has the 'detail' \"low\": the model's own processor"),
    (image(b"f", detail="high"), PATH, "only 'auto' is honoured"),
    (image(b"f", detail="original"), PATH, "only 'auto' is honoured"),
    (image(b"f", detail=["auto"]), PATH, "only 'auto' is honoured"),
    (image(b"f", detail=""), PATH, "only 'auto' is honoured"),
]


@pytest.mark.parametrize(("part", "param", "why"), WRONG_PARTS)
def test_a_part_of_another_form_is_refused(server, part, param, why):
    found = error(ask(server, part))
    assert found["param"] == param
    assert why in found["message"]


def test_a_model_that_does_not_see_refuses_images_before_anything_else():
    server = Server(takes_images=False)
    for url in (data_url(b"file"), "http://host/a.png", "nonsense"):
        found = error(ask(server, image(url)))
        assert found["param"] == PATH
        assert found["message"] == f"this model takes text only: '{PATH}' is an image"
    assert server.chat().status_code == 200


@pytest.mark.parametrize("nbytes", [6, 7, 8])  # each padding once
def test_a_file_is_read_up_to_its_limit_and_no_further(nbytes):
    server = Server(limits=Limits(image_bytes=nbytes))
    assert ask(server, image(b"x" * nbytes)).status_code == 200
    found = error(ask(server, image(b"a"), image(b"x" * (nbytes + 1))), 413)
    assert found["message"] == (
        f"image 2 (messages[0].content[1]) has {nbytes + 1} bytes; at most {nbytes} are read of "
        "one image"
    )
    assert (found["param"], found["code"]) == ("messages[0].content[1]", "too_large")


def test_a_file_over_its_limit_is_refused_before_it_is_decoded(monkeypatch):
    def decode(*_, **__):
        raise AssertionError("decoded")

    monkeypatch.setattr("surefoot.server.images.a2b_base64", decode)
    with pytest.raises(TooLarge, match="has 25,000,002 bytes; at most 20,971,520"):
        reader().read_base64("p", "A" * (25_000_002 // 3 * 4), "image/png")


def test_images_are_read_up_to_their_number_and_no_further():
    server = Server(limits=Limits(images=3))
    assert ask(server, *[image(b"a")] * 3).status_code == 200
    messages = [{"role": "user", "content": [image(b"a")] * 2}] * 2
    found = error(server.chat(messages=messages), 413)
    assert found["message"] == (
        "image 4 (messages[1].content[1]) is one too many: at most 3 are read"
    )
    assert found["param"] == "messages[1].content[1]"


def test_the_files_of_one_request_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(Limits, "files_bytes", 10)
    server = Server()
    assert ask(server, image(b"x" * 6), image(b"x" * 4)).status_code == 200
    found = error(ask(server, image(b"x" * 6), image(b"x" * 4), image(b"x")), 413)
    assert found["param"] == "messages[0].content[2]"
    assert "one request's images have at most 10 bytes" in found["message"]


def test_images_make_room_for_themselves_in_the_body_and_text_does_not():
    padding = "x" * 500
    parts = [image(padding.encode()), {"type": "text", "text": ""}]
    body = CHAT | {"messages": [{"role": "user", "content": parts}]}
    text_bytes = len(json.dumps(body)) - len(data_url(padding.encode()))
    fits = Server(limits=Limits(body_bytes=text_bytes))
    assert fits.body(json.dumps(body)).status_code == 200
    found = error(fits.body(json.dumps(body) + " "), 413)
    assert f"larger than {text_bytes} bytes without its images" in found["message"]
    blind = Server(limits=Limits(body_bytes=text_bytes), takes_images=False)
    assert f"{text_bytes} bytes in all" in error(blind.body(json.dumps(body)), 413)["message"]
    found = error(fits.body(json.dumps(body), "/v1/completions"), 413)
    assert f"{text_bytes} bytes in all" in found["message"]


@given(st.binary(min_size=1, max_size=200))
def test_any_file_in_base64_is_read_as_it_is(file):
    data = base64.b64encode(file).decode()
    assert reader().read_base64("p", data, "image/png").data == file
    assert reader(image_bytes=len(file)).read_base64("p", data, "image/png").data == file
    if len(file) > 1:
        with pytest.raises(TooLarge):
            reader(image_bytes=len(file) - 1).read_base64("p", data, "image/png")


ALPHABET = st.text(st.sampled_from("AQgw+/=-_ \n%é"), max_size=12)


@given(st.one_of(ALPHABET, ALPHABET.map(lambda data: URL + data), st.text(max_size=30)))
@example(URL + "QQ==")
@example(URL + "QR==")
def test_whatever_a_url_is_the_bytes_are_those_that_were_encoded_or_it_is_refused(url):
    try:
        found = reader().read_part(PATH, image(url), Role.USER)
    except RequestError as error:
        refused = str(error)
    else:
        refused = None
    if refused is not None:
        assert refused.startswith(f"image 1 ({PATH}) ")
        return
    data = url.partition(",")[2]
    assert found.data == binascii.a2b_base64(data)
    # All but the bits of the last character that carry nothing.
    assert base64.b64encode(found.data).decode()[:-3] == data[:-3]


def test_what_requests_hold_together_is_bounded_and_given_back():
    body = json.dumps(CHAT | {"messages": [{"role": "user", "content": [image(b"x" * 600)]}]})

    class Tight(Limits):
        files_bytes = 700
        chat_body_bytes = len(body)
        room_bytes = 2 * len(body) - 1

    limits = Tight()

    async def story():
        server = Server(lambda request: [], limits=limits)
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

            def post():
                return client.post("/v1/chat/completions", content=body)

            first = asyncio.create_task(post())
            while not server.turns.tickets:
                await asyncio.sleep(0)  # one turn of the loop, not a time
            refused = await post()
            found = error(refused, 503)
            assert "bytes of requests at once" in found["message"]
            assert refused.headers["retry-after"] == "1"
            assert (await client.get("/metrics")).status_code == 200
            server.turns.deliver(done())
            assert (await first).status_code == 200
            server.turns.script = lambda request: [done()]
            assert (await post()).status_code == 200

    asyncio.run(asyncio.wait_for(story(), 20))
