"""Tending a store without a model, alone and beside a running server."""

import pytest

from surefoot.cache import collect, store_entries, store_stats, verify_store
from surefoot.cache.offline import FRESH_S
from surefoot.cache.quota import ORPHAN_S
from surefoot.errors import SetupError
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    HYBRID,
    MODEL,
    Bench,
    blocks_of,
    check_restored,
    commit,
    take_turn,
)

TOKENS = list(range(41))
BLOCKS = blocks_of(TOKENS)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path / "store", EVERY_LAW)
    with made.open() as cache:
        take_turn(cache, TOKENS)
    return made


@pytest.fixture(params=["alone", "beside a server"])
def server(request, bench):
    if request.param == "alone":
        yield None
    else:
        with bench.open() as cache:
            yield cache


def ignore(done, total):
    pass


def test_stats_and_entries_count_the_same(bench, server):
    stats, entries = store_stats(bench.folder), list(store_entries(bench.folder))
    assert stats["parts"] == len(entries) == len(bench.records())
    assert stats["bytes"] == sum(entry.nbytes for entry in entries)
    assert stats["models"][MODEL.hex()]["parts"] == len(entries)
    assert stats["open_by"] == (server is not None)
    assert {entry.tiers for entry in entries} == {("ssd",)}


def test_listings_show_nothing_of_a_prompt(bench):
    shown = repr(store_stats(bench.folder)) + repr(list(store_entries(bench.folder)))
    for block in BLOCKS:
        assert block.ids.hex() not in shown
        assert repr(block.ids) not in shown


def test_verification_deletes_what_is_not_what_was_sealed(bench, server):
    records = bench.records()
    records[3].write_bytes(records[3].read_bytes()[:-1] + b"\xee")
    records[5].write_bytes(b"")
    steps = []
    found = verify_store(bench.folder, lambda done, total: steps.append((done, total)))
    assert (found.records, found.corrupt, found.failed) == (len(records), 2, 0)
    assert found.verified == len(records) - 2
    if server:  # before anything else could have set the index right
        assert server.status()["tiers"]["ssd"]["parts"] == len(records) - 2
    assert steps == [(done, len(records)) for done in range(1, len(records) + 1)]
    assert bench.records() == [path for at, path in enumerate(records) if at not in (3, 5)]
    assert store_stats(bench.folder)["parts"] == len(records) - 2
    assert verify_store(bench.folder, ignore).corrupt == 0
    if server:
        plan, restored = take_turn(server, TOKENS)
        check_restored(server, plan, restored)


def test_collection_removes_orphans_only_of_models_open_nowhere(bench, server):
    late = bench.wall() + ORPHAN_S + 1
    parts = len(bench.records())
    found = collect(bench.folder, ssd_bytes=1 << 30, now=late)
    assert found.orphans == (0 if server else parts)
    assert len(bench.records()) == parts - found.parts
    if server:
        _, restored = take_turn(server, TOKENS)
        assert restored.sources == {"ssd": 40}


def test_collection_removes_the_dead(tmp_path):
    bench = Bench(tmp_path, HYBRID)
    with bench.open() as cache:
        for block in BLOCKS[:4]:
            commit(cache, block, groups=["rows"])
        commit(cache, BLOCKS[1], groups=["state"])
    # A turn may still be on its way to the next snapshot.
    assert collect(tmp_path, ssd_bytes=1 << 30, now=bench.wall() + FRESH_S / 2).parts == 0
    found = collect(tmp_path, ssd_bytes=1 << 30, now=bench.wall() + FRESH_S)
    assert (found.orphans, found.parts) == (0, 2)
    with bench.open() as cache:
        assert cache.plan(BLOCKS, limit=10).boundary == 2


def test_collection_keeps_a_quota(bench, server):
    half = store_stats(bench.folder)["bytes"] // 2
    found = collect(bench.folder, ssd_bytes=half, now=bench.wall() + 2 * FRESH_S)
    stats = store_stats(bench.folder)
    assert 0 < stats["bytes"] <= half
    assert found.nbytes == 2 * half - stats["bytes"]
    if server:
        plan, restored = take_turn(server, TOKENS)
        check_restored(server, plan, restored)


@pytest.mark.parametrize("what", [store_stats, lambda path: list(store_entries(path))])
def test_a_folder_that_is_no_store_is_refused_and_left_alone(tmp_path, what):
    with pytest.raises(SetupError, match="no store"):
        what(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
