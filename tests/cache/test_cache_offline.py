"""Tending a store without a model, alone and beside a running server."""

import pytest

from surefoot.cache import collect, store_entries, store_stats, verify_store
from surefoot.cache.offline import FRESH_S
from surefoot.cache.quota import ORPHAN_S
from surefoot.errors import SetupError
from surefoot.record import content, feature_key, seal_features
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    HYBRID,
    MODEL,
    Bench,
    blocks_of,
    check_restored,
    commit,
    feature_name_of,
    features_of,
    image_of,
    take_turn,
)

TOKENS = list(range(41))
BLOCKS = blocks_of(TOKENS)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path / "store", EVERY_LAW)
    with made.open() as cache:
        take_turn(cache, TOKENS)
        for number in range(3):
            made.wall.pass_(1)
            item = image_of(number)
            cache.commit_features(feature_name_of(item), item, features_of(item))
    return made


def path_of(bench, number):
    key = feature_key(feature_name_of(image_of(number)))
    return bench.folder / "records" / key[:2] / f"{key}.rec"


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
    features = [entry for entry in entries if entry.kind == "features"]
    parts = [entry for entry in entries if entry.kind == "part"]
    assert len(entries) == len(bench.records())
    assert len(features) == 3
    counted = {
        "parts": len(parts),
        "bytes": sum(entry.nbytes for entry in parts),
        "features": 3,
        "feature_bytes": sum(entry.nbytes for entry in features),
    }
    assert counted.items() <= stats.items()
    assert counted.items() <= stats["models"][MODEL.hex()].items()
    assert stats["open_by"] == (server is not None)
    assert {entry.tiers for entry in entries} == {("ssd",)}


def test_listings_show_nothing_of_a_prompt(bench):
    shown = repr(store_stats(bench.folder)) + repr(list(store_entries(bench.folder)))
    for block in BLOCKS:
        assert block.ids.hex() not in shown
        assert repr(block.ids) not in shown


def test_verification_deletes_what_is_not_what_was_sealed(bench, server):
    # One damaged item among the parts; counting starts where the parts do.
    features = [path_of(bench, number) for number in range(3)]
    parts = [path for path in bench.records() if path not in features]
    bad = (parts[3], parts[5], features[1])
    records = bench.records()
    bad[0].write_bytes(bad[0].read_bytes()[:-1] + b"\xee")
    bad[1].write_bytes(b"")
    bad[2].write_bytes(features[0].read_bytes())
    steps = []
    found = verify_store(bench.folder, lambda done, total: steps.append((done, total)))
    assert (found.records, found.corrupt, found.failed) == (len(records), 3, 0)
    assert found.verified == len(records) - 3
    if server:  # before anything else could have set the index right
        assert server.status()["tiers"]["ssd"]["parts"] == len(parts) - 2
        assert server.status()["features"]["ssd"]["items"] == 2
    assert steps == [(done, len(records)) for done in range(1, len(records) + 1)]
    assert bench.records() == [path for path in records if path not in bad]
    stats = store_stats(bench.folder)
    assert (stats["parts"], stats["features"]) == (len(parts) - 2, 2)
    assert verify_store(bench.folder, ignore).corrupt == 0
    if server:
        plan, restored = take_turn(server, TOKENS)
        check_restored(server, plan, restored)


def test_features_whose_content_is_not_what_they_state_are_deleted(bench):
    item = image_of(1)
    name, features = feature_name_of(item), features_of(item)
    assert content(features) != b"c" * 32
    path_of(bench, 1).write_bytes(
        seal_features(
            name, features, model=MODEL, media=item.name, tokens=item.tokens, content=b"c" * 32
        )
    )
    assert verify_store(bench.folder, ignore).corrupt == 1
    assert not path_of(bench, 1).exists()


def test_a_file_that_is_named_like_no_record_goes_when_the_store_is_opened(bench):
    stranger = path_of(bench, 1).with_name(path_of(bench, 1).name.replace(".media.", ".x."))
    stranger.write_bytes(path_of(bench, 1).read_bytes())
    assert verify_store(bench.folder, ignore).corrupt == 0
    assert not stranger.exists()


def test_collection_removes_orphans_only_of_models_open_nowhere(bench, server):
    late = bench.wall() + ORPHAN_S + 1
    records = len(bench.records())
    found = collect(bench.folder, ssd_bytes=1 << 30, now=late)
    assert found.orphans == (0 if server else records)
    assert found.features == (0 if server else 3)
    assert len(bench.records()) == records - found.parts - found.features
    if not server:
        assert store_stats(bench.folder)["feature_bytes"] == 0
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
    whole = used(bench)
    found = collect(bench.folder, ssd_bytes=whole // 2, now=bench.wall() + 2 * FRESH_S)
    stats = store_stats(bench.folder)
    assert 0 < stats["bytes"] < used(bench) <= whole // 2
    assert (found.features, stats["features"]) == (0, 3)
    assert found.nbytes == whole - used(bench)
    if server:
        plan, restored = take_turn(server, TOKENS)
        check_restored(server, plan, restored)


def test_collection_takes_features_when_no_part_is_left_the_oldest_first(bench):
    kept = path_of(bench, 2)
    size = kept.stat().st_blocks * 512
    found = collect(bench.folder, ssd_bytes=size, now=bench.wall() + 2 * FRESH_S)
    assert found.features == 2
    assert bench.records() == [kept]


def used(bench):
    stats = store_stats(bench.folder)
    return stats["bytes"] + stats["feature_bytes"]


@pytest.mark.parametrize("what", [store_stats, lambda path: list(store_entries(path))])
def test_a_folder_that_is_no_store_is_refused_and_left_alone(tmp_path, what):
    with pytest.raises(SetupError, match="no store"):
        what(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
