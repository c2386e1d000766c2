"""Time to the first token: cold, from RAM, and from SSD after a restart, through a real server.

A prompt is token ids, so its length is exact. What is stored has L tokens; what is asked has the
same L tokens and a suffix of 64 that the server has never seen.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from surefoot.bench.client import Client
from surefoot.bench.process import ServerProcess
from surefoot.bench.tables import Bench, Table, median

MODEL = "smollm2"  # SmolLM2-135M-Instruct: Q4_1 weights, expanded to bfloat16
LENGTHS = (1000, 2000, 4000, 7000)
SUFFIX_TOKENS = 64
BLOCK_TOKENS = (64, 128, 256, 512)
BLOCK_LENGTH = 4000  # stored tokens in the table of block lengths
WARM_REPEATS = 5
COLD_REPEATS = 3
RAM_TARGET, SSD_TARGET = 15.0, 10.0  # times faster than cold at the longest length


@dataclass(slots=True)
class Legs:
    """TTFTs in seconds at one stored length."""

    length: int
    cold: list[float] = field(default_factory=list)
    ram: list[float] = field(default_factory=list)
    ssd_dropped: list[float] = field(default_factory=list)
    ssd_cached: list[float] = field(default_factory=list)
    restored: int = 0


def by_length(bench: Bench) -> Table:
    """Measure TTFT at four stored lengths with the default block length."""
    legs = _measure(bench, LENGTHS, (), cold_repeats=COLD_REPEATS)
    last = legs[-1]
    ram, ssd = _ratio(last.cold, last.ram), _ratio(last.cold, last.ssd_dropped)
    return Table(
        f"TTFT in seconds, {SUFFIX_TOKENS} new tokens after a stored prefix ({MODEL}, bf16)",
        ("stored", "restored", "cold", "RAM", "SSD, page cache dropped", "SSD, page cache warm"),
        tuple(
            (
                str(one.length),
                str(one.restored),
                f"{median(one.cold):.2f}",
                _against(one.cold, one.ram),
                _against(one.cold, one.ssd_dropped),
                _against(one.cold, one.ssd_cached),
            )
            for one in legs
        ),
        (
            (f"RAM at {last.length}: {ram:.1f}x, at least {RAM_TARGET:.0f}x", ram >= RAM_TARGET),
            (
                f"SSD (page cache dropped) at {last.length}: {ssd:.1f}x, "
                f"at least {SSD_TARGET:.0f}x",
                ssd >= SSD_TARGET,
            ),
        ),
    )


def by_block_tokens(bench: Bench) -> Table:
    """Measure what the block length costs and saves, at one stored length."""
    rows = []
    for block_tokens in BLOCK_TOKENS:
        bench.say(f"blocks of {block_tokens}")
        place = replace(bench, folder=bench.folder / str(block_tokens))
        place.folder.mkdir()
        flags = ("--block-tokens", str(block_tokens))
        (one,) = _measure(place, (BLOCK_LENGTH,), flags, cold_repeats=2)
        sizes = [path.stat().st_size for path in (place.folder / "store").rglob("*.rec")]
        rows.append(
            (
                str(block_tokens),
                f"{median(one.cold):.2f}",
                str(one.restored),
                str(one.length + SUFFIX_TOKENS - one.restored),
                f"{median(one.ram):.3f}",
                f"{median(one.ssd_dropped):.3f}",
                str(len(sizes)),
                f"{max(sizes) / 1e6:.1f} MB",
            )
        )
    return Table(
        f"Block length at {BLOCK_LENGTH} stored + {SUFFIX_TOKENS} new tokens ({MODEL}, bf16)",
        ("block", "cold TTFT", "restored", "computed", "RAM", "SSD", "records", "record"),
        tuple(rows),
    )


def tokens(count: int, *, seed: int) -> list[int]:
    """Return ``count`` token ids that look like nothing else with another seed."""
    state, ids = seed * 2 + 1, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(100 + (state >> 33) % 40_000)
    return ids


def drop_page_cache(store: Path) -> None:
    """Ask the kernel to forget the store's pages, so that the next read is the disk's."""
    for path in store.rglob("*.rec"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _measure(
    bench: Bench, lengths: Sequence[int], flags: Sequence[str], *, cold_repeats: int
) -> list[Legs]:
    folder, store = bench.folder, bench.folder / "store"
    common = ["--store", str(store), "--idle", "0", *flags]
    legs = [Legs(length) for length in lengths]
    with ServerProcess(MODEL, folder / "ram.log", common) as server:
        for one in legs:
            bench.say(f"{one.length} tokens: cold and RAM")
            ask = _asker(server.client, one.length)
            one.cold = [ask("bypass", 900 + i) for i in range(cold_repeats)]
            _store(server.client, one.length)
            one.ram = [ask("read", 100 + i) for i in range(WARM_REPEATS)]
        server.client.wait_written()
    with ServerProcess(MODEL, folder / "ssd.log", [*common, "--ram-bytes", "0"]) as server:
        for one in legs:
            bench.say(f"{one.length} tokens: SSD")
            ask = _asker(server.client, one.length)
            for i in range(WARM_REPEATS):
                drop_page_cache(store)
                one.ssd_dropped.append(ask("read", 200 + i))
                one.ssd_cached.append(ask("read", 300 + i))
            answer = server.client.ask(_body(one.length, 400), mode="read", chat=False)
            one.restored = answer.receipt["restored_tokens"]
    return legs


def _asker(client: Client, length: int) -> Callable[[str, int], float]:
    def ask(mode: str, suffix: int) -> float:
        return client.ask(_body(length, suffix), mode=mode, chat=False).ttft_s

    return ask


def _store(client: Client, length: int) -> None:
    # One token more than the prefix, so that every whole block of it is committed.
    body = _body(length, 0) | {"prompt": [*tokens(length, seed=length), 99]}
    client.ask(body, mode="write", chat=False)


def _body(length: int, suffix: int) -> dict[str, object]:
    prompt = tokens(length, seed=length) + tokens(SUFFIX_TOKENS, seed=length + 10_000 * suffix)
    return {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}


def _ratio(cold: Sequence[float], warm: Sequence[float]) -> float:
    return median(cold) / median(warm)


def _against(cold: Sequence[float], warm: Sequence[float]) -> str:
    return f"{median(warm):.3f} ({_ratio(cold, warm):.1f}x)"
