"""I5 through the whole stack: cold == RAM == SSD == another process, for every text family.

One long conversation A is written. Every other prompt shares only its first n tokens with A, then
differs: the donor case. Whatever is restored, from whichever tier and in whichever process, the
answer's tokens, every row of its logits and every tensor, counter and flag of the live cache are
those of the same prompt computed cold. Then the prompt's own blocks are written over A's and
restored in turn.

Run as a script, this file is the other process.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from surefoot.testing.families import FAMILIES, VOCABULARY
from surefoot.testing.witness import AMPLE, WatchedEngine, opened
from surefoot.turn import CacheMode

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LEGS = ("ram", "ssd", "process", "own")


def tokens(count, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (count,), generator=draw).tolist()


def donor(block):
    return tokens(4 * block + 7, seed=1)


def borrowers(block):
    """Lengths around every boundary, sharing a little, a boundary, or all with the donor."""
    long = donor(block)
    for n in (block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1, 3 * block + 1):
        yield f"prefix of {n}", long[:n]
    for shared in (block, 2 * block + 3):
        yield f"leaves at {shared}", long[:shared] + tokens(block + 5, seed=2)


def ask_all(engine, cache, block, mode):
    return {what: engine.answer(cache, mine, mode) for what, mine in borrowers(block)}


@cache
def engine_of(name, dtype):
    return WatchedEngine(name, DTYPES[dtype])


@pytest.fixture(
    scope="module", params=["bfloat16", pytest.param("float32", marks=pytest.mark.long)]
)
def answers(request, tmp_path_factory):
    """Every answer on every leg, in one dtype: {name: {leg: {prompt: answer}}}."""
    threads = torch.get_num_threads()
    yield every_answer(tmp_path_factory.mktemp("stores-of-families"), request.param)
    torch.set_num_threads(threads)


def every_answer(stores, dtype):
    found = {}
    for name in FAMILIES:
        block = FAMILIES[name].block_tokens
        engine = engine_of(name, dtype)
        assert engine.engine.unsupported is None, (name, engine.engine.unsupported)
        legs = found[name] = {}
        store = stores / name
        with opened(engine, store, ram_bytes=AMPLE) as held:
            legs["cold"] = ask_all(engine, held, block, CacheMode.BYPASS)
            engine.answer(held, donor(block), CacheMode.WRITE)
            legs["ram"] = ask_all(engine, held, block, CacheMode.READ)
        with opened(engine, store, ram_bytes=0) as held:
            legs["ssd"] = ask_all(engine, held, block, CacheMode.READ)
    run = [sys.executable, __file__, str(stores), dtype]
    out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        name, there = json.loads(line)
        found[name]["process"] = there
    for name in FAMILIES:
        block = FAMILIES[name].block_tokens
        engine = engine_of(name, dtype)
        with opened(engine, stores / name, ram_bytes=AMPLE) as held:
            ask_all(engine, held, block, CacheMode.USE)
            found[name]["own"] = ask_all(engine, held, block, CacheMode.READ)
    return found


@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_leg_is_the_cold_answer_and_names_its_tier(answers, name, leg):
    block = FAMILIES[name].block_tokens
    legs = answers[name]
    for what, warm in legs[leg].items():
        cold = legs["cold"][what]
        for field in ("tokens", "logits", "state", "state_digest"):
            assert warm[field] == cold[field], (what, field)
        assert cold["restored"] == 0
        tiers = {"ram": {"ram"}, "ssd": {"ssd"}, "process": {"ssd"}, "own": {"ram", "ssd"}}[leg]
        assert set(warm["sources"]) <= tiers
        if what not in (f"prefix of {block - 1}", f"prefix of {block}"):
            assert warm["restored"] >= block, (what, "a leg that restored nothing proves nothing")


def main(stores, dtype):
    """Answer every prompt from stores that another process wrote."""
    for name in FAMILIES:
        engine = WatchedEngine(name, DTYPES[dtype])
        with opened(engine, stores / name, ram_bytes=0) as held:
            there = ask_all(engine, held, FAMILIES[name].block_tokens, CacheMode.READ)
        print(json.dumps([name, there]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
