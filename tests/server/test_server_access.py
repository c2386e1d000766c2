"""Hosts, origins, keys and admin pages, every combination."""

import itertools

import pytest
from scripted import Server, error

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
