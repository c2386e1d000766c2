"""``surefoot cache audit``: load a model, and compare what is stored of it with what it computes.

Works beside a running server: what it quarantines, every process that has the store open bars
before its next plan. It opens the store without a quota of its own, so it collects nothing.
"""

import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from surefoot import identity, settings
from surefoot.cache import Cache, open_cache, store_stats
from surefoot.cache.audit import AuditVerdict
from surefoot.cache.origins import noted_model
from surefoot.cli import exits
from surefoot.cli.folders import cache_folder
from surefoot.cli.tending import JsonFlag, StoreFlag, store_folder
from surefoot.errors import SetupError
from surefoot.identity import BlockName, ModelName
from surefoot.turn import Serving
from surefoot.turn.audit import Audit, audit_chains, outcome

SAMPLE = 16  # chains, if nothing else is said: a minute or two on a laptop
IO_THREADS = 2
UNBOUNDED = 2**62  # bytes; a quota of a command would collect what a server keeps
SEED_BITS = 32

MODEL_HELP = "the model, as it was served; default: the one that was last open on the store"
SampleFlag = Annotated[
    int | None, typer.Option(help=f"chains to audit, drawn by the seed; default: {SAMPLE}")
]
AllFlag = Annotated[bool, typer.Option("--all", help="audit every chain")]
SeedFlag = Annotated[int | None, typer.Option(help="draw what this seed drew before")]


def audit(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    *,
    store: StoreFlag = "",
    sample: SampleFlag = None,
    every: AllFlag = False,
    seed: SeedFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Compute stored prefixes anew and compare; what differs is quarantined.

    A model that differs from itself quarantines nothing: its answers are called numeric then. What
    holds images cannot be computed without them; a running server audits that while it has them.
    """
    if every and sample is not None:
        raise SetupError("give --sample or --all, not both")
    wanted = settings.at_least(1, SAMPLE if sample is None else sample, flag="--sample")
    drawn_by = secrets.randbits(SEED_BITS) if seed is None else seed
    report = audit_store(store_folder(store), model, None if every else wanted, drawn_by)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    counts = (report["blocks"], report["features"])
    bad = sum(one["differed"] + one["unrepeatable"] for one in counts)
    raise typer.Exit(exits.DIFFERS if bad else exits.OK)


def audit_store(path: Path, model: str | None, count: int | None, seed: int) -> dict[str, Any]:
    """Audit chains of one model of a store, as many as ``count``; return what was found.

    Raises:
        SetupError: the model cannot be told or loaded, or nothing is stored of it.
    """
    stored = {name: one for name, one in store_stats(path)["models"].items() if one["parts"]}
    serving, loaded_as = _serving(path, model, stored)
    try:
        report = _audit(serving, count, seed)
    finally:
        _close(serving.cache)
    name = serving.engine.model.hex()
    return report | {
        "model": name,
        "loaded_as": loaded_as,
        "other_models": {other: one["parts"] for other, one in stored.items() if other != name},
    }


def _audit(serving: Serving, count: int | None, seed: int) -> dict[str, Any]:
    leaves = [leaf.name for leaf in serving.cache.auditor.all_leaves()]
    chosen = drawn(leaves, seed)[:count]
    accounts: list[Audit] = []
    progress = _Progress(len(chosen))

    def on_chain(account: Audit) -> None:
        accounts.append(account)
        progress(len(accounts), account.computed_tokens)

    audit_chains(serving, chosen, on_chain)
    return {
        "seed": seed,
        "chains": len(chosen),
        "of_chains": len(leaves),
        "computed_tokens": sum(one.computed_tokens for one in accounts),
        "blocks": _counts(verdict for one in accounts for verdict in one.verdicts.values()),
        "features": _counts(verdict for one in accounts for verdict in one.features.values()),
        "findings": [
            {"what": one.finding, "outcome": outcome(one), "fence": one.fence and one.fence.number}
            for one in accounts
            if one.finding is not None
        ],
    }


def drawn(leaves: Iterable[BlockName], seed: int) -> list[BlockName]:
    """Return the blocks in an order that the seed decides, whatever order they came in."""
    return sorted(leaves, key=lambda name: identity.settings_digest(f"audit {seed}", name.hex()))


def _counts(verdicts: Iterable[AuditVerdict]) -> dict[str, int]:
    counted = Counter(verdicts)
    return {verdict.value: counted[verdict] for verdict in AuditVerdict}


def _serving(
    folder: Path, model: str | None, stored: Mapping[str, Mapping[str, Any]]
) -> tuple[Serving, dict[str, Any]]:
    """Load the model as it was loaded when it stored what is there, and open the store for it."""
    from surefoot.chat import ImageLimits, load_chat  # noqa: PLC0415  torch takes seconds
    from surefoot.engine.hf import load_engine  # noqa: PLC0415

    loaded_as = _loaded_as(folder, model, stored)
    engine = load_engine(
        loaded_as["model"],
        threads=loaded_as["threads"],
        block_tokens=loaded_as["block_tokens"],
        dtype=loaded_as["dtype"],
        attention=None,
        device=loaded_as["device"],
        cache_folder=cache_folder(),
        progress=lambda line: print(f"surefoot: {line}", file=sys.stderr),
        clock=time.monotonic,
    )
    if engine.unsupported is not None:
        raise SetupError(f"{loaded_as['model']} is served without a cache: {engine.unsupported}")
    if engine.model.hex() not in stored:
        raise SetupError(
            f"nothing is stored of {loaded_as['model']} as it computes here, which is model "
            f"{engine.model.hex()[:16]}; the store holds {_listed(folder, stored)}"
        )
    limits = ImageLimits(bytes=1, pixels=1, images=1)  # no image is read here
    chat = load_chat(engine.tokenizer_source, limits=limits, sees=engine.features is not None)
    cache = open_cache(
        model=engine.model,
        groups=engine.groups,
        feature_schema=engine.features,
        store=folder,
        ram_bytes=0,
        ssd_bytes=UNBOUNDED,
        feature_ram_bytes=0,
        feature_ssd_bytes=UNBOUNDED,
        free_floor_bytes=0,
        io_threads=IO_THREADS,
        queue_bytes=UNBOUNDED,
        clock=time.monotonic,
        wall_clock=time.time,
    )
    serving = Serving(engine, chat, cache, time.monotonic, settings.RESTORE_FLOOR_S.default)
    return serving, loaded_as


def _loaded_as(
    folder: Path, model: str | None, stored: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return how to load the model: as noted beside what it stored, else by default."""
    notes = {name: noted_model(folder, ModelName(bytes.fromhex(name))) for name in stored}
    fitting = [
        (stored[name]["last_open"] or 0.0, name, dict(note.loaded_as))
        for name, note in notes.items()
        if note is not None and model in (None, note.loaded_as["model"])
    ]
    if fitting:
        return max(fitting)[2]
    if model is None:
        raise SetupError(f"name the MODEL to audit; the store holds {_listed(folder, stored)}")
    from surefoot.engine.hf.builtin import default_block_tokens  # noqa: PLC0415

    return {
        "model": model,
        "threads": settings.THREADS.default,
        "block_tokens": default_block_tokens(model),
        "dtype": None,
        "device": "cpu",
    }


def _listed(folder: Path, stored: Mapping[str, Mapping[str, Any]]) -> str:
    texts = []
    for name, one in stored.items():
        note = noted_model(folder, ModelName(bytes.fromhex(name)))
        loaded = f" ({note.loaded_as['model']})" if note else ""
        texts.append(f"{one['parts']} parts of model {name[:16]}{loaded}")
    return ", ".join(texts) or "no parts at all"


def _close(cache: Cache) -> None:
    cache.drain(settings.DRAIN_S.default)  # the verdicts
    cache.close()


def _show(report: Mapping[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"audited {report['chains']} of {report['of_chains']} chains of "
        f"{report['loaded_as']['model']}, model {report['model'][:16]}, drawn by --seed "
        f"{report['seed']}; {report['computed_tokens']} tokens computed"
    )
    table = Table("verdict", "blocks", "features")
    for verdict in AuditVerdict:
        table.add_row(verdict, str(report["blocks"][verdict]), str(report["features"][verdict]))
    console.print(table)
    if report["blocks"][AuditVerdict.UNAUDITABLE]:
        console.print(
            "unauditable: computed from images, which no store holds, or after tokens that left "
            "it; a running server audits such blocks while it has both"
        )
    for one in report["findings"]:
        console.print(f"{one['what']}: {one['outcome']}")
    for name, parts in report["other_models"].items():
        console.print(f"not audited: {parts} parts of another model, {name[:16]}")


class _Progress:
    """Says how far the audit is, on a terminal only."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._tokens = 0
        self._shown = sys.stderr.isatty()

    def __call__(self, done: int, tokens: int) -> None:
        self._tokens += tokens
        if self._shown:
            end = "\n" if done == self._total else ""
            text = f"\raudited {done} of {self._total} chains, {self._tokens} tokens computed"
            print(text, end=end, file=sys.stderr, flush=True)
