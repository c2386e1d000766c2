"""Who may ask: hosts, origins, keys, and the admin pages.

A page in a browser can be made to talk to a server on the same machine (DNS rebinding), so the Host
must be one of ours and the Origin, where there is one, too. A browser always sends an Origin with
a POST to another site; programs send none.
"""

import hmac
from ipaddress import ip_address

from starlette.datastructures import Headers

from surefoot.errors import NotAuthorized
from surefoot.server.config import ServerConfig
from surefoot.server.refusals import Forbidden

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Access:
    """The rules of one server."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._loopback = is_loopback(config.host)

    def check_site(self, headers: Headers) -> None:
        """Refuse a foreign Host or Origin.

        Raises:
            Forbidden: the header is not one of this server's.
        """
        host = headers.get("host", "")
        if not self._own_host(host):
            raise Forbidden(f"Host {host[:100]!r} is not this server's", code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and not self._own_origin(origin, host):
            raise Forbidden(
                f"Origin {origin[:100]!r} may not use this server", code="origin_not_allowed"
            )

    def check_key(self, headers: Headers) -> str | None:
        """Return the API key that was sent; None where this server has none.

        Raises:
            NotAuthorized: no key was sent, or one that is not known.
        """
        keys = self._config.api_keys
        if not keys:
            return None
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not sent:
            raise NotAuthorized("an API key is needed: send 'Authorization: Bearer KEY'")
        # Every key is compared whatever came before, so the time says nothing about which matched.
        matches = [hmac.compare_digest(sent.strip().encode(), key.encode()) for key in keys]
        if not any(matches):
            raise NotAuthorized("this API key is not known to this server")
        return keys[matches.index(True)]

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

    def _own_host(self, host: str) -> bool:
        name = host_name(host)
        if name in {one.lower() for one in self._config.hosts}:
            return True
        if self._loopback:
            return name in LOOPBACK_HOSTS
        return bool(name) and not self._config.hosts

    def _own_origin(self, origin: str, host: str) -> bool:
        if origin in self._config.origins:
            return True
        return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """Return a Host header without its port, in lower case."""
    lowered = host.strip().lower()
    if lowered.startswith("["):
        return lowered.partition("]")[0] + "]"
    return lowered.rpartition(":")[0] if ":" in lowered else lowered
