"""Every setting: its default, its unit and its reason. The CLI shows these; nobody else reads them.

A size is bytes, or a number with a unit: ``40MB`` is 40 * 10^6, ``2GiB`` is 2 * 2^30.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Generic, TypeVar

from surefoot.errors import SetupError

SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


Value = TypeVar("Value", int, float, str)
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """One setting: its default and why it is that."""

    default: Value
    reason: str


HOST = Setting("127.0.0.1", "address to listen on; only this machine can reach the default")
PORT = Setting(8000, "port to listen on; what OpenAI-shaped local servers commonly use")
STORE = Setting(
    "", "folder of the SSD tier, or 'off' to touch no file; default: in the user's cache"
)
RAM_BYTES = Setting("2GiB", "most bytes of stored state in RAM; about 90,000 tokens of SmolLM2")
SSD_BYTES = Setting("20GiB", "most bytes of stored state on SSD, counted as real disk usage")
FEATURE_RAM_BYTES = Setting("256MiB", "most bytes of vision features in RAM, beside --ram-bytes")
FEATURE_SSD_BYTES = Setting("2GiB", "most bytes of vision features on SSD, out of --ssd-bytes")
IMAGE_URLS = Setting(
    "off", "'public' fetches http(s) images from public addresses; 'off' takes data: URLs alone"
)
MAX_IMAGES = Setting(32, "most images of one request")
IMAGE_BYTES = Setting("20MiB", "most bytes of one image file, however few pixels it holds")
IMAGE_PIXELS = Setting(40_000_000, "most pixels of one image, however few bytes packed them")
FREE_FLOOR = Setting("1GiB", "free disk space the store never eats into")
WRITE_BUDGET = Setting(
    "16GiB",
    "most bytes written to the store an hour, then RAM only; a 1 TB drive rated for 600 TB takes "
    "that for four years; 0: no limit",
)
BLOCK_TOKENS = Setting(
    256,
    "tokens per block: the unit of naming, prefilling and restoring; default: the model's own, "
    "256 for most",
)
THREADS = Setting(2, "threads of one forward pass; fixed, since their number changes bits")
RUNNING = Setting(8, "turns that run at once; each holds its own state in memory")
LIVE_BYTES = Setting(
    "4GiB",
    "most bytes of state that running turns hold, each counted as large as it may grow; a turn "
    "for which there is no room waits, and one alone always runs",
)
QUEUED = Setting(64, "requests that may wait before the server answers 503")
CLIENT_REQUESTS = Setting(
    32,
    "requests that one API key, or one address where there are no keys, may have at work or "
    "waiting; above it the server answers 429, and two such clients leave others places to queue",
)
STALL_S = Setting(
    20.0,
    "seconds that a client may keep the server waiting: for a request's head, for more of a body, "
    "for an answer to be read; a whole body may take six times as long",
)
IDLE = Setting(16, "conversations whose next prefix may wait to be computed; 0 turns it off")
AUDIT_SHARE = Setting(
    0.01, "tokens audited while idle, for each that prompts had: 1 in 100 by default; 0 for none"
)
RESTORE_FLOOR_S = Setting(1.0, "seconds a restore may always take; above it, as long as computing")
IO_THREADS = Setting(4, "threads that read, verify and write records")
QUEUE_BYTES = Setting("512MiB", "most bytes of records waiting to be written; above it RAM only")
DRAIN_S = Setting(10.0, "seconds from SIGTERM to exit, in which writes are finished")
PROBE_TOKENS = Setting(
    500_000,
    "most tokens that a probe asks for, of prompts and answers together; all legs fit in it",
)
PROBE_SECONDS = Setting(600.0, "most seconds that a probe takes; a request under way is waited for")
PROBE_ERROR_RATE = Setting(
    0.01, "chance that the time test shows reuse where there is none; less needs more requests"
)


def parse_bytes(text: str, *, flag: str, least: int = 0) -> int:
    """Return a size in bytes.

    Raises:
        SetupError: the text is not a size, or one below ``least``; the message names ``flag`` and
            the forms it may take.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = SIZE_UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise SetupError(
            f"{flag} {text!r} is not a size: write bytes, or a number with KB, MB, GB, KiB, MiB "
            "or GiB, such as 40MB or 2GiB"
        )
    return at_least(least, int(float(match[1]) * unit), flag=flag)


def share(value: float, *, flag: str) -> float:
    """Return ``value``.

    Raises:
        SetupError: it is not from 0 to 1.
    """
    if not 0 <= value <= 1:
        raise SetupError(f"{flag} {value} is not a share: it must be from 0 to 1")
    return value


def parse_store(text: str, *, default: Path) -> Path | None:
    """Return the store's folder; None for ``off``."""
    if text == "off":
        return None
    return Path(text).expanduser() if text else default


def one_of(words: Sequence[str], text: str, *, flag: str) -> str:
    """Return ``text``.

    Raises:
        SetupError: it is none of ``words``.
    """
    if text not in words:
        raise SetupError(f"{flag} {text!r} must be one of {', '.join(words)}")
    return text


def at_least(least: Number, value: Number, *, flag: str) -> Number:
    """Return ``value``.

    Raises:
        SetupError: it is below ``least``, or no number that ends.
    """
    if not isfinite(value):
        raise SetupError(f"{flag} {value} is endless: it must be a number of at least {least}")
    if value < least:
        raise SetupError(f"{flag} {value} is too small: it must be at least {least}")
    return value
