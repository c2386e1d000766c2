"""Fetching images from http(s) URLs: from public addresses alone, and never more than was allowed.

The address that was checked is the address that is connected to, so that a name which answers
differently the second time leads nowhere; the certificate is still checked for the name. Redirects
are followed by hand, each checked like the first URL. Nothing of the operator's goes along: no
cookies, no credentials, no proxy. What is fetched is bytes, anew for each request: a URL is never
an image's identity.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import httpx

from surefoot.server.addresses import is_public, look_up
from surefoot.server.images import Place, Remote

DEADLINE_S = 10.0  # for all images of one request
CONNECT_S = 3.0  # for one address of a host that may have more
REDIRECTS = 3
AT_ONCE = 8  # of one request
LOOKUPS = 4  # of the whole server; a name's lookup cannot be cut short
PORTS = frozenset({80, 443, *range(1024, 65536)})  # no mail, no shells
MOVED = frozenset({301, 302, 303, 307, 308})
BYTES = frozenset({"application/octet-stream", "binary/octet-stream"})
HEADERS = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "surefoot"}

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
Take: TypeAlias = Callable[[Place, int], None]


class Fetcher:
    """Fetches images; one serves the whole server, and keeps nothing between two."""

    def __init__(
        self,
        *,
        resolve: Resolve = look_up,
        public: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._resolve = resolve
        self._public = public
        self._tls = httpx.create_ssl_context(trust_env=False) if tls is None else tls
        self._deadline_s = deadline_s
        self._lookups = asyncio.Semaphore(LOOKUPS)

    async def fetch(
        self, wanted: Sequence[Remote], *, most_bytes: int, take: Take
    ) -> dict[str, bytes]:
        """Return the files by their images' paths: all of them, or none.

        Args:
            wanted: the images of one request.
            most_bytes: of one file.
            take: called with the bytes that came, before they are kept; may refuse them.

        Raises:
            RequestError: an image cannot be had; the message names it and the reason.
            TooLarge: a file has more than ``most_bytes``.
        """
        slots = asyncio.Semaphore(AT_ONCE)
        files: dict[str, bytes] = {}

        async def one(remote: Remote) -> None:
            async with slots:
                files[remote.place.path] = await self._file(remote, most_bytes, take)

        try:
            async with asyncio.timeout(self._deadline_s), asyncio.TaskGroup() as group:
                for remote in wanted:
                    group.create_task(one(remote))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        except TimeoutError:
            late = next(one.place for one in wanted if one.place.path not in files)
            raise late.refusal(f"did not arrive within {self._deadline_s:g} s") from None
        return files

    async def _file(self, remote: Remote, most_bytes: int, take: Take) -> bytes:
        place = remote.place
        try:
            url = _checked(place, httpx.URL(remote.url))
            for _ in range(REDIRECTS + 1):
                async with self._answer(place, url) as response:
                    if response.status_code not in MOVED:
                        return await _content(place, response, most_bytes, take)
                    url = _moved(place, url, response.headers.get("location", ""))
        except (httpx.InvalidURL, UnicodeError):  # the latter from hosts that are no IDN
            raise place.refusal("has a URL, or leads to one, that is none") from None
        except httpx.HTTPError:
            raise place.refusal("could not be fetched whole: its host broke off") from None
        raise place.refusal(f"leads on more than {REDIRECTS} times")

    @asynccontextmanager
    async def _answer(self, place: Place, url: httpx.URL) -> AsyncIterator[httpx.Response]:
        """Ask the host of a URL, at an address that was checked."""
        name = url.raw_host.decode("ascii")
        # A client for each question: a connection kept for one name would answer for another.
        async with httpx.AsyncClient(
            verify=self._tls,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(self._deadline_s, connect=CONNECT_S),
        ) as client:
            for address in await self._addresses(place, url):
                request = client.build_request(
                    "GET",
                    url.copy_with(host=address),
                    headers={**HEADERS, "host": url.netloc.decode("ascii")},
                    extensions={"sni_hostname": name},
                )
                try:
                    response = await client.send(request, stream=True)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    continue
                try:
                    yield response
                finally:
                    await response.aclose()
                return
        raise place.refusal("has a host that cannot be reached, or not under a valid certificate")

    async def _addresses(self, place: Place, url: httpx.URL) -> Sequence[str]:
        """Return a host's addresses, all of them public."""
        await self._lookups.acquire()
        looking = asyncio.ensure_future(self._resolve(url.raw_host.decode("ascii"), _port(url)))
        # Given up or not, a lookup takes its place until it has ended.
        looking.add_done_callback(self._looked)
        try:
            found = await asyncio.shield(looking)
        except (OSError, UnicodeError):
            found = ()
        # One sentence for a name that is not there and one that is private: neither is told.
        if not found or not all(self._public(address) for address in found):
            raise place.refusal("has a host that is not at a public address")
        return found

    def _looked(self, lookup: asyncio.Future[Sequence[str]]) -> None:
        self._lookups.release()
        if not lookup.cancelled():
            lookup.exception()  # read, whether or not somebody still waits for it


def _checked(place: Place, url: httpx.URL) -> httpx.URL:
    if url.scheme not in ("http", "https"):
        raise place.refusal(f"leads to a {url.scheme[:30]}: URL: only http and https are fetched")
    if url.userinfo:
        raise place.refusal("has a URL with a user or a password: none is sent")
    if not url.host or _port(url) not in PORTS:
        raise place.refusal(
            "has a URL without a host, or with a port other than 80, 443 and 1024 up"
        )
    return url.copy_with(fragment=None)


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _moved(place: Place, url: httpx.URL, location: str) -> httpx.URL:
    if not location:
        raise place.refusal("has moved, and its host does not say where")
    target = _checked(place, url.join(location))
    if (url.scheme, target.scheme) == ("https", "http"):
        raise place.refusal("leads from https to http")
    return target


async def _content(place: Place, response: httpx.Response, most_bytes: int, take: Take) -> bytes:
    """Read an answer to its end, as far as it is an image's and small enough."""
    if response.status_code != httpx.codes.OK:
        raise place.refusal(f"was answered with status {response.status_code}")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("image/") and kind not in BYTES:
        raise place.refusal(f"was answered with the media type {kind[:80]!a}, which is no image's")
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise place.refusal("was answered in a compressed form, which was not asked for")
    content = bytearray()
    async for piece in response.aiter_raw():
        if len(content) + len(piece) > most_bytes:
            raise place.too_large(f"has more than {most_bytes:,} bytes, the most of one image")
        take(place, len(piece))
        content += piece
    if not content:
        raise place.refusal("is empty")
    return bytes(content)
