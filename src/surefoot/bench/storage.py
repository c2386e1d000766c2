"""What shared prefixes cost on disk, and how fast a lost index is rebuilt from what lies there."""

import time
from contextlib import closing
from pathlib import Path

from surefoot.bench.process import ServerProcess
from surefoot.bench.tables import Bench, Table, median
from surefoot.bench.ttft import MODEL, tokens
from surefoot.cache import Cache, open_cache
from surefoot.cache.folder import INVENTORY, RECORDS
from surefoot.identity import ModelName, name_blocks, salt_of
from surefoot.laws import TokenRows
from surefoot.prompt import Prompt, grid
from surefoot.record import content, key, seal
from surefoot.state import ROWS, Component, ComponentSchema, Group, Part

CONVERSATIONS = 64
SHARED, TOTAL = 4000, 4500
BLOCK = 256
TARGET = 1.05
REBUILT_RECORDS = 20_000
REBUILT_TARGET = 5_000  # records a second
ROWS_GROUP = Group("rows-0", TokenRows(), (ComponentSchema("rows", "uint8", (ROWS, 1)),))


def shared_prefixes(bench: Bench) -> Table:
    """Store 64 conversations that share 4,000 of 4,500 tokens and count bytes by ``du``'s rule."""
    store = bench.folder / "store"
    flags = ["--store", str(store), "--idle", "0", "--block-tokens", str(BLOCK)]
    shared = tokens(SHARED, seed=1)
    with ServerProcess(MODEL, bench.folder / "server.log", flags) as server:
        for number in range(CONVERSATIONS):
            body = {
                "model": MODEL,
                "prompt": shared + tokens(TOTAL - SHARED, seed=100 + number),
                "max_tokens": 1,
                "temperature": 0,
            }
            server.client.ask(body, chat=False)
            if number % 16 == 15:
                bench.say(f"{number + 1} conversations")
        server.client.wait_written()
    records = list(store.rglob("*.rec"))
    used = sum(path.stat().st_blocks * 512 for path in records)
    shared_blocks = SHARED // BLOCK
    distinct = shared_blocks + CONVERSATIONS * (TOTAL // BLOCK - shared_blocks)
    payload = distinct * _part_bytes(records)
    return Table(
        f"Disk for {CONVERSATIONS} conversations that share {SHARED} of {TOTAL} tokens",
        ("records", "distinct blocks by name", "bytes by du", "bytes of distinct blocks", "ratio"),
        (
            (
                str(len(records)),
                str(distinct),
                f"{used / 1e6:.1f} MB",
                f"{payload / 1e6:.1f} MB",
                f"{used / payload:.4f}",
            ),
        ),
        ((f"at most {TARGET}x", used <= TARGET * payload),),
    )


def rebuild(bench: Bench) -> Table:
    """Measure opening a store whose index is lost: every header is read and verified."""
    store = bench.folder / "store"
    _fill(store / RECORDS)
    rates = []
    for _ in range(3):
        for path in store.glob(f"{INVENTORY}*"):
            path.unlink()
        started = time.perf_counter()
        with closing(_open(store)) as cache:
            rates.append(REBUILT_RECORDS / (time.perf_counter() - started))
            assert cache.status()["tiers"]["ssd"]["parts"] == REBUILT_RECORDS
        bench.say(f"{rates[-1]:,.0f} records/s")
    return Table(
        f"A lost index rebuilt from {REBUILT_RECORDS:,} records of {BLOCK} tokens",
        ("median", "slowest"),
        ((f"{median(rates):,.0f} records/s", f"{min(rates):,.0f} records/s"),),
        ((f"at least {REBUILT_TARGET:,} records/s", median(rates) >= REBUILT_TARGET),),
    )


def _fill(records: Path) -> None:
    """Write records whose state is small, so that their headers are what counts."""
    model = ModelName(b"m" * 32)
    part = Part("rows-0", (Component("rows", "uint8", (BLOCK, 1), bytes(BLOCK)),))
    prompt = Prompt.of(tokens(REBUILT_RECORDS * BLOCK, seed=1))
    for block in name_blocks(prompt, grid(prompt, BLOCK), model, salt_of(None, None)):
        name = key(block.name, part.group)
        folder = records / name[:2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.rec").write_bytes(seal(block, part, content=content(part)))


def _open(store: Path) -> Cache:
    return open_cache(
        model=ModelName(b"m" * 32),
        groups=(ROWS_GROUP,),
        feature_schema=None,
        store=store,
        ram_bytes=0,
        ssd_bytes=1 << 40,
        feature_ram_bytes=0,
        feature_ssd_bytes=0,
        free_floor_bytes=0,
        io_threads=4,
        queue_bytes=1 << 29,
        clock=time.monotonic,
        wall_clock=time.time,
    )


def _part_bytes(records: list[Path]) -> int:
    """Return the state bytes of one block: what a record holds beside its header."""
    layers, heads, head_dim, bf16 = 30, 3, 64, 2
    expected = layers * 2 * heads * BLOCK * head_dim * bf16
    assert all(path.stat().st_size >= expected for path in records)
    return expected
