"""``--restart-cmd``: run it, and see from outside that the old process is gone.

A command may return before it is done (``systemctl --no-block``, ``kill`` with a server that takes
its time), and then the old process would answer, with all its RAM. So a connection is opened before
the command runs and nothing is said on it: when a process ends, its connections do.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx

from surefoot.errors import CapacityError, SetupError
from surefoot.probe.asking import CONNECT_S, Asker
from surefoot.probe.trail import Unsettled

RESTART_S = 300.0  # the longest that a restart command may take, and the server to come back
GONE_S = 60.0  # the longest that the old process may outlive the command
_STDERR = 2


def restarting(
    command: str | None, asker: Asker, *, timeout_s: float = RESTART_S, gone_s: float = GONE_S
) -> Callable[[], Awaitable[None]] | None:
    """Return what runs a restart command and waits for the new server; None without a command.

    What the command prints goes to stderr. Awaiting raises SetupError if it fails or does not end,
    CapacityError if the server does not come back, and Unsettled if the old process, or what stands
    before it, still holds its connections after ``gone_s``.
    """
    if command is None:
        return None

    async def restart() -> None:
        async with _connected(asker.url) as reader:
            await _run(command, timeout_s)
            if not await _closed(reader, gone_s):
                raise Unsettled(
                    f"a connection from before --restart-cmd is still open {gone_s:g} s after it: "
                    "the old process lives, or a proxy stands before it; a command that ends the "
                    "server, and the server's own port, settle it"
                )
        await asker.wait_answering(timeout_s=timeout_s)

    return restart


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncio.StreamReader]:
    """Hold a connection to the server of ``url`` on which nothing is said."""
    where = httpx.URL(url)
    port = where.port or {"http": 80, "https": 443}[where.scheme]
    try:
        opening = asyncio.open_connection(where.host, port)
        reader, writer = await asyncio.wait_for(opening, CONNECT_S)
    except OSError as error:
        raise CapacityError(f"{url} cannot be reached: {error}") from error
    try:
        yield reader
    finally:
        writer.close()


async def _run(command: str, timeout_s: float) -> None:
    process = await asyncio.create_subprocess_shell(command, stdout=_STDERR)
    try:
        code = await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise SetupError(
            f"--restart-cmd {command!r} did not end in {timeout_s:g} s: it must return once "
            "the server starts, so send a server of the foreground to the background"
        ) from None
    if code:
        raise SetupError(f"--restart-cmd {command!r} failed with exit code {code}")


async def _closed(reader: asyncio.StreamReader, within_s: float) -> bool:
    """Wait until the other side has ended a connection, whatever it says before that."""
    try:
        await asyncio.wait_for(reader.read(), within_s)
    except TimeoutError:
        return False
    except ConnectionError:  # reset: that side knows nothing of it any more
        pass
    return True
