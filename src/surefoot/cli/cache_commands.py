"""``surefoot cache``: look at a store and tend it; works beside a running server."""

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from surefoot import settings
from surefoot.cache import collect, store_entries, store_stats, verify_store
from surefoot.cache.offline import Quarantined, purge, quarantine_in
from surefoot.cli import audit_command, evidence_commands, exits
from surefoot.cli.tending import JsonFlag, Progress, QuotaFlag, StoreFlag, ago, size, store_folder
from surefoot.errors import SetupError

app = typer.Typer(
    help="Look at a store and tend it; works beside a running server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def stats(*, store: StoreFlag = "", as_json: JsonFlag = False) -> None:
    """Show how much is stored, and of which models."""
    found = store_stats(store_folder(store))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console()
    console.print(
        f"{found['store']}: {found['parts']} parts, {size(found['bytes'])}; features of "
        f"{found['features']} images, {size(found['feature_bytes'])}; in quarantine: "
        f"{found['quarantined_records']} records, {size(found['quarantined_bytes'])}, behind "
        f"{found['fences']} fences; processes that have it open: {found['open_by']}, free on "
        f"the disk: {size(found['free_bytes'])}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("model", "parts", "bytes", "features", "bytes", "last open")
    for model, one in found["models"].items():
        table.add_row(
            model[:16],
            str(one["parts"]),
            size(one["bytes"]),
            str(one["features"]),
            size(one["feature_bytes"]),
            ago(one["last_open"]),
        )
    console.print(table)


@app.command()
def ls(*, store: StoreFlag = "", as_json: JsonFlag = False) -> None:
    """List every stored part by name; no prompt text, no tokens."""
    entries = store_entries(store_folder(store))
    if as_json:
        for entry in entries:
            print(json.dumps(entry._asdict()))
        return
    table = Table("name", "kind", "group", "tokens", "bytes", "last used", "audit")
    for entry in entries:
        span = f"{entry.start}-{entry.end}"
        table.add_row(
            entry.name[:16],
            entry.kind,
            entry.group,
            span,
            size(entry.nbytes),
            ago(entry.last_used),
            entry.verdict or "-",
        )
    Console().print(table)


@app.command()
def verify(
    *,
    store: StoreFlag = "",
    ssd_bytes: QuotaFlag = settings.SSD_BYTES.default,
    as_json: JsonFlag = False,
) -> None:
    """Read every record, check every byte, quarantine what is not what was sealed."""
    found = verify_store(
        store_folder(store),
        Progress("verified"),
        ssd_bytes=settings.parse_bytes(ssd_bytes, flag="--ssd-bytes"),
        wall_clock=time.time,
    )
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"{found.verified} of {found.records} records verified ({size(found.nbytes)}), "
            f"{found.corrupt} corrupt and quarantined, {found.failed} unreadable"
        )
    raise typer.Exit(exits.DIFFERS if found.corrupt or found.failed else exits.OK)


@app.command()
def gc(
    *,
    store: StoreFlag = "",
    ssd_bytes: QuotaFlag = settings.SSD_BYTES.default,
    as_json: JsonFlag = False,
) -> None:
    """Remove records of models long unused, parts nobody can restore, and what is over quota."""
    quota = settings.parse_bytes(ssd_bytes, flag="--ssd-bytes")
    found = collect(store_folder(store), ssd_bytes=quota, now=time.time())
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"removed {found.parts} parts and the features of {found.features} images "
            f"({size(found.nbytes)}), "
            f"{found.orphans} of them of models long unused"
        )


@app.command()
def quarantine(
    name: Annotated[
        str, typer.Argument(help="The name in hex, or its first eight digits or more.")
    ],
    *,
    store: StoreFlag = "",
    reason: Annotated[str, typer.Option(help="why, for whoever looks later")] = "",
    ssd_bytes: QuotaFlag = settings.SSD_BYTES.default,
    as_json: JsonFlag = False,
) -> None:
    """Bar a stored block, or an image's features, with all that was computed on top of it.

    Every process that has the store open heeds it from its next request on; a later cold
    computation stores the name again.
    """
    found = quarantine_in(
        store_folder(store),
        name,
        reason or "by hand",
        ssd_bytes=settings.parse_bytes(ssd_bytes, flag="--ssd-bytes"),
        wall_clock=time.time,
    )
    _say(found, "quarantined", as_json=as_json)


@app.command("purge")
def purge_command(
    *,
    key: Annotated[str | None, typer.Option(help="what was stored under this API key")] = None,
    salt: Annotated[str | None, typer.Option(help="... under this cache_salt")] = None,
    every: Annotated[bool, typer.Option("--all", help="everything")] = False,
    store: StoreFlag = "",
    as_json: JsonFlag = False,
) -> None:
    """Remove one tenant's data: of an API key, of a cache_salt, or of both together.

    What cannot be told to be somebody else's goes as well. Running servers drop it from RAM before
    their next plan.
    """
    if every == (key is not None or salt is not None):
        raise SetupError("say whose data to remove: --key, --salt or both, or --all")
    found = purge(
        store_folder(store), api_key=key, cache_salt=salt, every=every, wall_clock=time.time
    )
    _say(found, "removed", as_json=as_json)
    if not found.fences and not as_json:
        print("nothing of that tenant is on record: is the key or the salt spelled right?")


def _say(found: Quarantined, what: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(found)))
        return
    numbers = f" (fence {', '.join(map(str, found.fences))})" if len(found.fences) == 1 else ""
    print(f"{what} {found.parts} parts and the features of {found.features} images{numbers}")


app.command("audit")(audit_command.audit)
evidence_commands.register(app, store_folder, Progress)
