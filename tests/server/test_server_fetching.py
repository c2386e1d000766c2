"""Images behind URLs, fetched over real sockets of this machine.

Nothing here leaves it: a resolver knows the names of ``.test``, and the tests say which of the
addresses of 127.0.0.0/8 are public.
"""

import asyncio
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from scripted import Server, error, hello, image

from surefoot.chat.request import images_in
from surefoot.errors import CapacityError, RequestError, TooLarge
from surefoot.server import Fetcher, Limits
from surefoot.server.fetching import AT_ONCE, LOOKUPS
from surefoot.server.images import Place, Remote

CERTIFICATE = Path(__file__).parent / "pictures.test.pem"
PATIENCE_S = 20
HERE = "127.0.0.1"


def answer(body=b"picture", *, status="200 OK", length=None, **headers):
    """An HTTP answer as bytes; headers that are None are left out."""
    fields = {"content_type": "image/png", "content_length": len(body)} | headers
    lines = [f"HTTP/1.1 {status}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([*lines, "", ""]).encode() + body


def moved(location, status="302 Found", **headers):
    return answer(b"", status=status, location=location, content_type=None, **headers)


class Host:
    """A web server that answers each path as it is told, and remembers what it was asked."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []
        self.open = self.most_open = 0
        self.port = None

    async def __call__(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            path = first.split(" ")[1]
            self.asked.append((path, dict(line.split(": ", 1) for line in lines)))
            self.open += 1
            self.most_open = max(self.open, self.most_open)
            answers = self.answers[path]
            reply = await answers(writer) if callable(answers) else answers
            self.open -= 1
            if reply is not None:
                writer.write(reply)
                await writer.drain()
        except OSError:
            pass  # the fetcher had seen enough
        finally:
            writer.close()

    @property
    def paths(self):
        return [path for path, _ in self.asked]


@asynccontextmanager
async def listening(answers, tls=None):
    host = Host(answers)
    server = await asyncio.start_server(host, HERE, 0, ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    async with server:
        yield host


class Names:
    """A resolver that knows ``*.test`` and counts what it was asked."""

    def __init__(self, **known):
        self.known = {"pictures.test": [HERE], "other.test": [HERE], HERE: [HERE]} | known
        self.asked = []

    async def __call__(self, host, port):
        self.asked.append(host)
        if host not in self.known:
            raise OSError(host)
        return self.known[host]


def fetcher(names=None, **more):
    names = Names() if names is None else names
    more = {"public": lambda address: address.startswith("127."), "deadline_s": PATIENCE_S} | more
    return Fetcher(resolve=names, tls=more.pop("tls", ssl.create_default_context()), **more)


def remote(url, number=1):
    return Remote(Place(number, f"p{number}"), url)


async def fetch(of, *urls, most_bytes=1000, take=lambda place, nbytes: None):
    wanted = [remote(url, number) for number, url in enumerate(urls, 1)]
    found = await of.fetch(wanted, most_bytes=most_bytes, take=take)
    return [found[one.place.path] for one in wanted]


async def refusal(of, *urls, kind=RequestError, **more):
    with pytest.raises(kind) as caught:
        await fetch(of, *urls, **more)
    assert type(caught.value) is kind
    return str(caught.value)


def run(story):
    return asyncio.run(asyncio.wait_for(story, PATIENCE_S))


# --- what is sent --------------------------------------------------------------------------------


def test_a_file_comes_as_it_is_and_nothing_of_ours_goes_along(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")

    async def story():
        async with listening({"/a.png?x=1": answer(b"\x00\xff" * 8)}) as host:
            url = f"http://Pictures.test:{host.port}/a.png?x=1#part"
            assert await fetch(fetcher(), url) == [b"\x00\xff" * 8]
        [(_, headers)] = host.asked
        sent = {name.lower(): value for name, value in headers.items()}
        assert sent.pop("connection") in ("keep-alive", "close")
        assert sent == {
            "host": f"pictures.test:{host.port}",
            "accept": "image/*",
            "accept-encoding": "identity",
            "user-agent": "surefoot",
        }

    run(story())


def test_a_cookie_that_a_host_sets_is_not_sent_back():
    async def story():
        answers = {"/a": moved("/b", set_cookie="id=7; Path=/"), "/b": answer()}
        async with listening(answers) as host:
            assert await fetch(fetcher(), f"http://pictures.test:{host.port}/a") == [b"picture"]
        assert host.paths == ["/a", "/b"]
        assert not any("cookie" in map(str.lower, headers) for _, headers in host.asked)

    run(story())


# --- whom it connects to -------------------------------------------------------------------------


def test_a_name_is_looked_up_once_and_the_checked_address_is_connected_to():
    async def story():
        async with listening({"/": answer()}) as host:
            names = Names()
            checked = []
            public = lambda address: checked.append(address) or True  # noqa: E731
            await fetch(fetcher(names, public=public), f"http://pictures.test:{host.port}/")
            assert names.asked == ["pictures.test"]
            assert checked == [HERE]

    run(story())


@pytest.mark.parametrize(
    "addresses", [[], ["10.0.0.1"], [HERE, "10.0.0.1"], ["10.0.0.1", HERE], [HERE, "::1"], None]
)
def test_a_host_is_asked_only_if_every_address_is_public(addresses):
    async def story():
        async with listening({"/": answer()}) as host:
            known = {} if addresses is None else {"odd.test": addresses}
            said = await refusal(fetcher(Names(**known)), f"http://odd.test:{host.port}/")
            # A name that is not there and one that is private read alike.
            assert said == "image 1 (p1) has a host that is not at a public address"
            assert host.asked == []

    run(story())


def test_this_machine_is_not_public_by_the_rule_that_is_used_unless_told_otherwise():
    async def story():
        async with listening({"/": answer()}) as host:
            no_name = "a" * 70 + ".test"
            for name in (HERE, "127.1", "2130706433", "0x7f.1", "localhost", "[::1]", no_name):
                url = f"http://{name}:{host.port}/"
                said = await refusal(Fetcher(deadline_s=PATIENCE_S), url)
                assert said == "image 1 (p1) has a host that is not at a public address"
            assert host.asked == []

    run(story())


def test_the_next_address_is_tried_where_one_cannot_be_reached():
    async def story():
        async with listening({"/": answer()}) as host:
            names = Names(two=["127.0.0.2", HERE], none=["127.0.0.2"])
            assert await fetch(fetcher(names), f"http://two:{host.port}/") == [b"picture"]
            said = await refusal(fetcher(names), f"http://none:{host.port}/")
            assert "has a host that cannot be reached" in said

    run(story())


def test_a_certificate_is_checked_for_the_name_and_not_for_the_address():
    async def story():
        serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serves.load_cert_chain(CERTIFICATE)
        trusts = ssl.create_default_context(cafile=CERTIFICATE)
        async with listening({"/": answer()}, tls=serves) as host:
            url = f"https://pictures.test:{host.port}/"
            assert await fetch(fetcher(tls=trusts), url) == [b"picture"]
            other = f"https://other.test:{host.port}/"
            assert "valid certificate" in await refusal(fetcher(tls=trusts), other)
            stranger = fetcher(tls=httpx.create_ssl_context(trust_env=False))
            assert "valid certificate" in await refusal(stranger, url)
            assert host.paths == ["/"]

    run(story())


# --- where it is led -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_three_redirects_are_followed_and_no_fourth(status):
    async def story():
        answers = {f"/{n}": moved(f"/{n - 1}", status=f"{status} X") for n in range(1, 5)}
        async with listening(answers | {"/0": answer()}) as host:
            url = f"http://pictures.test:{host.port}"
            assert await fetch(fetcher(), f"{url}/3") == [b"picture"]
            assert host.paths == ["/3", "/2", "/1", "/0"]
            assert "leads on more than 3 times" in await refusal(fetcher(), f"{url}/4")
            assert host.paths[4:] == ["/4", "/3", "/2", "/1"]

    run(story())


def test_each_redirect_is_looked_up_and_checked_anew():
    async def story():
        async with listening({"/b": answer()}) as host:
            host.answers["/a"] = moved(f"//other.test:{host.port}/b")
            host.answers["/c"] = moved(f"http://private.test:{host.port}/b")
            host.answers["/d"] = moved(f"http://10.0.0.1:{host.port}/b")
            names = Names(**{"private.test": ["10.0.0.1"], "10.0.0.1": ["10.0.0.1"]})
            of, url = fetcher(names), f"http://pictures.test:{host.port}"
            assert await fetch(of, f"{url}/a") == [b"picture"]
            assert names.asked == ["pictures.test", "other.test"]
            assert host.asked[1][1]["host"] == f"other.test:{host.port}"
            for path in ("/c", "/d"):
                assert "is not at a public address" in await refusal(of, url + path)
            # A name that was public is not public for ever.
            host.answers["/e"] = moved("/b")
            flips = iter((True, False))
            of = fetcher(Names(), public=lambda address: next(flips))
            assert "is not at a public address" in await refusal(of, f"{url}/e")
            assert host.paths == ["/a", "/b", "/c", "/d", "/e"]

    run(story())


REDIRECTS = {
    "file:///etc/passwd": "leads to a file: URL",
    "ftp://pictures.test/a": "leads to a ftp: URL",
    "data:image/png;base64,YQ==": "that is none",
    "http://me:secret@pictures.test/": "a user or a password",
    "http://pictures.test:22/": "a port other than",
    "http://[::1/": "its host broke off",
    "http://xn--/": "that is none",
    "": "does not say where",
}


@pytest.mark.parametrize(("location", "why"), REDIRECTS.items())
def test_a_redirect_that_the_first_url_could_not_be_is_refused(location, why):
    async def story():
        async with listening({"/": moved(location)}) as host:
            assert why in await refusal(fetcher(), f"http://pictures.test:{host.port}/")

    run(story())


def test_a_redirect_does_not_leave_https():
    async def story():
        serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serves.load_cert_chain(CERTIFICATE)
        trusts = ssl.create_default_context(cafile=CERTIFICATE)
        async with listening({"/": answer()}) as plain, listening({}, tls=serves) as host:
            host.answers["/"] = moved(f"http://pictures.test:{plain.port}/")
            url = f"https://pictures.test:{host.port}/"
            assert "leads from https to http" in await refusal(fetcher(tls=trusts), url)
            assert plain.asked == []

    run(story())


URLS = {
    "http://": "without a host",
    "http:///a.png": "without a host",
    "http:a.png": "without a host",
    "https://me@pictures.test/": "a user or a password",
    "http://:secret@pictures.test/": "a user or a password",
    "http://pictures.test:25/": "a port other than",
    "http://pictures.test:1023/": "a port other than",
    "http://pictures.test:99999/": "a port other than",
    "http://pictures.test:port/": "that is none",
    "http://pictures.test/\n": "that is none",
    "http://[::1/": "that is none",
    "http://xn--/": "that is none",
    "https://xn--a-0000000000.com/a.png": "that is none",
    "http://" + "a" * 70 + ".test/": "is not at a public address",
    "http://" + "\u00e9" * 70 + ".test/": "that is none",
    "http://x/" + "a" * 70_000: "that is none",
}


@pytest.mark.parametrize(("url", "why"), URLS.items(), ids=lambda one: one[:40])
def test_a_url_that_is_not_fetched_is_refused_by_name_and_reason(url, why):
    said = run(refusal(fetcher(), url))
    assert said.startswith("image 1 (p1) has a ")
    assert why in said
    assert "secret" not in said


# --- what comes back -----------------------------------------------------------------------------

REPLIES = {
    "a page": (answer(content_type="text/html"), "media type 'text/html', which is no image's"),
    "a drawing": (answer(content_type="application/pdf"), "which is no image's"),
    "no type": (answer(content_type=None), "media type '', which is no image's"),
    "not found": (answer(status="404 Not Found"), "was answered with status 404"),
    "no content": (answer(b"", status="204 No Content"), "was answered with status 204"),
    "a part": (answer(status="206 Partial Content"), "was answered with status 206"),
    "not modified": (answer(b"", status="304 Not Modified"), "was answered with status 304"),
    "gzip": (answer(content_encoding="gzip"), "in a compressed form"),
    "two codings": (answer(content_encoding="identity, br"), "in a compressed form"),
    "nothing": (answer(b""), "is empty"),
    "half": (answer(content_length=99), "its host broke off"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", "its host broke off"),
    "silence": (b"", "its host broke off"),
    "long headers": (answer(x="a" * 200_000), "its host broke off"),
}


@pytest.mark.parametrize(("reply", "why"), REPLIES.values(), ids=list(REPLIES))
def test_an_answer_that_is_no_whole_image_is_refused(reply, why):
    async def story():
        async with listening({"/": reply}) as host:
            said = await refusal(fetcher(), f"http://pictures.test:{host.port}/")
            assert said.startswith("image 1 (p1) ")
            assert why in said

    run(story())


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "IMAGE/x-new; charset=binary"},
        {"content_type": "application/octet-stream"},
        {"content_type": "binary/octet-stream"},
        {"content_encoding": "identity"},
        {"content_length": None},
    ],
)
def test_an_answer_that_may_be_an_image_is_taken(headers):
    async def story():
        async with listening({"/": answer(**headers)}) as host:
            url = f"http://pictures.test:{host.port}/"
            assert await fetch(fetcher(), url) == [b"picture"]

    run(story())


async def endless(writer):
    """Claims one byte more than nothing and never stops."""
    writer.write(answer(b"", content_length=None, transfer_encoding="chunked"))
    while True:
        writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await writer.drain()


def test_a_file_is_read_up_to_its_limit_and_no_further():
    async def story():
        answers = {"/ok": answer(b"x" * 1000), "/more": answer(b"x" * 1001), "/endless": endless}
        async with listening(answers) as host:
            url = f"http://pictures.test:{host.port}"
            assert await fetch(fetcher(), f"{url}/ok") == [b"x" * 1000]
            for path in ("/more", "/endless"):
                said = await refusal(fetcher(), url + path, kind=TooLarge)
                assert said == "image 1 (p1) has more than 1,000 bytes, the most of one image"

    run(story())


def test_what_comes_is_counted_and_may_be_refused_for_now():
    async def story():
        counted = {}

        def take(place, nbytes):
            counted[place.path] = counted.get(place.path, 0) + nbytes
            if sum(counted.values()) > 30:
                raise CapacityError("full")

        async with listening({"/": answer(b"x" * 15)}) as host:
            url = f"http://pictures.test:{host.port}/"
            assert await fetch(fetcher(), url, url, take=take) == [b"x" * 15] * 2
            assert counted == {"p1": 15, "p2": 15}
            assert await refusal(fetcher(), url, take=take, kind=CapacityError) == "full"

    run(story())


# --- how long and how many -----------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", answer(b"")[:20], answer(b"abc", content_length=9)])
def test_a_host_that_does_not_come_to_an_end_is_given_up(begun):
    async def story():
        async def hangs(writer):
            writer.write(begun)
            await asyncio.Event().wait()

        async with listening({"/": hangs}) as host:
            url = f"http://pictures.test:{host.port}/"
            said = await refusal(fetcher(deadline_s=0.1), url, url)
            assert said == "image 1 (p1) did not arrive within 0.1 s"

    run(story())


def test_one_requests_images_are_fetched_a_few_at_once_and_keep_their_order():
    async def story():
        full, go_on = asyncio.Event(), asyncio.Event()

        async def waits(writer):
            if host.open == AT_ONCE:
                full.set()
            await go_on.wait()
            return answer()

        async with listening({"/w": waits}) as host:
            host.answers |= {f"/{n}": answer(b"file %d" % n) for n in range(20)}
            url = f"http://pictures.test:{host.port}"
            many = asyncio.create_task(fetch(fetcher(), *[f"{url}/w"] * 24))
            await full.wait()
            for _ in range(300):
                await asyncio.sleep(0)  # a turn of the loop for whoever else would come in
            assert host.most_open == AT_ONCE == 8
            go_on.set()
            await many
            assert host.most_open == AT_ONCE
            files = await fetch(fetcher(), *[f"{url}/{n}" for n in range(20)])
            assert files == [b"file %d" % n for n in range(20)]

    run(story())


def test_the_first_image_that_fails_ends_the_others():
    async def story():
        gone = asyncio.Event()

        async def hangs(writer):
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()

        async with listening({"/hangs": hangs, "/404": answer(status="404 X")}) as host:
            url = f"http://pictures.test:{host.port}"
            said = await refusal(fetcher(), f"{url}/hangs", f"{url}/404")
            assert said == "image 2 (p2) was answered with status 404"

    run(story())


def test_a_lookup_that_was_given_up_keeps_its_place_until_it_ends():
    async def story():
        answered = asyncio.Event()
        asked = []

        async def slow(host, port):
            asked.append(host)
            await answered.wait()
            return [HERE]

        async with listening({"/": answer()}) as host:
            urls = [f"http://slow{n}.test:{host.port}/" for n in range(LOOKUPS + 2)]
            of = fetcher(slow, deadline_s=0.1)
            assert "did not arrive" in await refusal(of, *urls)
            assert "did not arrive" in await refusal(of, urls[0])
            assert len(asked) == LOOKUPS
            answered.set()
            of = fetcher(slow)
            assert await fetch(of, *urls) == [b"picture"] * len(urls)

    run(story())


# --- through the server --------------------------------------------------------------------------


@asynccontextmanager
async def asking(server):
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def ask(*parts):
            messages = [{"role": "user", "content": list(parts)}]
            body = {"model": "served", "messages": messages}
            return await client.post("/v1/chat/completions", json=body)

        yield ask


def test_a_url_is_where_an_image_is_and_never_what_it_is():
    async def story():
        server = Server(fetcher=fetcher())
        async with listening({}) as host, asking(server) as ask:
            url = f"http://pictures.test:{host.port}"
            seen = []
            for file in (b"red", b"blue", b"red"):
                host.answers["/now.png"] = answer(file)
                host.answers["/later.png"] = answer(b"later")
                later = image(f"{url}/later.png", detail="auto")
                text = {"type": "text", "text": "what?"}
                found = await ask(later, image(b"sent"), text, image(f"{url}/now.png"))
                assert found.status_code == 200, found.text
                seen.append([one.data for one in images_in(server.asked.input)])
            assert seen == [[b"later", b"sent", one] for one in (b"red", b"blue", b"red")]
            assert len(host.asked) == 6
            [message] = server.asked.input.messages
            assert [getattr(part, "path", part) for part in message.content] == [
                "messages[0].content[0]",
                "messages[0].content[1]",
                "what?",
                "messages[0].content[3]",
            ]

    run(story())


def test_a_request_whose_image_cannot_be_had_is_refused_by_its_number():
    async def story():
        server = Server(fetcher=fetcher(), limits=Limits(image_bytes=9))
        async with listening({"/404": answer(status="404 X")}) as host, asking(server) as ask:
            host.answers["/big"] = answer(b"x" * 10)
            url = f"http://pictures.test:{host.port}"
            found = error(await ask(image(b"sent"), image(f"{url}/404")))
            assert found["message"] == (
                "image 2 (messages[0].content[1]) was answered with status 404"
            )
            assert found["param"] == "messages[0].content[1]"
            found = error(await ask(image(f"{url}/big")), 413)
            assert found["message"].startswith("image 1 (messages[0].content[0]) has more than 9")
            # What is wrong in the request itself is said before anything is fetched.
            asked = len(host.asked)
            error(await ask(image(f"{url}/big"), image("nonsense")))
            error(await ask(image(f"{url}/big"), image("gopher://x")))
            assert len(host.asked) == asked
            assert server.turns.requests == []

    run(story())


def test_what_is_fetched_counts_as_held_until_the_answer_ends(monkeypatch):
    async def story():
        monkeypatch.setattr(Limits, "room_bytes", 1000)
        monkeypatch.setattr(Limits, "files_bytes", 900)
        server = Server(lambda request: [], fetcher=fetcher())
        async with listening({"/": answer(b"x" * 500)}) as host, asking(server) as ask:
            part = image(f"http://pictures.test:{host.port}/")
            first = asyncio.create_task(ask(part))
            while not server.turns.tickets:
                await asyncio.sleep(0)  # one turn of the loop, not a time
            assert "bytes of requests at once" in error(await ask(part), 503)["message"]
            for event in hello(server.asked):
                server.turns.deliver(event)
            assert (await first).status_code == 200
            server.turns.script = hello
            assert (await ask(part)).status_code == 200
            found = error(await ask(part, part), 413)
            assert "one request's images have at most 900 bytes" in found["message"]

    run(story())
