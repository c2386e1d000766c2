"""Quarantine as turns meet it: here and elsewhere, on every tier, between any two steps (I8)."""

import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest

from surefoot.cache import ssd as ssd_module
from surefoot.cache.fences import Reason
from surefoot.cache.offline import quarantine_in
from surefoot.cache.quarantine import SETTLE_AGAIN_S
from surefoot.errors import TierError
from surefoot.receipt import Miss
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    FAMILIES,
    HYBRID,
    ROWS_ONLY,
    SNAPSHOT_ONLY,
    Bench,
    blocks_of,
    check_restored,
    commit,
    feature_name_of,
    features_of,
    image_of,
    spoiled_features,
)

pytestmark = pytest.mark.usefixtures("patience")

TOKENS = list(range(41))
BLOCKS = blocks_of(TOKENS)
ROOT = BLOCKS[0].parent
PICTURE = image_of(1)
FEATURE = feature_name_of(PICTURE)
CONSUMED = tuple((FEATURE,) if index == 4 else () for index in range(10))
# What a fence may name, and the boundary below which nothing is touched by it.
NAMED = {"a block": (BLOCKS[4].name, 4), "a root": (ROOT, 0), "features": (FEATURE, 4)}


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "store", ROWS_ONLY)


def plan_for(cache):
    return cache.plan(BLOCKS, limit=10, features=CONSUMED)


def compute(cache, turn, first=0, last=10):
    """Commit blocks in a turn; return how many were stored."""
    stored = [
        commit(cache, BLOCKS[index], turn=turn, features=CONSUMED[index])
        for index in range(first, last)
    ]
    return sum(tokens > 0 for tokens in stored)


def take_turn(cache):
    plan = plan_for(cache)
    with cache.pinned(plan):
        restored = cache.restore(plan, deadline_s=5)
        check_restored(cache, plan, restored)
        stored = compute(cache, plan, restored.boundary)
    return restored, stored


def offered(cache):
    return plan_for(cache).boundary


def aside(bench):
    return sorted(path.name for path in bench.folder.glob("quarantine/*/*.rec"))


@contextmanager
def in_the_same_process(bench, cache):
    yield lambda name: cache.quarantine(name, Reason.BY_HAND, "a test says so")


@contextmanager
def in_another_cache(bench, cache):
    with bench.open() as other:
        yield lambda name: other.quarantine(name, Reason.BY_HAND, "a test says so")


@contextmanager
def by_command(bench, cache):
    def quarantine(name):
        if name == ROOT:  # a command is given names of records
            pytest.skip("a root has no record")
        quarantine_in(bench.folder, name.hex(), "", ssd_bytes=1 << 30, wall_clock=bench.wall)

    yield quarantine


@contextmanager
def in_another_process(bench, cache):
    def quarantine(name):
        script = f"""
            import os
            from pathlib import Path
            from surefoot.cache import quarantine
            from surefoot.cache.fences import Reason
            from surefoot.testing.cache_kit import Bench, ROWS_ONLY
            bench = Bench(Path({str(bench.folder)!r}), ROWS_ONLY)
            bench._writers = 70
            quarantine.DURABLE_S = 60.0
            cache = bench.start()
            cache._quarantine._sweep_soon = lambda *_: None
            cache.quarantine(bytes.fromhex({name.hex()!r}), Reason.BY_HAND, "a test says so")
            os._exit(0)  # as a kill would, before any byte has to move
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)

    yield quarantine


WHERE = [in_the_same_process, in_another_cache, by_command]


@pytest.fixture(params=WHERE, ids=lambda where: where.__name__)
def where(request):
    return request.param


@pytest.fixture(params=NAMED)
def named(request):
    return NAMED[request.param]


@pytest.fixture(params=["ram", "ssd"])
def tier(request):
    return request.param


@contextmanager
def stored(bench, tier):
    """Open a cache whose turn is stored, to be restored from one tier."""
    with bench.open() as cache:
        cache.commit_features(FEATURE, PICTURE, features_of(PICTURE))
        assert take_turn(cache)[1] == 10
        if tier == "ram":
            assert cache.drain(60)
            yield cache
    if tier == "ssd":
        with bench.open() as cache:
            yield cache


# A turn that is held while the fence falls.


def test_between_plan_and_restore(bench, where, named, tier):
    name, below = named
    with stored(bench, tier) as cache, where(bench, cache) as quarantine:
        plan = plan_for(cache)
        with cache.pinned(plan):
            quarantine(name)
            restored = cache.restore(plan, deadline_s=5)
            check_restored(cache, plan, restored)
            assert restored.boundary == below
            assert restored.miss_reason in (Miss.QUARANTINED, Miss.EVICTED)
            assert cache.stands(plan, restored.boundary)
            # It stands below the fence, so what it computes is as good as any turn's.
            compute(cache, plan, below)
        assert cache.drain(60)
        assert take_turn(cache)[0].boundary >= below
        assert offered(cache) == 10


def test_after_the_restore(bench, where, named, tier):
    name, below = named
    with stored(bench, tier) as cache, where(bench, cache) as quarantine:
        plan = plan_for(cache)
        with cache.pinned(plan):
            restored = cache.restore(plan, deadline_s=5)
            assert restored.boundary == 10
            assert cache.stands(plan, 10)
            quarantine(name)
            assert not cache.stands(plan, 10)
            assert cache.stands(plan, below)
            assert compute(cache, plan, below) == 0
        assert cache.drain(60)
        assert offered(cache) == below
        restored, recomputed = take_turn(cache)
        assert (restored.boundary, recomputed) == (below, 10 - below)
        assert offered(cache) == 10


@pytest.mark.parametrize("after", range(11))
def test_before_each_commit_of_a_cold_turn(bench, where, after):
    with bench.open() as cache, where(bench, cache) as quarantine:
        plan = plan_for(cache)
        with cache.pinned(plan):
            before = compute(cache, plan, 0, after)
            assert cache.drain(60)
            if where is by_command and after <= 4:
                return  # it has no record yet
            quarantine(BLOCKS[4].name)
            rest = compute(cache, plan, after)
        # What was stored below the named block stays, and nothing above it is stored.
        assert (before, rest) == (after, max(4 - after, 0))
        assert cache.drain(60)
        assert offered(cache) == 4
        assert take_turn(cache)[1] == 6
        assert offered(cache) == 10
    with bench.open() as cache:
        assert offered(cache) == 10


def test_while_its_records_wait_to_be_written(bench, named):
    name, below = named
    with bench.open() as cache:
        tier = bench.tier
        tier.hold_puts = True
        assert take_turn(cache)[1] == 10
        assert tier.held.wait(10)
        in_another_process_quarantines(bench, name)
        tier.release.set()
        assert cache.drain(60)
        assert offered(cache) == below
        assert len(bench.records()) == below
    with bench.open() as cache:
        assert offered(cache) == below


def test_what_waited_behind_a_fence_is_not_held_against_what_was_computed_anew(bench):
    with bench.open() as late, bench.open() as other:
        tier = bench.tiers[-2]
        tier.hold_puts = True
        commit(late, blocks_of([9, 9, 9, 9])[0])  # the one write thread is busy
        assert tier.held.wait(10)
        plan = plan_for(late)
        with late.pinned(plan):
            compute(late, plan, 0, 9)
            commit(late, BLOCKS[9], turn=plan, spoil=True)  # a state that went wrong
        other.quarantine(BLOCKS[8].name, Reason.BY_HAND, "a test says so")
        assert take_turn(other)[1] == 10
        assert other.drain(60)
        tier.release.set()
        assert late.drain(60)
        for cache in (late, other):
            assert cache.status()["counters"]["disagreements"] == 0
            assert offered(cache) == 10


def in_another_process_quarantines(bench, name):
    with in_another_process(bench, None) as quarantine:
        quarantine(name)


def test_between_loading_and_the_last_look(bench):
    with stored(bench, "ssd") as cache, bench.open() as other:
        plan, tier = plan_for(cache), bench.tiers[-2]
        get = tier.get

        def meanwhile(key):
            if BLOCKS[9].name.hex() in key:
                other.quarantine(BLOCKS[2].name, Reason.BY_HAND, "a test says so")
            return get(key)

        tier.get = meanwhile
        restored = cache.restore(plan, deadline_s=10)
        check_restored(cache, plan, restored)
        assert (restored.boundary, restored.miss_reason) == (2, Miss.QUARANTINED)


# What brings it back, and what does not.


@pytest.mark.parametrize("lost", ["nothing", "inventory", "quarantine", "secret"])
def test_no_restart_and_no_loss_brings_it_back_but_computing_does(bench, named, lost):
    name, below = named
    with stored(bench, "ssd"):
        pass
    everything = bench.records()
    in_another_process_quarantines(bench, name)  # killed before it moved a byte
    assert bench.records() == everything
    if lost == "quarantine":
        for path in bench.folder.glob("quarantine/**/*.rec"):
            path.unlink()
    elif lost != "nothing":
        (bench.folder / {"inventory": "inventory.sqlite"}.get(lost, lost)).unlink()
    with bench.open() as cache, bench.open() as other:
        assert offered(cache) == offered(other) == below
        features = cache.features({FEATURE: PICTURE}, deadline_s=5)
        assert bool(features) is (name != FEATURE)
        restored, recomputed = take_turn(cache)
        assert (restored.boundary, recomputed) == (below, 10 - below)
        assert cache.drain(60)
        assert offered(cache) == offered(other) == 10
    (bench.folder / "inventory.sqlite").unlink()
    with bench.open() as cache:
        assert offered(cache) == 10


def test_bytes_that_come_back_stay_barred(bench):
    with stored(bench, "ssd"):
        pass
    copies = {path: path.read_bytes() for path in bench.records()}
    with bench.open() as cache:
        cache.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
        assert cache.drain(60)
        assert len(bench.records()) == 5  # four parts, and the picture's features
    for path, data in copies.items():  # as a backup would
        path.write_bytes(data)
    (bench.folder / "inventory.sqlite").unlink()
    with bench.open() as cache:
        assert offered(cache) == 4


def test_without_a_store_it_holds_while_the_process_lives(named):
    name, below = named
    with Bench(None, ROWS_ONLY).open() as cache:
        take_turn(cache)
        fence = cache.quarantine(name, Reason.BY_HAND, "a test says so")
        assert (fence.number, offered(cache)) == (1, below)
        assert take_turn(cache)[1] == 10 - below
        assert offered(cache) == 10


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_barred_from_the_named_block_on(tmp_path, family):
    bench = Bench(tmp_path, FAMILIES[family])
    for index in range(10):
        with bench.open() as cache:
            take_turn(cache)
            assert offered(cache) == 10
            cache.quarantine(BLOCKS[index].name, Reason.BY_HAND, "a test says so")
            assert offered(cache) <= index


def test_what_descends_over_blocks_that_are_not_stored_is_barred_as_well(tmp_path):
    bench = Bench(tmp_path, SNAPSHOT_ONLY)
    with bench.open() as cache:
        plan = plan_for(cache)
        with cache.pinned(plan):
            for index in (1, 9):  # the blocks between have no part anywhere
                commit(cache, BLOCKS[index], turn=plan)
    for name in (BLOCKS[5].name, ROOT):
        in_another_process_quarantines(bench, name)
        with bench.open() as cache:
            plan = plan_for(cache)
            assert plan.boundary == (2 if name != ROOT else 0)
            assert plan.miss_reason is Miss.QUARANTINED
            restored = cache.restore(plan, deadline_s=5)
            assert restored.boundary == plan.boundary


def test_a_sibling_and_another_tenant_stay(bench):
    sibling = blocks_of([*range(20), *range(100, 120)])
    with stored(bench, "ram") as cache:
        for block in sibling[5:]:
            commit(cache, block)
        cache.quarantine(BLOCKS[5].name, Reason.BY_HAND, "a test says so")
        assert (offered(cache), cache.plan(sibling, limit=10).boundary) == (5, 10)


def test_features_that_the_tower_does_not_repeat_take_the_blocks_that_consumed_them(bench):
    with stored(bench, "ram") as cache:
        cache.commit_features(FEATURE, PICTURE, spoiled_features(features_of(PICTURE)))
        assert offered(cache) == 4
        assert cache.drain(60)
        assert len(bench.records()) == 4
        assert cache.status()["counters"]["disagreements"] == 1


# What the process itself stands on.


def test_what_a_turn_stands_on_is_moved_when_it_ends(bench, tier):
    with stored(bench, tier) as cache:
        plan = plan_for(cache)
        with cache.pinned(plan):
            cache.restore(plan, deadline_s=5)
            cache.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
            assert cache.drain(60)
            held = [path.name for path in bench.records()]
            assert all(any(block.name.hex() in name for name in held) for block in BLOCKS)  # I7
            if tier == "ram":
                assert cache._ram.get((BLOCKS[7].name, "rows")) is not None
            # Another turn computes them, and may not overwrite them yet.
            assert take_turn(cache)[1] == 0
        assert cache.drain(60)
        assert len(bench.records()) == 5
        assert [name.partition(".")[0] for name in aside(bench)] == ["0000000001"] * 6
        assert take_turn(cache)[1] == 6
        assert offered(cache) == 10


def test_what_a_turn_has_only_planned_on_is_not_overwritten(bench):
    with stored(bench, "ssd") as cache:
        cache._quarantine._sweep_soon = lambda *_: None  # the write thread is not that far yet
        plan = plan_for(cache)
        with cache.pinned(plan):
            cache.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
            files = {path: path.read_bytes() for path in bench.records()}
            assert take_turn(cache)[1] == 0
            assert cache.drain(60)
            assert {path: path.read_bytes() for path in bench.records()} == files  # I7
        assert cache.drain(60)
        assert take_turn(cache)[1] == 6
        assert offered(cache) == 10


def test_a_part_that_is_computed_anew_before_the_old_one_is_moved_stays(bench):
    with stored(bench, "ssd") as cache:
        sweep, swept = cache._quarantine._sweep_soon, []
        cache._quarantine._sweep_soon = lambda *one: swept.append(one)
        cache.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
        bench.tier.hold_puts = True
        plan = plan_for(cache)
        with cache.pinned(plan):
            restored = cache.restore(plan, deadline_s=5)
            assert (restored.boundary, compute(cache, plan, 4)) == (4, 6)
            assert bench.tier.held.wait(10)  # the first is being written, the rest wait
            sweep(*swept[0])
            bench.tier.release.set()
            assert cache.drain(60)
        assert cache.drain(60)
        assert offered(cache) == 10
        assert len(aside(bench)) == 6
    with bench.open() as cache:
        assert offered(cache) == 10


def test_a_write_waits_for_what_another_process_is_moving_from_its_place(bench, monkeypatch):
    with stored(bench, "ssd") as cache:
        with bench.open() as other:
            other._quarantine._sweep_soon = lambda *_: None
            fence = other.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
        key, index = (BLOCKS[9].name, "rows"), cache._ssd.inventory
        assert index.seize(key, fence.number, owner="other")

        class Moved:
            def wait(self, seconds):
                index.drop([key])

        monkeypatch.setattr(ssd_module, "Event", Moved)
        assert take_turn(cache)[1] == 6
        assert cache.drain(60)
    with bench.open() as cache:
        assert take_turn(cache)[0].sources == {"ssd": 40}


def test_what_another_process_computed_anew_is_not_taken_by_a_turn_that_ends_late(bench):
    with stored(bench, "ssd") as late, bench.open() as other:
        plan = plan_for(late)
        with late.pinned(plan):
            late.restore(plan, deadline_s=5)
            other.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
            assert other.drain(60)
            assert take_turn(other)[1] == 6
            assert other.drain(60)
            assert not late.stands(plan, 10)
        assert late.drain(60)
        assert len(bench.records()) == 11
        assert offered(late) == offered(other) == 10


def test_a_turn_that_met_a_bad_record_stores_what_it_computes_in_its_place(tmp_path, tier):
    bench = Bench(tmp_path, EVERY_LAW)
    with stored(bench, tier) as cache:
        if tier == "ram":
            key = next(key for key, _ in cache._ram._tier.list() if BLOCKS[6].name.hex() in key)
            cache._ram._tier.put(key, b"not what was sealed")
        else:
            path = next(path for path in bench.records() if BLOCKS[6].name.hex() in path.name)
            path.write_bytes(b"not what was sealed")
        restored, recomputed = take_turn(cache)
        assert restored.miss_reason is Miss.CORRUPT
        assert restored.boundary + recomputed == 10
        assert offered(cache) == 10
        assert cache.status()["counters"]["quarantines"] == 1
        assert cache.drain(60)
    with bench.open() as cache:
        assert offered(cache) == 10
        assert cache._fences.last == 1


def test_many_bad_records_of_one_chain_are_one_fence(bench):
    with stored(bench, "ssd") as cache:
        for path in bench.records():
            path.write_bytes(b"not what was sealed")
        assert take_turn(cache)[0].miss_reason is Miss.CORRUPT
        assert cache.drain(60)
        assert cache.status()["fences"] == 1
        assert cache.status()["counters"]["corrupt"] == 10


# Bytes aside.


def test_what_is_quarantined_lies_aside_under_the_fences_number_and_is_accounted(bench):
    with stored(bench, "ssd") as cache:
        keys = [path.name for path in bench.records()]
        cache.quarantine(b"x" * 32, Reason.BY_HAND, "of nothing")
        for number, name in enumerate((BLOCKS[7].name, FEATURE), 2):
            fence = cache.quarantine(name, Reason.BY_HAND, "a test says so")
            assert fence.number == number
        assert cache.drain(60)
        gone = set(keys) - {path.name for path in bench.records()}
        assert len(gone) == 7
        assert {name.split(".", 1)[1] for name in aside(bench)} == gone
        third = [one for one in aside(bench) if one.startswith("0000000003.")]
        assert len(third) == 4  # the features, and blocks 4 to 6
        status = cache.status()
        used = sum(path.stat().st_blocks * 512 for path in bench.folder.glob("quarantine/*/*.rec"))
        assert status["quarantined"] == {"bytes": used, "records": 7}
        assert status["counters"]["quarantined_parts"] == 6
        assert status["counters"]["quarantined_features"] == 1
        assert status["fences"] == status["counters"]["quarantines"] == 3


def test_quarantine_takes_a_sixteenth_of_the_quota_the_oldest_fence_leaving_first(bench):
    bench.ssd_bytes = 16 * 4096 * 3
    with bench.open() as cache:
        for seed in range(4):
            blocks = blocks_of(range(seed * 1000, seed * 1000 + 8))
            for block in blocks:
                commit(cache, block)
            assert cache.drain(60)
            cache.quarantine(blocks[0].name, Reason.BY_HAND, "a test says so")
            assert cache.drain(60)
            assert cache.status()["quarantined"]["bytes"] <= 3 * 4096
        left = [name.partition(".")[0] for name in aside(bench)]
        assert left == ["0000000003", "0000000004", "0000000004"]


def test_of_one_fence_what_bears_the_name_is_kept_rather_than_what_descends(bench):
    bench.ssd_bytes = 16 * 4096 * 2 + 4096
    with stored(bench, "ssd") as cache:
        cache.quarantine(BLOCKS[3].name, Reason.BY_HAND, "a test says so")
        assert cache.drain(60)
        assert len(aside(bench)) == 2
        assert any(BLOCKS[3].name.hex() in name for name in aside(bench))


def test_a_full_store_keeps_what_it_quarantines_in_the_room_of_what_leaves(bench):
    with bench.open() as cache:
        for block in (*BLOCKS, *blocks_of(range(100, 124))):
            commit(cache, block)
    bench.ssd_bytes = 16 * 4096  # sixteen files lie there
    with bench.open() as cache:
        assert cache.drain(60)
        assert cache._ssd.used() == bench.ssd_bytes
        cache.quarantine(BLOCKS[9].name, Reason.BY_HAND, "a test says so")
        assert cache.drain(60)
        assert (len(bench.records()), len(aside(bench))) == (15, 1)


def test_a_smaller_quota_shrinks_the_quarantine_when_the_store_is_opened(bench):
    with stored(bench, "ssd") as cache:
        cache.quarantine(ROOT, Reason.BY_HAND, "a test says so")
        assert cache.drain(60)
        assert len(aside(bench)) == 10
    bench.ssd_bytes = 16 * 4096 * 4
    with bench.open() as cache:
        assert cache.drain(60)
        assert len(aside(bench)) == 4


# What is durable, and when.


def test_a_fence_is_down_before_a_byte_moves(bench):
    with stored(bench, "ssd") as cache:
        cache._quarantine._sweep_soon = lambda *_: None
        records = bench.records()
        assert cache.quarantine(ROOT, Reason.BY_HAND, "a test says so").number == 1
        assert bench.records() == records
        with bench.open() as other:
            assert offered(other) == 0


def test_a_fence_that_cannot_be_written_holds_here_and_is_written_later(bench):
    with stored(bench, "ram") as cache:
        put = cache._fences._tier.put

        def refuse(key, data):
            raise TierError("no space left on device")

        cache._fences._tier.put = refuse
        with pytest.raises(TierError, match="not on disk"):
            cache.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
        assert offered(cache) == 4
        assert take_turn(cache)[1] == 0  # nobody could tell it from the bad ones
        cache._fences._tier.put = put
        bench.clock.pass_(SETTLE_AGAIN_S)
        assert offered(cache) == 4  # tries again
        assert cache.drain(60)
        assert cache.status()["fences"] == 1
        assert take_turn(cache)[1] == 6
    with bench.open() as cache:
        assert offered(cache) == 10


def test_while_the_fences_cannot_be_read_nothing_is_reused(bench, tier):
    with stored(bench, tier) as cache:
        early = plan_for(cache)
        get = cache._fences._tier.get

        def refuse(key):
            raise TierError("the medium failed")

        cache._fences._tier.get = refuse
        assert cache.restore(early, deadline_s=5).miss_reason is Miss.TIER_ERROR
        plan = plan_for(cache)
        assert (plan.boundary, plan.miss_reason) == (0, Miss.TIER_ERROR)
        assert cache.features({FEATURE: PICTURE}, deadline_s=5) == {}
        cache._fences._tier.get = get
        assert offered(cache) == 10


def test_an_index_that_says_a_record_knew_a_fence_that_it_did_not_is_set_right(bench):
    with stored(bench, "ssd") as cache:
        cache.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
        assert cache.drain(60)
        assert take_turn(cache)[1] == 6
        assert cache.drain(60)
        cache.quarantine(b"x" * 32, Reason.BY_HAND, "of nothing")
        cache._quarantine._sweep_soon = lambda *_: None  # so that the index can lie of all of them
        cache.quarantine(BLOCKS[4].name, Reason.BY_HAND, "a test says so")
        cache._ram.evict(1 << 30)
        with cache._ssd.inventory._write() as connection:
            connection.execute("UPDATE parts SET fence = 3")
        for _ in range(2):
            take_turn(cache)
            assert cache.drain(60)
        assert offered(cache) == 10
    with bench.open() as cache:
        assert take_turn(cache)[0].sources == {"ssd": 40}


def test_a_purged_tenants_parts_are_kept_nowhere(bench):
    with stored(bench, "ram") as cache:
        plan = plan_for(cache)
        with cache.pinned(plan):
            cache.restore(plan, deadline_s=5)
            cache.quarantine(ROOT, Reason.PURGED, "purged")
            assert cache.drain(60)
        assert cache.drain(60)
        assert aside(bench) == []
        assert len(bench.records()) == 1  # the picture's features, which stand alone


def test_restores_of_a_hybrid_stand_below_the_fence_on_a_lower_snapshot(tmp_path):
    bench = Bench(tmp_path, HYBRID)
    with stored(bench, "ssd") as cache:
        plan = plan_for(cache)
        with cache.pinned(plan), bench.open() as other:
            other.quarantine(BLOCKS[6].name, Reason.BY_HAND, "a test says so")
            restored = cache.restore(plan, deadline_s=5)
            check_restored(cache, plan, restored)
            assert 0 <= restored.boundary <= 6
        assert offered(cache) == 6
