"""What shared prefixes cost on disk: many conversations over one long prompt."""

from pathlib import Path

from surefoot.bench.process import ServerProcess
from surefoot.bench.tables import Bench, Table
from surefoot.bench.ttft import MODEL, tokens

CONVERSATIONS = 64
SHARED, TOTAL = 4000, 4500
BLOCK = 256
TARGET = 1.05


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


def _part_bytes(records: list[Path]) -> int:
    """Return the state bytes of one block: what a record holds beside its header."""
    layers, heads, head_dim, bf16 = 30, 3, 64, 2
    expected = layers * 2 * heads * BLOCK * head_dim * bf16
    assert all(path.stat().st_size >= expected for path in records)
    return expected
