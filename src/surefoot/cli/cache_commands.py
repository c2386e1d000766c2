"""``surefoot cache``: look at a store and tend it; works beside a running server."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from surefoot import settings
from surefoot.cache import collect, store_entries, store_stats, verify_store
from surefoot.cli import exits
from surefoot.cli.folders import cache_folder
from surefoot.errors import SetupError

app = typer.Typer(
    help="Look at a store and tend it; works beside a running server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

StoreFlag = Annotated[
    str, typer.Option("--store", help="folder of the SSD tier; default: in the user's cache")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def stats(*, store: StoreFlag = "", as_json: JsonFlag = False) -> None:
    """Show how much is stored, and of which models."""
    found = store_stats(_folder(store))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console()
    console.print(
        f"{found['store']}: {found['parts']} parts, {_size(found['bytes'])}; features of "
        f"{found['features']} images, {_size(found['feature_bytes'])}; processes that have "
        f"it open: {found['open_by']}, free on the disk: {_size(found['free_bytes'])}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("model", "parts", "bytes", "features", "bytes", "last open")
    for model, one in found["models"].items():
        table.add_row(
            model[:16],
            str(one["parts"]),
            _size(one["bytes"]),
            str(one["features"]),
            _size(one["feature_bytes"]),
            _ago(one["last_open"]),
        )
    console.print(table)


@app.command()
def ls(*, store: StoreFlag = "", as_json: JsonFlag = False) -> None:
    """List every stored part by name; no prompt text, no tokens."""
    entries = store_entries(_folder(store))
    if as_json:
        for entry in entries:
            print(json.dumps(entry._asdict()))
        return
    table = Table("name", "kind", "group", "tokens", "bytes", "last used")
    for entry in entries:
        span = f"{entry.start}-{entry.end}"
        table.add_row(
            entry.name[:16],
            entry.kind,
            entry.group,
            span,
            _size(entry.nbytes),
            _ago(entry.last_used),
        )
    Console().print(table)


@app.command()
def verify(*, store: StoreFlag = "", as_json: JsonFlag = False) -> None:
    """Read every record, check every byte, delete what is not what was sealed."""
    found = verify_store(_folder(store), _Progress("verified"))
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"{found.verified} of {found.records} records verified ({_size(found.nbytes)}), "
            f"{found.corrupt} corrupt and deleted, {found.failed} unreadable"
        )
    raise typer.Exit(exits.DIFFERS if found.corrupt or found.failed else exits.OK)


@app.command()
def gc(
    *,
    store: StoreFlag = "",
    ssd_bytes: Annotated[
        str, typer.Option(help=settings.SSD_BYTES.reason)
    ] = settings.SSD_BYTES.default,
    as_json: JsonFlag = False,
) -> None:
    """Remove records of models long unused, parts nobody can restore, and what is over quota."""
    quota = settings.parse_bytes(ssd_bytes, flag="--ssd-bytes")
    found = collect(_folder(store), ssd_bytes=quota, now=time.time())
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"removed {found.parts} parts and the features of {found.features} images "
            f"({_size(found.nbytes)}), "
            f"{found.orphans} of them of models long unused"
        )


def _folder(store: str) -> Path:
    folder = settings.parse_store(store, default=cache_folder() / "store")
    if folder is None:
        raise SetupError("with --store off nothing is on disk to look at")
    if not folder.is_dir():
        raise SetupError(f"--store {store or folder} is not a store: there is no such folder")
    return folder


class _Progress:
    """Says how far long work is, on a terminal only."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        if self._shown and (done % 50 == 0 or done == total):
            print(f"\r{self._what} {done} of {total}", end="", file=sys.stderr, flush=True)
            if done == total:
                print(file=sys.stderr)


def _size(nbytes: int) -> str:
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.1f} {unit}"
    return f"{nbytes} B"


def _ago(when: float | None) -> str:
    if not when:
        return "-"
    seconds = max(time.time() - when, 0.0)
    for name, unit in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds:.0f} s ago"
