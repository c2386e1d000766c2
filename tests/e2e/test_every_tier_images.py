"""I5 with images through the whole stack: cold == RAM == SSD == another process, per family.

A donor conversation is written first: one prompt of text and three images. Every borrower shares
text with it and something else is different: an image, its place, its order, or that there is one
at all. Whatever is restored, rows or features, from whichever tier and in whichever process, the
answer's eight tokens, every row of its logits and every tensor, counter and flag of the live cache
are those of the same prompt computed cold.

Run as a script, this file is the other process.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from surefoot.testing.families import IMAGE_FAMILIES, image, shown
from surefoot.testing.witness import AMPLE, WatchedEngine, opened
from surefoot.turn import CacheMode

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LEGS = ("ram", "ssd", "process", "own")
STEP = 64


def pictures(name):
    return image(name, 1), image(name, 2, 3, 7), image(name, 3, 6, 2), image(name, 4)


def donor(name):
    first, second, third, _ = pictures(name)
    return shown(STEP + 10, first, 90, second, 20, third, 40)


def borrowers(name):
    """Prompts that leave the donor at an image, behind one, or never; and what each restores."""
    first, second, third, other = pictures(name)
    same = (STEP + 10, first, 90)
    yield "the same again", donor(name), ()
    yield "another image", shown(STEP + 10, other, 90, second, 20, third, 40), {other}
    yield "the second replaced", shown(*same, other, 20, third, 40), {other}
    yield "the second removed", shown(*same, 20, third, 40), ()
    yield "two swapped", shown(*same, third, 20, second, 40), ()
    yield "text alone", shown(STEP + 10, 150), ()
    yield "one image, nothing else", shown(STEP - 1, first, 30), ()


def ask_all(engine, cache, name, mode):
    return {
        what: engine.answer(cache, prompt, mode, media)
        for what, (prompt, media), _ in borrowers(name)
    }


@cache
def engine_of(name, dtype):
    return WatchedEngine(name, DTYPES[dtype])


@pytest.fixture(
    scope="module", params=["bfloat16", pytest.param("float32", marks=pytest.mark.long)]
)
def answers(request, tmp_path_factory):
    """Every answer on every leg, in one dtype: {name: {leg: {prompt: answer}}}."""
    threads = torch.get_num_threads()
    yield every_answer(tmp_path_factory.mktemp("stores-of-images"), request.param)
    torch.set_num_threads(threads)


def every_answer(stores, dtype):
    found = {}
    for name in IMAGE_FAMILIES:
        engine = engine_of(name, dtype)
        assert engine.engine.unsupported is None, (name, engine.engine.unsupported)
        legs = found[name] = {}
        store = stores / name
        prompt, media = donor(name)
        with opened(engine, store, ram_bytes=AMPLE) as held:
            legs["cold"] = ask_all(engine, held, name, CacheMode.BYPASS)
            engine.answer(held, prompt, CacheMode.WRITE, media)
            legs["ram"] = ask_all(engine, held, name, CacheMode.READ)
        with opened(engine, store, ram_bytes=0) as held:
            legs["ssd"] = ask_all(engine, held, name, CacheMode.READ)
    run = [sys.executable, __file__, str(stores), dtype]
    out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        name, there = json.loads(line)
        found[name]["process"] = there
    for name in IMAGE_FAMILIES:
        engine = engine_of(name, dtype)
        with opened(engine, stores / name, ram_bytes=AMPLE) as held:
            ask_all(engine, held, name, CacheMode.USE)
            found[name]["own"] = ask_all(engine, held, name, CacheMode.READ)
    return found


@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize("name", IMAGE_FAMILIES)
def test_every_leg_is_the_cold_answer_and_spares_the_tower_what_is_stored(answers, name, leg):
    legs = answers[name]
    tiers = {"ram": {"ram"}, "ssd": {"ssd"}, "process": {"ssd"}, "own": {"ram", "ssd"}}[leg]
    for what, (_, media), new in borrowers(name):
        warm, cold = legs[leg][what], legs["cold"][what]
        for field in ("tokens", "logits", "state", "state_digest"):
            assert warm[field] == cold[field], (what, field)
        assert (cold["restored"], any(cold["feature_hits"])) == (0, False)
        assert cold["encoded"] == len({item.name for item in media})
        assert set(warm["sources"]) <= tiers
        # Only an image that nobody had seen is encoded, and on the last leg nothing is.
        unseen = () if leg == "own" else new
        assert warm["encoded"] == len(unseen), what
        assert warm["feature_hits"] == [item not in unseen for item in media], what
        assert warm["restored"] >= STEP or what == "one image, nothing else", what


def test_what_differs_between_the_prompts_shows_in_their_answers(answers):
    for name in IMAGE_FAMILIES:
        logits = [answer["logits"][0] for answer in answers[name]["cold"].values()]
        assert len(set(logits)) == len(logits), name


def main(stores, dtype):
    """Answer every prompt from stores that another process wrote."""
    for name in IMAGE_FAMILIES:
        engine = WatchedEngine(name, DTYPES[dtype])
        with opened(engine, stores / name, ram_bytes=0) as held:
            there = ask_all(engine, held, name, CacheMode.READ)
        print(json.dumps([name, there]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
