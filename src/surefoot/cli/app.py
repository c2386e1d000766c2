"""The commands, their flags and their help."""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from surefoot import __version__, settings
from surefoot.cli import cache_commands, demo_table, exits
from surefoot.cli.folders import cache_folder
from surefoot.errors import SurefootError

app = typer.Typer(
    name="surefoot",
    help="Serve language models whose cache cannot change the answer; every answer has a receipt.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cache_commands.app, name="cache")


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        app(args=list(arguments))
    except SystemExit as stop:  # how typer ends: usage errors are 2
        return stop.code if isinstance(stop.code, int) else exits.OK
    except SurefootError as error:
        print(f"surefoot: {error}", file=sys.stderr)
        return exits.exit_code(error)
    except Exception:  # noqa: BLE001  the outermost edge: a bug is shown whole, with its own code
        traceback.print_exc()
        print("surefoot: internal error; please report the lines above", file=sys.stderr)
        return exits.INTERNAL
    return exits.OK


def _flag(setting: settings.Setting[Any]) -> Any:
    return typer.Option(help=setting.reason)


MODEL_HELP = "A hub id, a folder, a .gguf file, or the built-in name smollm2 or spark."
DTYPE_HELP = "dtype of the weights; default: the checkpoint's own"
KEY_HELP = "a key clients must send; may be repeated"
ApiKeys = Annotated[list[str] | None, typer.Option(envvar="SUREFOOT_API_KEY", help=KEY_HELP)]
PROBE_KEY_HELP = "a key to send; may be repeated, and a second one is another tenant's"
ProbeKeys = Annotated[
    list[str] | None, typer.Option(envvar="SUREFOOT_API_KEY", help=PROBE_KEY_HELP)
]
LEGS_HELP = "names of legs, with commas between; a wrong one lists them; default: all"
RESTART_HELP = "shell command that restarts the server, for the leg that needs it"
SEED_HELP = "what texts and codes are drawn from; default: drawn, and printed"
FeatureRam = Annotated[str, _flag(settings.FEATURE_RAM_BYTES)]
FeatureSsd = Annotated[str, _flag(settings.FEATURE_SSD_BYTES)]
ClientRequests = Annotated[int, _flag(settings.CLIENT_REQUESTS)]
RestoreFloor = Annotated[float, _flag(settings.RESTORE_FLOOR_S)]
BudgetSeconds = Annotated[float, _flag(settings.PROBE_SECONDS)]
ErrorRate = Annotated[float, _flag(settings.PROBE_ERROR_RATE)]
WriteBudget = Annotated[str, _flag(settings.WRITE_BUDGET)]


@app.callback(invoke_without_command=True)
def root(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Handle flags that stand before a command."""
    if version:
        print(f"surefoot {__version__}")
        raise typer.Exit


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    host: Annotated[str, _flag(settings.HOST)] = settings.HOST.default,
    port: Annotated[int, _flag(settings.PORT)] = settings.PORT.default,
    store: Annotated[str, _flag(settings.STORE)] = settings.STORE.default,
    ram_bytes: Annotated[str, _flag(settings.RAM_BYTES)] = settings.RAM_BYTES.default,
    ssd_bytes: Annotated[str, _flag(settings.SSD_BYTES)] = settings.SSD_BYTES.default,
    free_floor: Annotated[str, _flag(settings.FREE_FLOOR)] = settings.FREE_FLOOR.default,
    write_budget: WriteBudget = settings.WRITE_BUDGET.default,
    feature_ram_bytes: FeatureRam = settings.FEATURE_RAM_BYTES.default,
    feature_ssd_bytes: FeatureSsd = settings.FEATURE_SSD_BYTES.default,
    block_tokens: Annotated[int | None, _flag(settings.BLOCK_TOKENS)] = None,
    threads: Annotated[int, _flag(settings.THREADS)] = settings.THREADS.default,
    dtype: Annotated[str | None, typer.Option(help=DTYPE_HELP)] = None,
    device: Annotated[str, typer.Option(help="torch device; only cpu is tested")] = "cpu",
    api_key: ApiKeys = None,
    running: Annotated[int, _flag(settings.RUNNING)] = settings.RUNNING.default,
    queued: Annotated[int, _flag(settings.QUEUED)] = settings.QUEUED.default,
    live_bytes: Annotated[str, _flag(settings.LIVE_BYTES)] = settings.LIVE_BYTES.default,
    client_requests: ClientRequests = settings.CLIENT_REQUESTS.default,
    stall_s: Annotated[float, _flag(settings.STALL_S)] = settings.STALL_S.default,
    idle: Annotated[int, _flag(settings.IDLE)] = settings.IDLE.default,
    audit_share: Annotated[float, _flag(settings.AUDIT_SHARE)] = settings.AUDIT_SHARE.default,
    restore_floor_s: RestoreFloor = settings.RESTORE_FLOOR_S.default,
    io_threads: Annotated[int, _flag(settings.IO_THREADS)] = settings.IO_THREADS.default,
    queue_bytes: Annotated[str, _flag(settings.QUEUE_BYTES)] = settings.QUEUE_BYTES.default,
    image_urls: Annotated[str, _flag(settings.IMAGE_URLS)] = settings.IMAGE_URLS.default,
    max_images: Annotated[int, _flag(settings.MAX_IMAGES)] = settings.MAX_IMAGES.default,
    image_bytes: Annotated[str, _flag(settings.IMAGE_BYTES)] = settings.IMAGE_BYTES.default,
    image_pixels: Annotated[int, _flag(settings.IMAGE_PIXELS)] = settings.IMAGE_PIXELS.default,
) -> None:
    """Serve MODEL over OpenAI-shaped HTTP, in the foreground, until SIGTERM or Ctrl-C."""
    from surefoot.cli.serve import ServeOptions, serve_forever  # noqa: PLC0415  start-up stays quick

    ssd = settings.parse_bytes(ssd_bytes, flag="--ssd-bytes")
    options = ServeOptions(
        model=model,
        host=host,
        port=port,
        store=settings.parse_store(store, default=cache_folder() / "store"),
        ram_bytes=settings.parse_bytes(ram_bytes, flag="--ram-bytes"),
        ssd_bytes=ssd,
        free_floor_bytes=settings.parse_bytes(free_floor, flag="--free-floor"),
        write_budget=settings.parse_bytes(write_budget, flag="--write-budget"),
        feature_ram_bytes=settings.parse_bytes(feature_ram_bytes, flag="--feature-ram-bytes"),
        feature_ssd_bytes=_feature_ssd(feature_ssd_bytes, ssd),
        block_tokens=_block_tokens(block_tokens),
        threads=settings.at_least(1, threads, flag="--threads"),
        dtype=dtype,
        device=device,
        api_keys=tuple(api_key or ()),
        running=settings.at_least(1, running, flag="--running"),
        queued=settings.at_least(1, queued, flag="--queued"),
        live_bytes=settings.parse_bytes(live_bytes, flag="--live-bytes"),
        client_requests=settings.at_least(1, client_requests, flag="--client-requests"),
        stall_s=settings.at_least(1, stall_s, flag="--stall-s"),
        idle=settings.at_least(0, idle, flag="--idle"),
        audit_share=settings.share(audit_share, flag="--audit-share"),
        restore_floor_s=settings.at_least(0, restore_floor_s, flag="--restore-floor-s"),
        io_threads=settings.at_least(1, io_threads, flag="--io-threads"),
        queue_bytes=settings.parse_bytes(queue_bytes, flag="--queue-bytes"),
        fetches=settings.one_of(("off", "public"), image_urls, flag="--image-urls") == "public",
        images=settings.at_least(1, max_images, flag="--max-images"),
        image_bytes=settings.parse_bytes(image_bytes, flag="--image-bytes", least=1),
        image_pixels=settings.at_least(1, image_pixels, flag="--image-pixels"),
    )
    raise typer.Exit(serve_forever(options))


def _feature_ssd(text: str, ssd: int) -> int:
    # Out of the whole store's bytes: a default that is larger than those is no mistake.
    return min(ssd, settings.parse_bytes(text, flag="--feature-ssd-bytes"))


def _block_tokens(given: int | None) -> int | None:
    return None if given is None else settings.at_least(1, given, flag="--block-tokens")


@app.command()
def demo(
    model: Annotated[
        str | None, typer.Argument(help="The model to serve; default: smollm2, or spark for images")
    ] = None,
    *,
    images: Annotated[bool, typer.Option("--images", help="show pictures instead")] = False,
    calls: Annotated[int, typer.Option(help="calls of each conversation to replay")] = 5,
    every: Annotated[bool, typer.Option("--all", help="replay every call")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print rows as JSON lines")] = False,
) -> None:
    """Replay recorded agent conversations cold, from RAM and from SSD; compare every bit.

    With --images, show pictures under one prompt instead, and compare every bit as well.
    """
    from surefoot.bench.demo import run_demo  # noqa: PLC0415  start-up stays quick
    from surefoot.bench.demo_images import questions, run_image_demo  # noqa: PLC0415
    from surefoot.bench.replay import recorded_calls  # noqa: PLC0415

    calls = settings.at_least(1, calls, flag="--calls")
    with tempfile.TemporaryDirectory(prefix="surefoot-demo-") as folder:
        if images:
            looks = demo_table.ImageTable(Console(), as_json=as_json)
            looks.begin(questions())
            shown = run_image_demo(
                model or "spark", Path(folder), on_process=looks.process, on_row=looks.row
            )
            good = looks.verdict(shown)
        else:
            table = demo_table.DemoTable(Console(), as_json=as_json)
            rows = run_demo(
                model or "smollm2",
                recorded_calls(calls=None if every else calls),
                Path(folder),
                on_process=table.process,
                on_row=table.row,
            )
            good = table.verdict(rows)
    raise typer.Exit(exits.OK if good else exits.DIFFERS)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="A table's name, or all.")] = "all",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print figures as JSON")] = False,
) -> None:
    """Measure and print the benchmark tables."""
    from surefoot.bench.tables import run_tables  # noqa: PLC0415  imports torch

    console = Console(stderr=as_json)
    results = run_tables(
        name,
        models=cache_folder(),
        wait_policy=os.environ["OMP_WAIT_POLICY"],
        say=partial(console.print, highlight=False, markup=False, soft_wrap=True),
    )
    if as_json:
        print(json.dumps(results, indent=2))


@app.command()
def probe(
    url: Annotated[str, typer.Argument(help="The server's base URL: http://host:port/v1.")],
    *,
    model: Annotated[str | None, typer.Option(help="model to ask; default: the first")] = None,
    api_key: ProbeKeys = None,
    legs: Annotated[str | None, typer.Option(help=LEGS_HELP)] = None,
    restart_cmd: Annotated[str | None, typer.Option(help=RESTART_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    html: Annotated[Path | None, typer.Option(help="write a page for people")] = None,
    junit: Annotated[Path | None, typer.Option(help="write JUnit XML for builds")] = None,
    seed: Annotated[int | None, typer.Option(help=SEED_HELP)] = None,
    budget_tokens: Annotated[int, _flag(settings.PROBE_TOKENS)] = settings.PROBE_TOKENS.default,
    budget_seconds: BudgetSeconds = settings.PROBE_SECONDS.default,
    error_rate: ErrorRate = settings.PROBE_ERROR_RATE.default,
) -> None:
    """Tell from outside whether the cache of any OpenAI-shaped server can be believed.

    Exits 0 if all legs that apply are CLEAN, 1 if one is CONTAMINATED or WRONG, 3 for DRIFT, 4 for
    INCONCLUSIVE. Let the server do nothing else meanwhile: times are part of the proof.
    """
    from surefoot.cli.probe_command import ProbeArguments, probe_server  # noqa: PLC0415

    arguments = ProbeArguments(
        url=url,
        keys=tuple(api_key or ()),
        model=model,
        legs=legs,
        restart_cmd=restart_cmd,
        as_json=as_json,
        html=html,
        junit=junit,
        seed=seed,
        budget_tokens=budget_tokens,
        budget_seconds=budget_seconds,
        error_rate=error_rate,
    )
    raise typer.Exit(probe_server(arguments))
