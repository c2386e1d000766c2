"""Hosts, origins, keys and admin pages, every combination."""

import asyncio
import itertools

import pytest
from scripted import Server, config, error
from starlette.datastructures import Headers

from surefoot.server import access
from surefoot.server.access import host_name, is_loopback

KEYS = ("key-one", "key-two")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:80", "localhost"),
        ("127.0.0.1:8000", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[::1]:8000", "[::1]"),
        ("evil.example:8000", "evil.example"),
        ("", ""),
    ],
)
def test_a_hosts_name_is_without_its_port(host, name):
    assert host_name(host) == name


def test_loopback_is_this_machine_only():
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.2", "example.org", ""]))


OWN = ("localhost", "localhost:1", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST")
FOREIGN = (
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil",
    "192.168.0.1:8000",
    "",
    "::1",
)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/cache", "/nothing"])
def test_on_loopback_every_page_checks_the_host(path):
    server = Server()
    for host in OWN:
        assert server.get(path, headers={"host": host}).status_code in (200, 404)
    for host in FOREIGN:
        found = error(server.get(path, headers={"host": host}), 403)
        assert found["code"] == "host_not_allowed"


def test_configured_hosts_are_allowed_too():
    server = Server(hosts=("My.Example",))
    for host in ("my.example", "MY.example:80", "localhost"):
        assert server.get("/health", headers={"host": host}).status_code == 200
    error(server.get("/health", headers={"host": "other.example"}), 403)


def test_beyond_loopback_any_host_is_allowed_unless_some_are_named():
    anywhere = Server(host="0.0.0.0")
    assert anywhere.get("/health", headers={"host": "any.example"}).status_code == 200
    error(anywhere.get("/health", headers={"host": ""}), 403)
    named = Server(host="0.0.0.0", hosts=("my.example",))
    assert named.get("/health", headers={"host": "my.example:9"}).status_code == 200
    for host in ("any.example", "localhost"):
        error(named.get("/health", headers={"host": host}), 403)


def test_a_foreign_origin_is_refused_before_anything_is_read():
    server = Server(origins=("https://ui.example",))
    for origin in (
        "https://evil.example",
        "null",
        "http://localhost:3000",
        "",
        "http://localhost.x",
    ):
        found = error(server.chat(headers={"origin": origin}), 403)
        assert found["code"] == "origin_not_allowed"
    assert server.turns.requests == []
    for origin in ("https://ui.example", "http://localhost", "https://localhost"):
        assert server.chat(headers={"origin": origin}).status_code == 200


def test_an_allowed_origin_can_be_used_by_a_browser():
    server = Server(origins=("https://ui.example",))
    headers = {
        "origin": "https://ui.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-surefoot-cache",
    }
    preflight = server.ask("OPTIONS", "/v1/chat/completions", headers=headers)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://ui.example"


def test_without_keys_no_page_needs_one_and_one_sent_is_ignored():
    server = Server()
    server.chat(headers={"authorization": "Bearer whatever"})
    assert server.asked.key is None


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/served", "/v1/cache", "/metrics"])
def test_with_keys_every_page_needs_one(path):
    server = Server(api_keys=KEYS)
    wrong = [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer key",
        "Bearer key-on",
        "Bearer key-one1",
        "Basic key-one",
        "key-one",
        "Bearer KEY-ONE",
        "Bearer ключ",
    ]
    for sent in wrong:
        headers = {} if sent is None else {"authorization": sent.encode()}
        found = error(server.get(path, headers=headers), 401)
        assert found["type"] == "authentication_error"
    for key in KEYS:
        headers = {"authorization": f"bearer {key}"}
        assert server.get(path, headers=headers).status_code == 200


def test_the_key_that_was_sent_names_the_tenant():
    server = Server(api_keys=KEYS)
    for key in KEYS:
        server.chat(headers={"authorization": f"Bearer {key}"})
        assert server.asked.key == b"id of " + key.encode()
    error(server.chat(), 401)
    error(server.text(headers={"authorization": "Bearer key"}), 401)
    assert len(server.turns.requests) == 2


def test_health_needs_no_key():
    assert Server(api_keys=KEYS).get("/health").status_code == 200


def test_admin_pages_by_host_and_keys():
    for host, keys in itertools.product(("127.0.0.1", "0.0.0.0"), ((), KEYS)):
        response = Server(host=host, api_keys=keys).get("/v1/cache")
        expected = 401 if keys else (200 if host == "127.0.0.1" else 403)
        assert response.status_code == expected, (host, keys)
        headers = {"authorization": f"Bearer {KEYS[0]}"}
        response = Server(host=host, api_keys=keys).get("/v1/cache", headers=headers)
        expected = 200 if keys or host == "127.0.0.1" else 403
        assert response.status_code == expected, (host, keys)
    off = error(Server(host="0.0.0.0").get("/v1/cache"), 403)
    assert off["code"] == "admin_off"


def test_a_wrong_key_is_refused_before_the_body_is_judged():
    server = Server(api_keys=KEYS)
    error(server.body(b"{"), 401)


# --- odd headers ---------------------------------------------------------------------------------

ODD_HOSTS = (
    "localhost.",
    "localhost:80:80",
    "localhost:eighty",
    "localhost:",
    "localhost:-1",
    "localhost:999999",
    "user@localhost",
    "localhost@evil.example",
    "localhost:80@evil.example",
    "localhost/evil.example",
    "localhost#evil.example",
    "localhost?a",
    "localhost\\evil.example",
    "localhost,evil.example",
    "localhost evil.example",
    "localhost%00.evil.example",
    "localhost\xa0",
    "\xa0localhost",
    "localhost\x85",
    "http://localhost",
    "//localhost",
    "[::1]evil.example",
    "[::1]:80evil",
    "[::1",
    "::1]",
    "[localhost]",
    "[127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "127.1",
    "0x7f000001",
    "2130706433",
    "127.0.0.1.nip.io",
    "127.0.0.2",
    "0.0.0.0",
    "[::]",
    "*",
    ":80",
    "\uff4cocalhost".encode().decode("latin-1"),
)


def raw(server, path, headers, method="GET"):
    """Ask with exactly these headers; httpx adds none of its own that matter here."""
    listed = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    sent = []

    async def ask():
        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": listed,
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        await server.app(scope, receive, send)

    asyncio.run(ask())
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("host", ODD_HOSTS)
def test_a_host_that_is_not_spelled_like_ours_is_foreign(host):
    for server in (Server(), Server(host="0.0.0.0", hosts=("localhost",))):
        status, body = raw(server, "/v1/models", [("host", host)])
        assert status == 403
        assert b"host_not_allowed" in body


@pytest.mark.parametrize("hosts", [(), ("localhost",) * 2, ("localhost", "evil.example")])
@pytest.mark.parametrize("first", [False, True])
def test_there_is_one_host_or_none_is_believed(hosts, first):
    ordered = hosts if first else tuple(reversed(hosts))
    for server in (Server(), Server(host="0.0.0.0"), Server(hosts=("evil.example",))):
        status, body = raw(server, "/v1/models", [("host", one) for one in ordered])
        assert status == 403
        assert b"host_not_allowed" in body


def test_an_address_of_this_machine_is_its_own_host():
    server = Server(host="127.0.0.2")
    assert server.get("/health", headers={"host": "127.0.0.2:8000"}).status_code == 200
    error(server.get("/health", headers={"host": "127.0.0.3:8000"}), 403)


def test_every_origin_that_was_sent_is_checked():
    server = Server(origins=("https://ui.example",))
    own, foreign = ("origin", "https://ui.example"), ("origin", "https://evil.example")
    host = ("host", "localhost")
    assert raw(server, "/v1/models", [host, own])[0] == 200
    for sent in ([foreign], [own, foreign], [foreign, own]):
        status, body = raw(server, "/v1/models", [host, *sent])
        assert status == 403
        assert b"origin_not_allowed" in body


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/v1/cache",
        "http://localhost/v1/cache",
        "//v1/cache",
        "/v1//cache",
        "/v1/cache/",
        "/v1/../v1/cache",
        "/v1/./cache",
        "/V1/cache",
        "/v1/cache\x00",
        "/v1/cache;a",
        "v1/cache",
        "*",
        "",
    ],
)
def test_a_path_that_is_not_spelled_like_ours_is_none_of_ours(target):
    for server in (Server(), Server(host="0.0.0.0")):
        status, body = raw(server, target, [("host", "localhost")])
        assert status == 404, body
        assert b"not_found" in body
        assert b"pending_writes" not in body


@pytest.mark.parametrize(
    "sent",
    [
        ("Bearer key-one", "Bearer key-one"),
        ("Bearer key-one", "Bearer wrong"),
        ("Bearer wrong", "Bearer key-one"),
        ("Basic eA==", "Bearer key-one"),
        ("Bearer key-one", "Basic eA=="),
        ("Bearer key-one", ""),
        ("", "Bearer key-one"),
        ("Bearer key-one, Bearer key-one",),
        ("Bearer key-one key-two",),
        ("Bearer key-one\x00",),
        ("Bearer\tkey-one",),
        ("Bearer:key-one",),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/cache", "/metrics", "/openapi.json"])
def test_one_key_is_sent_once_or_it_is_none(sent, path):
    headers = [("host", "localhost"), *(("authorization", one) for one in sent)]
    status, body = raw(Server(api_keys=KEYS), path, headers)
    assert status == 401
    assert b"invalid_api_key" in body


def test_a_key_may_have_any_characters_and_is_compared_as_bytes():
    key = "sch\u00f6n-\u043a\u043b\u044e\u0447"
    server = Server(api_keys=(key,))
    sent = [("authorization", f"Bearer {key}".encode().decode("latin-1"))]
    assert raw(server, "/v1/models", [("host", "localhost"), *sent])[0] == 200


def test_the_time_of_a_comparison_says_nothing_about_the_keys(monkeypatch):
    compared = []

    def compare(one, other):
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(access.hmac, "compare_digest", compare)
    server = Server(api_keys=("a", "bb" * 50, "ccc"))
    work = set()
    for sent in ("a", "bb" * 50, "ccc", "x", "b" * 99, "c" * 1000):
        compared.clear()
        server.get("/v1/models", headers={"authorization": f"Bearer {sent}"})
        work.add(tuple(compared))
    assert len(work) == 1
    [one] = work
    assert len(one) % 3 == 0
    assert len(set(one)) == 1


# --- who a client is -----------------------------------------------------------------------------


def client(address, headers=(), **changes):
    listed = [(name.encode(), value.encode()) for name, value in headers]
    found = access.Access(config(**changes)).client(Headers(raw=listed), (address, 5))
    return found


def test_with_keys_a_client_is_its_key_wherever_it_is():
    for address in ("10.0.0.1", "127.0.0.1", "2001:db8::1"):
        for key in KEYS:
            bearer = [("authorization", f"Bearer {key}")]
            assert client(address, bearer, api_keys=KEYS, host="0.0.0.0") == key
        assert client(address, [("authorization", "Bearer x")], api_keys=KEYS) is None
        assert client(address, api_keys=KEYS) is None


def test_without_keys_a_client_is_an_address_beyond_this_machine_only():
    assert client("10.0.0.1") is None
    assert client("127.0.0.1", host="127.0.0.1") is None
    for host in ("0.0.0.0", "192.168.1.1", "::"):
        assert client("10.0.0.1", host=host) == "10.0.0.1"
        assert client("127.0.0.1", host=host) == "127.0.0.1"
    assert access.Access(config(host="0.0.0.0")).client(Headers(), None) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("testclient", "testclient", True),
    ],
)
def test_the_addresses_of_one_subscriber_are_one_client(one, other, same):
    assert (access.client_of(one) == access.client_of(other)) is same
