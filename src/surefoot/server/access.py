"""Who may ask: hosts, origins, keys, and the admin pages.

A page in a browser can be made to talk to a server on the same machine (DNS rebinding), so the Host
must be one of ours and the Origin, where there is one, too. A browser always sends an Origin with
a POST to another site; programs send none.
"""

import hmac
import re
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers

from surefoot.errors import NotAuthorized
from surefoot.server.config import ServerConfig
from surefoot.server.refusals import Forbidden

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
# A name or an address, and a port; names of containers have underscores.
HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
V6_CLIENT_BITS = 64  # what one subscriber is given: its addresses are one client


class Access:
    """The rules of one server."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._loopback = is_loopback(config.host)
        self._digests = [_digest(key.encode()) for key in config.api_keys]

    def check_site(self, headers: Headers) -> None:
        """Refuse a foreign Host or Origin, and one of each where there are two.

        Raises:
            Forbidden: a header is not one of this server's.
        """
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if not self._own_host(host):
            shown = ", ".join(hosts)[:100]
            raise Forbidden(f"Host {shown!r} is not this server's", code="host_not_allowed")
        for origin in headers.getlist("origin"):
            if not self._own_origin(origin, host):
                raise Forbidden(
                    f"Origin {origin[:100]!r} may not use this server", code="origin_not_allowed"
                )

    def check_key(self, headers: Headers) -> str | None:
        """Return the API key that was sent; None where this server has none.

        Raises:
            NotAuthorized: no key was sent, more than one, or one that is not known.
        """
        if not self._config.api_keys:
            return None
        sent = _sent_keys(headers)
        if not sent:
            raise NotAuthorized("an API key is needed: send 'Authorization: Bearer KEY'")
        if len(sent) > 1:
            raise NotAuthorized("'Authorization' was sent more than once: send one API key")
        key = self._known(sent[0])
        if key is None:
            raise NotAuthorized("this API key is not known to this server")
        return key

    def client(self, headers: Headers, address: tuple[str, int] | None) -> str | None:
        """Return whose request this is, for what one client may have at once.

        With keys, a client is a key; a request without a known one is refused before it holds
        anything. Without keys it is the address it came from. A server that only this machine can
        reach has one client, whoever asks: local programs choose among millions of addresses.

        Returns:
            None for what is not told apart from others.
        """
        if self._config.api_keys:
            sent = _sent_keys(headers)
            return self._known(sent[0]) if len(sent) == 1 else None
        if self._loopback or address is None:
            return None
        return client_of(address[0])

    def check_admin(self, headers: Headers) -> None:
        """Refuse whoever may not see the admin pages.

        Raises:
            NotAuthorized: there are keys, and none of them was sent.
            Forbidden: anybody on the network could ask: there are no keys.
        """
        if self._config.api_keys:
            self.check_key(headers)
        elif not self._loopback:
            raise Forbidden(
                "admin pages are off: this server listens beyond this machine and has no API keys",
                code="admin_off",
            )

    def _known(self, sent: bytes) -> str | None:
        """Return the key that was sent, if it is one of ours.

        Digests are of one length, and every one is compared whatever came before: the time says
        nothing about which key matched, how much of it, or how long it is.
        """
        digest = _digest(sent)
        matches = [hmac.compare_digest(digest, one) for one in self._digests]
        return self._config.api_keys[matches.index(True)] if any(matches) else None

    def _own_host(self, host: str) -> bool:
        name = host_name(host)
        if name in {one.lower() for one in self._config.hosts}:
            return True
        if self._loopback:
            return name in LOOPBACK_HOSTS or (bool(name) and name == self._config.host)
        return bool(name) and not self._config.hosts

    def _own_origin(self, origin: str, host: str) -> bool:
        if origin in self._config.origins:
            return True
        return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _sent_keys(headers: Headers) -> list[bytes]:
    """Return the keys of all Authorization headers, as the bytes that came."""
    sent = []
    for header in headers.getlist("authorization"):
        scheme, _, key = header.partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            sent.append(key.strip().encode("latin-1"))
        else:
            sent.append(b"")
    return sent if any(sent) else []


def _digest(key: bytes) -> bytes:
    return hmac.digest(b"surefoot api key", key, "sha256")


def client_of(address: str) -> str:
    """Return the one client that an address belongs to."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((found, V6_CLIENT_BITS), strict=False))
    return str(found)


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """Return a Host header without its port, in lower case; '' if it is none."""
    found = HOST.fullmatch(host)
    return found[1].lower() if found else ""
