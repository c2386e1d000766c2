"""``surefoot cache audit`` on a store of the built-in model that sees, which loads in a second."""

import json
import time

import pytest
import torch

from surefoot.cache import open_cache, store_entries
from surefoot.cache.origins import note_model
from surefoot.chat import ImageLimits, load_chat
from surefoot.chat.request import TextInput
from surefoot.cli import app, exits
from surefoot.cli.audit_command import drawn
from surefoot.engine import Sampling
from surefoot.engine.hf import load_engine
from surefoot.laws import TokenRows
from surefoot.record import key, seal, unseal
from surefoot.testing.cache_kit import spoiled
from surefoot.turn import Ledger, Serving, TurnRequest, turn

pytestmark = pytest.mark.usefixtures("patience")

B = 16
LONG = "One two three four five six seven eight nine ten eleven twelve. " * 3
TEXTS = [LONG + "And then? " * 5, LONG + "And before? " * 5, "Something else. " * 9]


def engine_of(block_tokens=B):
    return load_engine(
        "spark",
        threads=1,
        block_tokens=block_tokens,
        dtype=None,
        attention=None,
        device="cpu",
        cache_folder=None,
        progress=lambda line: None,
        clock=time.monotonic,
    )


def opened(engine, store):
    return open_cache(
        model=engine.model,
        groups=engine.groups,
        feature_schema=engine.features,
        store=store,
        ram_bytes=0,
        ssd_bytes=1 << 34,
        feature_ram_bytes=0,
        feature_ssd_bytes=1 << 34,
        free_floor_bytes=0,
        io_threads=1,
        queue_bytes=1 << 30,
        clock=time.monotonic,
        wall_clock=time.time,
    )


def fill(store, engine, *, texts=TEXTS, noted=True):
    """Answer the texts as a server would; return what is stored."""
    cache = opened(engine, store)
    limits = ImageLimits(bytes=1, pixels=1, images=1)
    chat = load_chat(engine.tokenizer_source, limits=limits, sees=True)
    serving = Serving(engine, chat, cache, time.monotonic, 60.0)
    for text in texts:
        request = TurnRequest(id="t", input=TextInput(text), sampling=Sampling(), max_tokens=1)
        list(turn(Ledger(request, serving, 0.0)))
        assert cache.drain(60)
    cache.close()
    if noted:
        loaded_as = {
            "model": "spark",
            "dtype": None,
            "threads": 1,
            "block_tokens": engine.block_tokens,
            "device": "cpu",
        }
        note_model(store, engine.model, ingredients=engine.ingredients, loaded_as=loaded_as)


@pytest.fixture(scope="module")
def engine():
    torch.set_num_threads(1)
    return engine_of()


@pytest.fixture
def store(tmp_path, engine):
    fill(tmp_path / "store", engine)
    return tmp_path / "store"


def run(capsys, *arguments):
    code = app.run(["cache", "audit", *arguments])
    said = capsys.readouterr()
    return code, said


def report(capsys, store, *arguments):
    code, said = run(capsys, "--store", str(store), "--json", *arguments)
    return code, json.loads(said.out)


def names(store):
    return {one.name for one in store_entries(store)}


def plant(store, engine, name):
    """Put other state under a stored block's name, sealed well."""
    cache = opened(engine, store)
    tier = cache._ssd.tier
    (group,) = [one.name for one in engine.groups if isinstance(one.law, TokenRows)][:1]
    at = key(name, group)
    header, part = unseal(tier.get(at), name=name, group=group)
    tier.put(at, seal(header.block, spoiled(part), content=header.content, fence=header.fence))
    cache.close()


def chains(store, engine):
    cache = opened(engine, store)
    found = [cache.lineage(leaf.name) for leaf in cache.auditor.leaves()]
    cache.close()
    return found


def test_a_store_that_holds_the_truth_agrees_block_by_block(store, engine, capsys):
    code, found = report(capsys, store, "--all")
    stored = names(store)
    assert code == exits.OK
    assert found["blocks"] == {"agreed": len(stored), "differed": 0, "unauditable": 0} | {
        "unrepeatable": 0
    }
    assert found["model"] == engine.model.hex()
    assert found["loaded_as"]["model"] == "spark"
    assert found["findings"] == []
    shared = sum(one.end for one in (chain[-1] for chain in chains(store, engine)))
    assert found["computed_tokens"] == shared, "each chain is computed once"
    assert {one.verdict for one in store_entries(store)} == {"agreed"}


def test_a_lie_is_found_fenced_and_exits_1(store, engine, capsys):
    longest = max(chains(store, engine), key=len)
    plant(store, engine, longest[1].name)
    code, found = report(capsys, store, "spark", "--all")
    assert code == exits.DIFFERS
    assert found["blocks"]["differed"] == 1
    (finding,) = found["findings"]
    assert longest[1].name.hex() in finding["what"]
    assert finding["fence"] == 1
    assert not names(store) & {block.name.hex() for block in longest[1:]}
    code, found = report(capsys, store, "--all")
    assert (code, found["blocks"]["differed"]) == (exits.OK, 0)


def test_a_server_beside_it_heeds_the_fence_before_its_next_plan(store, engine, capsys):
    longest = max(chains(store, engine), key=len)
    plant(store, engine, longest[1].name)
    serving = opened(engine, store)
    try:
        assert serving.plan(longest, limit=len(longest)).boundary == len(longest)
        assert run(capsys, "--store", str(store), "--all")[0] == exits.DIFFERS
        assert serving.plan(longest, limit=len(longest)).boundary == 1
    finally:
        serving.close()


def test_the_verdicts_are_shown_for_people(store, engine, capsys):
    plant(store, engine, max(chains(store, engine), key=len)[1].name)
    code, said = run(capsys, "--store", str(store), "--all", "--seed", "7")
    assert code == exits.DIFFERS
    assert "audited 3 of 3 chains of spark" in said.out
    assert "--seed 7" in said.out
    assert "quarantined by fence 1, with all that was computed on top of it" in said.out
    assert app.run(["cache", "ls", "--store", str(store)]) == exits.OK
    assert "agreed" in capsys.readouterr().out


def test_a_sample_is_drawn_by_its_seed(store, capsys):
    first = report(capsys, store, "--sample", "1", "--seed", "5")[1]
    again = report(capsys, store, "--sample", "1", "--seed", "5")[1]
    assert (first["chains"], first["of_chains"], first["seed"]) == (1, 3, 5)
    assert first["computed_tokens"] == again["computed_tokens"]
    orders = {tuple(drawn([b"a" * 32, b"b" * 32, b"c" * 32], seed)) for seed in range(50)}
    assert len(orders) == 6
    assert drawn([b"c" * 32, b"a" * 32], 1) == drawn([b"a" * 32, b"c" * 32], 1)


def test_what_another_model_stored_is_told_and_left_alone(store, engine, capsys):
    other = engine_of(block_tokens=2 * B)
    fill(store, other)
    fill(store, engine)  # last open
    code, found = report(capsys, store, "--all")
    assert code == exits.OK
    assert found["model"] == engine.model.hex()
    assert found["other_models"].keys() == {other.model.hex()}
    told = run(capsys, "--store", str(store), "--sample", "1")[1].out
    assert f"parts of another model, {other.model.hex()[:16]}" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["smollm2-of-mine"], "smollm2-of-mine"),
        (["--sample", "0"], "--sample 0 is too small"),
        (["--sample", "1", "--all"], "--sample or --all, not both"),
    ],
)
def test_what_cannot_be_audited_is_one_sentence(store, capsys, arguments, says):
    code, said = run(capsys, "--store", str(store), *arguments)
    assert code == exits.USAGE
    assert says in said.err
    assert "Traceback" not in said.err


def test_a_model_that_stored_nothing_here_is_told_from_those_that_did(tmp_path, engine, capsys):
    fill(tmp_path, engine, noted=False)
    code, said = run(capsys, "--store", str(tmp_path))
    assert code == exits.USAGE
    assert "name the MODEL to audit" in said.err
    assert engine.model.hex()[:16] in said.err
    code, said = run(capsys, "spark", "--store", str(tmp_path))  # by default, with two threads
    torch.set_num_threads(1)
    assert code == exits.USAGE
    assert "nothing is stored of spark as it computes here" in said.err
