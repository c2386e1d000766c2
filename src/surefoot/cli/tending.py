"""What the commands that tend a store share: their flags, and how they show things."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from surefoot import settings
from surefoot.cli.folders import cache_folder
from surefoot.errors import SetupError

StoreFlag = Annotated[
    str, typer.Option("--store", help="folder of the SSD tier; default: in the user's cache")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="print JSON")]
QuotaFlag = Annotated[str, typer.Option("--ssd-bytes", help=settings.SSD_BYTES.reason)]


def store_folder(store: str) -> Path:
    """Return the folder of a store that is there.

    Raises:
        SetupError: there is none.
    """
    folder = settings.parse_store(store, default=cache_folder() / "store")
    if folder is None:
        raise SetupError("with --store off nothing is on disk to look at")
    if not folder.is_dir():
        raise SetupError(f"--store {store or folder} is not a store: there is no such folder")
    return folder


class Progress:
    """Says how far long work is, on a terminal only."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` are done."""
        if self._shown and (done % 50 == 0 or done == total):
            print(f"\r{self._what} {done} of {total}", end="", file=sys.stderr, flush=True)
            if done == total:
                print(file=sys.stderr)


def size(nbytes: int) -> str:
    """Show a size as people read it."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.1f} {unit}"
    return f"{nbytes} B"


def ago(when: float | None) -> str:
    """Show a time as how long it was ago; None as a dash."""
    if not when:
        return "-"
    seconds = max(time.time() - when, 0.0)
    for name, unit in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds:.0f} s ago"
