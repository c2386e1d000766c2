"""Figures of single rooms, measured in this process: names, plan, the cold overhead, decode.

The other tables speak HTTP and see a server from outside; these cannot be seen from there, which is
why this one module of the room imports the engine.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

from surefoot import identity
from surefoot.bench.tables import Bench, Table, median
from surefoot.bench.ttft import MODEL, drop_page_cache, tokens
from surefoot.cache import Cache, open_cache
from surefoot.cache.folder import INVENTORY
from surefoot.cache.inventory import Inventory
from surefoot.chat import load_chat
from surefoot.chat.request import TokensInput
from surefoot.engine import Sampling
from surefoot.engine.hf import HfEngine, load_engine, stock_decode
from surefoot.identity import ModelName
from surefoot.laws import TokenRows
from surefoot.prompt import Prompt, grid
from surefoot.receipt import Finish, Receipt
from surefoot.record import Header
from surefoot.settings import BLOCK_TOKENS, THREADS
from surefoot.state import ROWS, ComponentSchema, Group
from surefoot.turn import CacheMode, Ledger, Serving, TurnRequest, turn

LONG_TOKENS = 65_536
NAMES_TARGET_MS = 2.0
PLAN_TARGET_MS = 5.0
STORED_PARTS = 100_000
OVERHEAD_TOKENS = 4_000
OVERHEAD_TARGET = 0.05
DECODE_TARGETS = {100: 1.0, 4_000: 2.0}  # prefix tokens -> times transformers' own loop
DECODE_STEPS = 32
VERIFIED_TOKENS, NEW_TOKENS = 7_000, 64
VERIFIED_ROUNDS = 7
VERIFIED_TARGET = 1.1
BLOCK = BLOCK_TOKENS.default


def names(bench: Bench) -> Table:
    """Measure naming a 65,536-token prompt."""
    prompt = Prompt.of(tokens(LONG_TOKENS, seed=1))
    ends = grid(prompt, BLOCK)
    model, salt = ModelName(b"m" * 32), identity.salt_of(None, None)
    times = _repeat(50, lambda: identity.name_blocks(prompt, ends, model, salt))
    took = median(times) * 1000
    return Table(
        f"Names for a {LONG_TOKENS:,}-token prompt in blocks of {BLOCK}",
        ("median", "fastest"),
        ((f"{took:.2f} ms", f"{min(times) * 1000:.2f} ms"),),
        ((f"at most {NAMES_TARGET_MS} ms", took <= NAMES_TARGET_MS),),
    )


def plan(bench: Bench) -> Table:
    """Measure planning a 65,536-token prompt against a store of 100,000 parts."""
    group = Group("rows-0", TokenRows(), (ComponentSchema("rows", "uint8", (ROWS, 1)),))
    model, salt = ModelName(b"m" * 32), identity.salt_of(None, None)
    blocks_each = LONG_TOKENS // BLOCK
    with closing(_open(bench.folder / "store", model, (group,), ram_bytes=0)) as cache:
        # The index is what a plan asks; the records behind it are not looked at.
        index = Inventory(bench.folder / "store" / INVENTORY)
        for number in range(-(-STORED_PARTS // blocks_each)):
            prompt = Prompt.of(tokens(LONG_TOKENS, seed=number))
            named = identity.name_blocks(prompt, grid(prompt, BLOCK), model, salt)
            headers = (Header(block, "rows-0", bytes(32), ()) for block in named)
            index.adopt(((one, 4096) for one in headers), tick=number)
        index.close()
        bench.say(f"{cache.status()['tiers']['ssd']['parts']:,} parts are listed")
        rows = []
        for what, seed in (("all of it stored", 7), ("nothing of it stored", 10_000_000)):
            prompt = Prompt.of(tokens(LONG_TOKENS, seed=seed))
            blocks = identity.name_blocks(prompt, grid(prompt, BLOCK), model, salt)
            ask = partial(cache.plan, blocks, limit=len(blocks) - 1)
            rows.append((what, _repeat(20, ask)))
    worst = max(median(times) for _, times in rows) * 1000
    return Table(
        f"Plan for a {LONG_TOKENS:,}-token prompt against {STORED_PARTS:,} parts on SSD",
        ("prompt", "median", "slowest"),
        tuple(
            (what, f"{median(times) * 1000:.2f} ms", f"{max(times) * 1000:.2f} ms")
            for what, times in rows
        ),
        ((f"at most {PLAN_TARGET_MS} ms", worst <= PLAN_TARGET_MS),),
    )


def overhead(bench: Bench) -> Table:
    """Measure what naming, cutting, digesting and committing add to a cold TTFT."""
    engine = _engine(bench)
    chat = load_chat(engine.tokenizer_source)
    times: dict[str, list[float]] = {"engine alone": [], "turn that writes": []}
    for number in range(4):
        ids = tokens(OVERHEAD_TOKENS, seed=number)
        times["engine alone"].append(_time(partial(_prefill_alone, engine, ids)))
        store = bench.folder / str(number)
        with closing(_open(store, engine.model, engine.groups, ram_bytes=1 << 31)) as cache:
            serving = Serving(engine, chat, cache, time.monotonic, 1.0)
            request = TurnRequest(
                id="bench",
                input=TokensInput(tuple(ids)),
                sampling=Sampling(temperature=0.0),
                max_tokens=1,
                mode=CacheMode.WRITE,
            )
            ledger = Ledger(request, serving, time.monotonic())
            times["turn that writes"].append(_time(partial(list, turn(ledger))))
            assert cache.drain(60)
        bench.say(
            f"round {number + 1}: " + ", ".join(f"{k} {v[-1]:.2f} s" for k, v in times.items())
        )
    alone, whole = (median(one[1:]) for one in times.values())  # the first round warms up
    added = whole / alone - 1
    return Table(
        f"Cold overhead at {OVERHEAD_TOKENS:,} tokens ({MODEL}, bf16)",
        ("engine alone", "naming, sealing, committing included", "added"),
        ((f"{alone:.2f} s", f"{whole:.2f} s", f"{added:+.1%}"),),
        ((f"at most {OVERHEAD_TARGET:.0%}", added <= OVERHEAD_TARGET),),
    )


def decode(bench: Bench) -> Table:
    """Measure decoding against transformers' own ``generate`` on the same weights."""
    engine = _engine(bench)
    rows, targets = [], []
    for prefix, target in DECODE_TARGETS.items():
        ids = tokens(prefix, seed=3)
        ours, stock = [], []
        for _ in range(3):
            ours.append(_decode_rate(engine, ids))
            stock.append(stock_decode(engine, ids, DECODE_STEPS, time.monotonic))
            bench.say(f"{prefix} tokens: {ours[-1]:.1f} against {stock[-1]:.1f} tokens/s")
        ratio = median(ours) / median(stock)
        rows.append((str(prefix), f"{median(ours):.1f}", f"{median(stock):.1f}", f"{ratio:.2f}x"))
        targets.append((f"at least {target:g}x at {prefix:,} tokens", ratio >= target))
    return Table(
        f"Decode, tokens/s ({MODEL}, bf16, {DECODE_STEPS} tokens)",
        ("prefix", "surefoot", "transformers generate", "ratio"),
        tuple(rows),
        tuple(targets),
    )


def verification(bench: Bench) -> Table:
    """Measure TTFT from SSD with verification, and with its digests left out, in turns."""
    engine = _engine(bench)
    chat = load_chat(engine.tokenizer_source)
    stored = tokens(VERIFIED_TOKENS, seed=5)
    times: dict[bool, list[float]] = {True: [], False: []}
    with closing(_open(bench.folder / "store", engine.model, engine.groups, ram_bytes=0)) as cache:
        serving = Serving(engine, chat, cache, time.monotonic, 60.0)
        _first_token(serving, stored)
        assert cache.drain(60)
        for number in range(VERIFIED_ROUNDS):
            for verified in (True, False) if number % 2 else (False, True):
                drop_page_cache(bench.folder / "store")
                ids = stored + tokens(NEW_TOKENS, seed=100 + number)
                with nullcontext() if verified else _unverified():
                    took, receipt = _first_token(serving, ids, mode=CacheMode.READ)
                assert receipt.restored_tokens == VERIFIED_TOKENS // BLOCK * BLOCK, receipt
                times[verified].append(took)
            bench.say(f"round {number + 1}: {times[True][-1]:.3f} s, {times[False][-1]:.3f} s")
    with_it, without = (median(times[verified]) for verified in (True, False))
    return Table(
        f"TTFT from SSD, {VERIFIED_TOKENS:,} tokens stored and {NEW_TOKENS} new ({MODEL}, bf16)",
        ("verified", "digests left out", "ratio"),
        ((f"{with_it:.3f} s", f"{without:.3f} s", f"{with_it / without:.3f}"),),
        ((f"at most {VERIFIED_TARGET}x", with_it <= VERIFIED_TARGET * without),),
    )


def _first_token(
    serving: Serving, ids: list[int], mode: CacheMode = CacheMode.USE
) -> tuple[float, Receipt]:
    request = TurnRequest(
        id="bench",
        input=TokensInput(tuple(ids)),
        sampling=Sampling(temperature=0.0),
        max_tokens=1,
        mode=mode,
    )
    ledger = Ledger(request, serving, time.monotonic())
    took = _time(partial(list, turn(ledger)))
    receipt = ledger.seal(Finish.LENGTH)
    assert receipt is not None
    return took, receipt


class _Anything:
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


@contextmanager
def _unverified() -> Iterator[None]:
    """Take a record's two digests for right without making them."""
    # The package's function of the same name hides the module from an import statement.
    sealing = sys.modules["surefoot.record.seal"]
    with (
        patch.object(sealing, "_seal", lambda *_: _Anything()),
        patch.object(sealing, "_header_digest", lambda *_: _Anything()),
    ):
        yield


def _engine(bench: Bench) -> HfEngine:
    return load_engine(
        MODEL,
        threads=THREADS.default,
        block_tokens=BLOCK,
        dtype=None,
        attention=None,
        device="cpu",
        cache_folder=bench.models,
        progress=bench.say,
        clock=time.monotonic,
    )


def _open(store: Path, model: ModelName, groups: tuple[Group, ...], *, ram_bytes: int) -> Cache:
    return open_cache(
        model=model,
        groups=groups,
        feature_schema=None,
        store=store,
        ram_bytes=ram_bytes,
        ssd_bytes=1 << 36,
        feature_ram_bytes=0,
        feature_ssd_bytes=0,
        free_floor_bytes=0,
        io_threads=4,
        queue_bytes=1 << 29,
        clock=time.monotonic,
        wall_clock=time.time,
        random_bytes=bytes,
    )


def _prefill_alone(engine: HfEngine, ids: list[int]) -> None:
    prompt = Prompt.of(ids)
    with closing(engine.begin(prompt, Sampling(temperature=0.0))) as run:
        for end in sorted({*grid(prompt, BLOCK), len(prompt)}):
            run.prefill(end)
        run.sample()


def _decode_rate(engine: HfEngine, ids: list[int]) -> float:
    prompt = Prompt.of(ids)
    with closing(engine.begin(prompt, Sampling(temperature=0.0))) as run:
        for end in sorted({*grid(prompt, BLOCK), len(prompt)}):
            run.prefill(end)
        token = run.sample().token
        started = time.monotonic()
        for _ in range(DECODE_STEPS):
            run.feed(token)
            token = run.sample().token
        return DECODE_STEPS / (time.monotonic() - started)


def _repeat(times: int, run: Callable[[], object]) -> list[float]:
    return [_time(run) for _ in range(times)]


def _time(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
