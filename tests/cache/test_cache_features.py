"""Features as a turn uses them: found in RAM, on SSD, after a restart; verified, bounded, apart."""

import itertools
import time
from dataclasses import replace
from threading import Event

import pytest

from surefoot.cache.fences import Reason
from surefoot.cache.ssd import FLUSH_S
from surefoot.errors import CorruptRecord
from surefoot.identity import salt_of
from surefoot.record import content, feature_key, read_header, seal_features
from surefoot.state import ComponentSchema, FeatureSchema
from surefoot.testing.cache_kit import (
    FEATURES,
    MODEL,
    ROWS_ONLY,
    Bench,
    blocks_of,
    commit,
    feature_name_of,
    features_of,
    image_of,
    spoiled_features,
    take_turn,
)
from surefoot.tiers.disk import RealDisk

OTHER_MODEL = MODEL.replace(b"m", b"o")
FILE_BYTES = 4096  # what a small record takes up on disk


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "store", ROWS_ONLY)


def put(cache, *numbers, tokens=4, spoil=False):
    for number in numbers:
        item = image_of(number, tokens=tokens)
        features = features_of(item)
        made = spoiled_features(features) if spoil else features
        cache.commit_features(feature_name_of(item), item, made)


def get(cache, *numbers, deadline_s=5.0):
    """Return which of these are found; what is found must be what the tower would have made."""
    items = {number: image_of(number) for number in numbers}
    wanted = {feature_name_of(item): item for item in items.values()}
    found = cache.features(wanted, deadline_s=deadline_s)
    for name, features in found.items():
        assert as_bytes(features) == as_bytes(features_of(wanted[name]))  # I2
    return [number for number, item in items.items() if feature_name_of(item) in found]


def as_bytes(features):
    return [(one.name, one.dtype, one.shape, bytes(one.data)) for one in features.components]


def counters(cache):
    return {
        name.removeprefix("features_"): count
        for name, count in cache.status()["counters"].items()
        if name.startswith("feature") and count
    }


def held(cache, tier):
    status = cache.status()["features"][tier]
    return status["items"], status["bytes"]


def path_of(bench, number):
    key = feature_key(feature_name_of(image_of(number)))
    return bench.folder / "records" / key[:2] / f"{key}.rec"


def on_disk(bench):
    return [number for number in range(3000) if path_of(bench, number).exists()]


# Where they are found.


def test_what_was_committed_is_found_in_ram_then_on_ssd_after_a_restart(bench):
    with bench.open() as cache:
        assert get(cache, 1, 2) == []
        put(cache, 1, 2)
        assert get(cache, 1, 2, 3) == [1, 2]
        assert counters(cache) == {"missed": 3, "committed": 2, "found_ram": 2}
        assert cache.drain(60)
        assert cache.status()["pending_writes"] == 0
        assert held(cache, "ssd") == (2, 2 * FILE_BYTES)
        assert bench.tier.gets == []
    with bench.open() as cache:
        assert held(cache, "ram") == (0, 0)
        assert get(cache, 1, 2, 3) == [1, 2]
        assert counters(cache) == {"missed": 1, "found_ssd": 2}
        # What came from SSD is in RAM now.
        assert get(cache, 1, 2) == [1, 2]
        assert counters(cache)["found_ram"] == 2
        assert len(bench.tier.gets) == 2


def test_ram_alone_is_enough():
    with Bench(None).open() as cache:
        put(cache, 1)
        assert get(cache, 1) == [1]
        assert cache.status()["features"].keys() == {"ram"}


def test_what_waits_to_be_written_is_found_without_ram(bench):
    bench.feature_ram_bytes = 0
    with bench.open() as cache:
        bench.tier.hold_puts = True
        put(cache, 1)
        assert bench.tier.held.wait(10)
        assert cache.status()["pending_writes"] == 1
        assert get(cache, 1) == [1]
        put(cache, 1)
        assert counters(cache)["committed"] == 1
        bench.tier.release.set()
        assert cache.drain(60)
        assert get(cache, 1) == [1]
        assert counters(cache) == {"committed": 1, "found_ram": 1, "found_ssd": 1}
        assert len(bench.tier.puts) == 1


def test_eight_interleaved_turns_that_want_one_picture_make_its_features_once(bench):
    item = image_of(1)
    name = feature_name_of(item)
    made = 0

    def wanter(cache):
        nonlocal made
        yield
        found = cache.features({name: item}, deadline_s=5).get(name)
        if found is None:
            made += 1
            found = features_of(item)
            cache.commit_features(name, item, found)
        yield
        assert as_bytes(found) == as_bytes(features_of(item))

    with bench.open() as cache:
        turns = [wanter(cache) for _ in range(8)]
        for steps in itertools.zip_longest(*turns):
            assert len(steps) == 8
        assert made == 1
        assert counters(cache) == {"missed": 1, "committed": 1, "found_ram": 7}


def test_another_salt_and_another_model_share_nothing(bench):
    item = image_of(1)
    names = {
        feature_name_of(item, salt=salt_of(key, text))
        for key in (None, b"k" * 32)
        for text in (None, "a", "b")
    }
    assert len(names) == 6  # I9
    with bench.open() as cache:
        put(cache, 1)
        names.discard(feature_name_of(item))
        assert cache.features(dict.fromkeys(names, item), deadline_s=5) == {}
        other = feature_name_of(item, model=OTHER_MODEL)
        assert cache.features({other: item}, deadline_s=5) == {}


def test_a_second_process_finds_what_the_first_has_written(bench):
    with bench.open() as first, bench.open() as second:
        put(first, 1)
        assert first.drain(60)
        assert get(second, 1) == [1]
        assert counters(second) == {"found_ssd": 1}
        put(second, 1)
        assert counters(second) == {"found_ssd": 1}


def test_committing_what_is_held_is_a_use_and_no_more(bench):
    with bench.open() as cache:
        put(cache, 1, 1)
        assert cache.drain(60)
        put(cache, 1)
        assert counters(cache) == {"committed": 1}
        assert len(bench.tier.puts) == 1
    with bench.open() as cache:
        written = []
        cache._ssd.write_features = written.append
        put(cache, 1)  # on SSD already: RAM takes it
        assert held(cache, "ram")[0] == 1
        assert counters(cache) == {}
        assert cache.drain(60)
        assert written == []


# What is not handed over.


@pytest.mark.parametrize(
    "mangle",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
    ids=["short", "empty", "long", "flipped at the end", "flipped at the start"],
)
def test_a_damaged_file_is_a_miss_goes_and_is_stored_again_once_computed_anew(bench, mangle):
    with bench.open() as cache:
        put(cache, 1, 2)
    path = path_of(bench, 1)
    path.write_bytes(mangle(path.read_bytes()))
    with bench.open() as cache:
        assert get(cache, 1, 2) == [2]
        assert counters(cache) == {"missed": 1, "feature_failures": 1, "found_ssd": 1}
        assert get(cache, 1) == []  # I8, before and after the file is gone
        assert cache.drain(60)
        assert get(cache, 1) == []
        assert not path.exists()
        assert counters(cache)["feature_failures"] == 1
        assert held(cache, "ssd") == (1, FILE_BYTES)
        put(cache, 1)
        assert get(cache, 1) == [1]
        assert cache.drain(60)
    with bench.open() as cache:
        assert get(cache, 1, 2) == [1, 2]


def test_what_failed_is_not_offered_again_while_its_fence_cannot_be_written_yet(bench):
    with bench.open() as cache:
        put(cache, 1)
    with bench.open() as cache:
        assert cache.drain(60)
        bench.tier.hold_puts = True
        commit(cache, blocks_of(range(4))[0], groups=["rows"])  # the one write thread is busy
        assert bench.tier.held.wait(10)
        bench.tier.mangle = lambda data: data[:-1]
        assert get(cache, 1) == []
        bench.tier.mangle = None
        assert get(cache, 1) == []  # I8
        put(cache, 1)
        assert get(cache, 1) == []  # nobody could tell it from the bad one by its number
        bench.tier.release.set()
        assert cache.drain(60)
        put(cache, 1)
        assert get(cache, 1) == [1]
        assert cache.drain(60)
        assert path_of(bench, 1).exists()
    with bench.open() as cache:
        assert get(cache, 1) == [1]


def test_a_damaged_copy_in_ram_goes_from_both_tiers(bench):
    with bench.open() as cache:
        put(cache, 1)
        assert cache.drain(60)
        key = feature_key(feature_name_of(image_of(1)))
        ram = cache._features._ram._tier
        ram.put(key, ram.get(key)[:-1] + b"\xee")
        assert get(cache, 1) == []
        assert cache.drain(60)
        assert counters(cache)["feature_failures"] == 1
        assert held(cache, "ram") == held(cache, "ssd") == (0, 0)
        assert bench.records() == []


def test_a_record_of_another_item_under_this_ones_file_is_refused(bench):
    with bench.open() as cache:
        put(cache, 1, 2)
    path_of(bench, 1).write_bytes(path_of(bench, 2).read_bytes())
    with bench.open() as cache:
        assert get(cache, 1, 2) == [2]
        assert counters(cache)["feature_failures"] == 1


def test_a_parts_record_under_an_items_file_is_refused(bench):
    with bench.open() as cache:
        put(cache, 1)
        commit(cache, blocks_of(range(4))[0], groups=["rows"])
    (part,) = [path for path in bench.records() if path.name.endswith(".rows.rec")]
    data, features = part.read_bytes(), path_of(bench, 1).read_bytes()
    part.write_bytes(features)
    path_of(bench, 1).write_bytes(data)
    with bench.open() as cache:
        assert get(cache, 1) == []
        blocks = blocks_of(range(5))
        plan = cache.plan(blocks, limit=1)
        assert cache.restore(plan, deadline_s=5).boundary == 0
        assert cache.drain(60)
        assert bench.records() == []


@pytest.mark.parametrize(
    "lie", [{"model": OTHER_MODEL}, {"media": b"x" * 32}, {"tokens": 5}, {"content": b"c" * 32}]
)
def test_an_honest_seal_over_a_header_that_answers_another_question_is_refused(bench, lie):
    item = image_of(1)
    name, features = feature_name_of(item), features_of(item)
    with bench.open() as cache:
        put(cache, 1)
    fields = {"model": MODEL, "media": item.name, "tokens": 4, "content": content(features)} | lie
    path_of(bench, 1).write_bytes(seal_features(name, features, **fields))
    with bench.open() as cache:
        assert get(cache, 1) == []
        assert counters(cache) == {"missed": 1, "feature_failures": 1}


def test_features_that_do_not_fit_the_schema_are_refused(bench):
    with bench.open() as cache:
        put(cache, 1)
    bench.feature_schema = FeatureSchema((ComponentSchema("rows", "uint8", (4, 8)),))
    with bench.open() as cache:
        assert get(cache, 1) == []
        assert counters(cache) == {"missed": 1, "feature_failures": 1}


def test_committing_what_the_schema_does_not_describe_is_a_bug(bench):
    item = image_of(1)
    shorter = features_of(replace(item, tokens=3))
    with bench.open() as cache, pytest.raises(AssertionError):
        cache.commit_features(feature_name_of(item), item, shorter)


@pytest.mark.parametrize("where", ["ram", "queue", "ssd", "after a restart"])
def test_two_results_for_one_item_are_both_let_go(bench, where):
    with bench.open() as cache:
        if where == "queue":
            bench.feature_ram_bytes = 0
            bench.tier.hold_puts = True
        put(cache, 1)
        if where != "after a restart":
            if where != "queue":
                assert cache.drain(60)
            if where == "ssd":
                cache._features._ram.remove(feature_name_of(image_of(1)))
            check_disagreement(cache, bench)
    if where == "after a restart":
        with bench.open() as cache:
            check_disagreement(cache, bench)


def test_a_name_committed_anew_is_not_forgotten_by_the_write_it_replaced(bench):
    bench.feature_ram_bytes = 0
    with bench.open() as cache:
        tier = bench.tier
        tier.hold_puts = True
        put(cache, 1)
        assert tier.held.wait(10)
        first, tier.release = tier.release, Event()
        tier.held.clear()
        with bench.open() as other:
            other.quarantine(feature_name_of(image_of(1)), Reason.BY_HAND, "a test says so")
        put(cache, 1)
        first.set()
        assert tier.held.wait(10)  # the first is done, the one anew is at work
        assert get(cache, 1) == [1]
        tier.release.set()
        assert cache.drain(60)
    with bench.open() as cache:
        assert get(cache, 1) == [1]


def check_disagreement(cache, bench):
    put(cache, 1, spoil=True)
    assert cache.status()["counters"]["disagreements"] == 1
    assert get(cache, 1) == []
    bench.tier.release.set()
    assert cache.drain(60)
    assert get(cache, 1) == []
    assert bench.records() == []
    put(cache, 1)
    assert get(cache, 1) == [1]


def test_two_results_of_two_processes_are_found_when_the_second_writes(bench):
    with bench.open() as first, bench.open() as second:
        bench.tier.hold_puts = True
        put(second, 1)  # staged, not published
        assert bench.tier.held.wait(10)
        put(first, 1, spoil=True)
        assert first.drain(60)
        assert first.status()["counters"]["disagreements"] == 1
        bench.tier.release.set()
        assert second.drain(60)
        assert bench.records() == []
        assert get(first, 1) == []


# What costs time and no more.


def test_a_read_that_never_answers_costs_the_deadline_and_is_planned_around(bench):
    with bench.open() as cache:
        put(cache, 1, 2)
    bench.clock = time.monotonic
    with bench.open() as cache:
        put(cache, 3)
        bench.tier.hold = True
        begun = time.monotonic()
        assert get(cache, 1, 2, 3, deadline_s=0.05) == [3]
        assert time.monotonic() - begun < 2.5
        ssd = cache.status()["tiers"]["ssd"]
        assert ssd["state"] == "down"
        # A thread that is late to begin drops its read.
        assert 1 <= ssd["stalls"] == len(bench.tier.gets) <= 2
        assert counters(cache) == {"committed": 1, "found_ram": 1, "missed": 2}
        reads = len(bench.tier.gets)
        assert get(cache, 1, 3) == [3]
        assert len(bench.tier.gets) == reads
        bench.tier.hold = False
        bench.tier.release.set()


def test_a_deadline_that_has_passed_leaves_ram_alone(bench):
    with bench.open() as cache:
        put(cache, 1)
        assert get(cache, 1, deadline_s=-1) == []
        assert counters(cache) == {"committed": 1, "missed": 1}
        assert get(cache, 1) == [1]


def test_a_medium_that_fails_is_counted_and_keeps_its_records(bench):
    with bench.open() as cache:
        put(cache, 1)
    with bench.open() as cache:
        bench.tier.fail_gets = True
        assert get(cache, 1) == []
        assert cache.status()["tiers"]["ssd"]["failures"] == 1
        assert counters(cache) == {"missed": 1}
        bench.tier.fail_gets = False
        assert get(cache, 1) == [1]


def test_a_file_gone_between_row_and_read_is_a_miss_and_its_row_goes(bench):
    with bench.open() as cache:
        put(cache, 1)
    with bench.open() as cache:
        path_of(bench, 1).unlink()
        assert get(cache, 1) == []
        assert counters(cache) == {"missed": 1}
        assert cache.drain(60)
        assert held(cache, "ssd") == (0, 0)


def test_an_inventory_that_fails_costs_the_ssd_tier_only(bench):
    with bench.open() as cache:
        put(cache, 1)
        assert cache.drain(60)
        cache._ssd.inventory.close()
        put(cache, 2)
        assert get(cache, 1, 2, 3) == [1, 2]
        assert cache.drain(60)
        assert cache.status()["tiers"]["ssd"]["state"] == "down"


def test_a_full_disk_leaves_no_row_and_the_next_commit_tries_again(bench):
    with bench.open() as cache:
        bench.tier.fail_puts = True
        put(cache, 1)
        assert cache.drain(60)
        assert held(cache, "ssd") == (0, 0)
        assert get(cache, 1) == [1]
        bench.tier.fail_puts = False
        put(cache, 1)
        assert cache.drain(60)
        assert held(cache, "ssd") == (1, FILE_BYTES)


def test_a_full_queue_leaves_features_in_ram_and_never_waits(bench):
    bench.queue_bytes = 1
    with bench.open() as cache:
        bench.tier.hold_puts = True
        put(cache, 1)
        assert bench.tier.held.wait(10)
        put(cache, 2)
        assert cache.status()["counters"]["unqueued_writes"] == 1
        assert get(cache, 1, 2) == [1, 2]
        bench.tier.release.set()
        assert cache.drain(60)
        put(cache, 2)
        assert cache.drain(60)
        assert held(cache, "ssd")[0] == 2


# Budgets.


def test_two_thousand_pictures_stay_inside_the_budget_of_ram():
    bench = Bench(None)
    bench.feature_ram_bytes = 40_000
    with bench.open() as cache:
        for number in range(2_000):
            put(cache, number)
            items, used = held(cache, "ram")
            recount = list(cache._features._ram._tier.list())
            assert (len(recount), sum(size for _, size in recount)) == (items, used)  # I6
            assert used <= bench.feature_ram_bytes
            if number % 3 == 0:
                assert get(cache, 0) == [0]  # used again and again, so it stays
        kept = list(range(2_000 - items + 1, 2_000))
        assert get(cache, *range(1_900, 2_000)) == kept[-100:]
        assert get(cache, 0) == [0]
        assert cache.status()["features"]["ram"]["evictions"] == 2_000 - items


@pytest.mark.parametrize(
    ("whole", "pictures"), [(1 << 30, 2_000), (60 * FILE_BYTES, 500)], ids=["roomy", "tight"]
)
def test_two_thousand_pictures_stay_inside_the_budget_of_the_ssd(
    bench, monkeypatch, whole, pictures
):
    # A crash is not the point here, and forcing bytes and names down is most of the time.
    for force in ("sync_file", "sync_folder"):
        monkeypatch.setattr(RealDisk, force, lambda self, path: None)
    bench.feature_ram_bytes = 0
    bench.feature_ssd_bytes = 40 * FILE_BYTES
    bench.ssd_bytes = whole
    with bench.open() as cache:
        for number in range(pictures):
            bench.wall.pass_(1)
            put(cache, number)
            if number % 40 == 0:
                take_turn(cache, range(1000 * number, 1000 * number + 9))
            if number % 20 == 0:
                assert cache.drain(60)
                features, parts = kinds_on_disk(bench)
                items, used = held(cache, "ssd")
                assert (len(features), sum(features)) == (items, used)  # I6
                assert used <= bench.feature_ssd_bytes
                assert sum(features) + sum(parts) <= bench.ssd_bytes
        assert cache.drain(60)
        items, _ = held(cache, "ssd")
        assert items >= 36  # an eviction goes down to 95 %
        assert on_disk(bench) == list(range(pictures - items, pictures))
        assert cache.status()["features"]["ssd"]["evictions"] == pictures - items
        assert (whole == 1 << 30) == (cache.status()["tiers"]["ssd"]["evictions"] == 0)


def kinds_on_disk(bench):
    features, parts = [], []
    for path in bench.records():
        kind = features if path.name.endswith(".media.features.rec") else parts
        kind.append(path.stat().st_blocks * 512)
    return features, parts


def test_the_least_recently_used_leaves_first_and_a_use_survives_a_restart(bench):
    bench.feature_ram_bytes = 0
    with bench.open() as cache:
        for number in range(4):
            bench.wall.pass_(1)
            put(cache, number)
            assert cache.drain(60)
    bench.wall.pass_(FLUSH_S)
    with bench.open() as cache:
        assert get(cache, 1) == [1]
    bench.feature_ssd_bytes = 4 * FILE_BYTES
    with bench.open() as cache:
        for number, left in ((4, [1, 3, 4]), (5, [1, 4, 5]), (6, [4, 5, 6])):
            bench.wall.pass_(1)
            put(cache, number)
            assert cache.drain(60)
            assert on_disk(bench) == left


def test_a_smaller_budget_is_kept_when_the_store_is_opened(bench):
    with bench.open() as cache:
        for number in range(10):
            bench.wall.pass_(1)
            put(cache, number)
    bench.feature_ssd_bytes = 5 * FILE_BYTES
    with bench.open() as cache:
        assert cache.drain(60)
        assert on_disk(bench) == [6, 7, 8, 9]


def test_features_without_room_are_refused_and_counted(bench):
    bench.feature_ssd_bytes = 100
    bench.feature_ram_bytes = 100
    with bench.open() as cache:
        put(cache, 1)
        assert cache.drain(60)
        assert cache.status()["counters"]["refused_writes"] == 1
        assert held(cache, "ram") == held(cache, "ssd") == (0, 0)
        assert bench.records() == []


def test_parts_leave_before_features_and_features_when_no_part_is_left(bench):
    with bench.open() as cache:
        for number in range(10):
            bench.wall.pass_(1)
            put(cache, number)
        take_turn(cache, range(41))
    parts = len(bench.records()) - 10
    bench.ssd_bytes = 12 * FILE_BYTES
    with bench.open() as cache:
        assert cache.drain(60)
        assert on_disk(bench) == list(range(10))
        assert 0 < len(bench.records()) - 10 < parts
    bench.ssd_bytes = 6 * FILE_BYTES
    with bench.open() as cache:
        assert cache.drain(60)
        assert on_disk(bench) == [5, 6, 7, 8, 9]
        assert len(bench.records()) == 5


def test_a_text_model_leaves_features_alone_and_counts_them_in_the_quota(bench):
    with bench.open() as cache:
        for number in range(10):
            bench.wall.pass_(1)
            put(cache, number)
    bench.feature_schema, bench.feature_ssd_bytes = None, 0
    with bench.open(model=OTHER_MODEL) as cache:
        assert cache.drain(60)
        assert on_disk(bench) == list(range(10))
        assert held(cache, "ssd") == (10, 10 * FILE_BYTES)
    bench.ssd_bytes = 13 * FILE_BYTES
    with bench.open(model=OTHER_MODEL) as cache:
        for block in blocks_of(range(40), model=OTHER_MODEL):
            commit(cache, block, groups=["rows"])
            assert cache.drain(60)
            assert len(bench.records()) <= 13
        assert on_disk(bench) == list(range(10))
        assert cache.status()["tiers"]["ssd"]["parts"] > 0


def test_other_models_features_are_counted_and_leave_like_any_others(bench):
    item = image_of(100)
    with bench.open(model=OTHER_MODEL) as cache:
        name = feature_name_of(item, model=OTHER_MODEL)
        cache.commit_features(name, item, features_of(item))
    bench.feature_ssd_bytes = 4 * FILE_BYTES
    with bench.open() as cache:
        for number, items in ((0, 2), (1, 3), (2, 3), (3, 3)):
            bench.wall.pass_(1)
            put(cache, number)
            assert cache.drain(60)
            assert held(cache, "ssd")[0] == len(bench.records()) == items
        assert on_disk(bench) == [1, 2, 3]


# Lineage, and what is shown.


def test_a_parts_record_names_the_features_its_block_consumed(bench):
    (block,) = blocks_of(range(4))
    names = [feature_name_of(image_of(number)) for number in (2, 1)]
    with bench.open() as cache:
        commit(cache, block)
        (second,) = blocks_of(range(100, 104))
        commit(cache, second, features=names)
    said = {
        header.block.name: header.features
        for path in bench.records()
        for header in [read_header(path.read_bytes())]
    }
    assert said == {block.name: (), second.name: tuple(names)}


def test_entries_show_features_by_name_and_tier_beside_parts(bench):
    with bench.open() as cache:
        put(cache, 1)
        commit(cache, blocks_of(range(4))[0], groups=["rows"])
        assert cache.drain(60)
        cache._features._ram.remove(feature_name_of(image_of(1)))
        bench.tier.fail_puts = True
        put(cache, 2)
        assert cache.drain(60)
        listed = {(one.kind, one.group, one.start, one.end, one.tiers) for one in cache.entries()}
        assert listed == {
            ("part", "rows", 0, 4, ("ram", "ssd")),
            ("features", "", 0, 4, ("ssd",)),
            ("features", "", 0, 4, ("ram",)),
        }
        names = {one.name for one in cache.entries() if one.kind == "features"}
        assert names == {feature_name_of(image_of(number)).hex() for number in (1, 2)}


def test_a_model_without_a_tower_neither_finds_nor_commits(bench):
    bench.feature_schema = None
    item = image_of(1)
    with bench.open() as cache:
        with pytest.raises(AssertionError):
            cache.commit_features(feature_name_of(item), item, features_of(item))
        assert cache.status()["features"]["ssd"]["items"] == 0
        assert cache.features({}, deadline_s=1) == {}


# The store as it is opened.


def test_a_lost_inventory_is_rebuilt_with_the_features_in_it(bench):
    with bench.open() as cache:
        put(cache, 1, 2)
        take_turn(cache, range(9))
        assert cache.drain(60)
        before = sorted(one[:5] for one in cache.entries())
    (bench.folder / "inventory.sqlite").unlink()
    with bench.open() as cache:
        assert sorted(one[:5] for one in cache.entries()) == before
        assert held(cache, "ssd") == (2, 2 * FILE_BYTES)
        assert get(cache, 1, 2) == [1, 2]


def test_rows_without_files_go_and_files_that_are_no_features_go(bench):
    with bench.open() as cache:
        put(cache, 1, 2, 3)
    path_of(bench, 1).unlink()
    path_of(bench, 3).write_bytes(path_of(bench, 2).read_bytes())
    with bench.open() as cache:
        assert held(cache, "ssd") == (2, 2 * FILE_BYTES)
        assert get(cache, 1, 2, 3) == [2]
    path_of(bench, 3).write_bytes(path_of(bench, 2).read_bytes())
    (bench.folder / "inventory.sqlite").unlink()
    with bench.open() as cache:
        assert on_disk(bench) == [2]
        assert held(cache, "ssd") == (1, FILE_BYTES)


def test_what_a_dead_writer_left_staged_goes_and_a_living_ones_stays(bench):
    with bench.open() as living:
        put(living, 1)
        assert living.drain(60)
        header = read_header(path_of(bench, 1).read_bytes())
        rows = living._ssd.inventory.features
        for number, owner in ((2, "dead"), (3, living._ssd._owner)):
            one = replace(header, name=feature_name_of(image_of(number)))
            rows.stage(one, owner=owner, nbytes=9, tick=0.0, cover=0)
        (bench.folder / "owners" / "dead.lock").write_text(MODEL.hex())
        path_of(bench, 2).parent.mkdir(exist_ok=True)
        path_of(bench, 2).write_bytes(b"whole or not")
        with bench.open() as second:
            assert on_disk(bench) == [1]
            assert len(rows.files()) == 2
            assert get(second, 1, 2, 3) == [1]


def test_bytes_that_the_index_has_wrong_are_set_right_when_the_store_is_opened(bench):
    with bench.open() as cache:
        put(cache, 1)
        assert cache.drain(60)
        cache._ssd.inventory.features.resize({feature_name_of(image_of(1)): 1})
        assert held(cache, "ssd") == (1, 1)
    with bench.open() as cache:
        assert held(cache, "ssd") == (1, FILE_BYTES)


def test_every_flipped_byte_of_a_stored_file_is_a_miss(bench):
    with bench.open() as cache:
        put(cache, 1)
        assert cache.drain(60)
    sound = path_of(bench, 1).read_bytes()
    with bench.open() as cache:
        assert cache.drain(60)
        item = image_of(1)
        verify = cache._features._verify
        verify(sound, feature_name_of(item), item)
        for place in range(len(sound)):
            flipped = sound[:place] + bytes([sound[place] ^ 0x40]) + sound[place + 1 :]
            with pytest.raises(CorruptRecord):
                verify(flipped, feature_name_of(item), item)
    assert as_bytes(features_of(item))[0][2] == FEATURES.components[0].shape_for(4)
