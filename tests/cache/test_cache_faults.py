"""A fault of a tier costs time and has a name; it never changes what is handed over (I8, I10)."""

import time

import pytest

from surefoot.cache.courier import SPARE_THREADS, WRITE_STALL_S
from surefoot.receipt import Miss
from surefoot.record import Header
from surefoot.record import key as record_key
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    HYBRID,
    ROWS_ONLY,
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
    made = Bench(tmp_path / "store", ROWS_ONLY)
    with made.open() as cache:
        take_turn(cache, TOKENS)
    return made


def plan_and_restore(cache, *, deadline_s=5.0):
    plan = cache.plan(BLOCKS, limit=10)
    restored = cache.restore(plan, deadline_s=deadline_s)
    check_restored(cache, plan, restored)
    return plan, restored


def counters(cache):
    return cache.status()["counters"]


def ssd(cache):
    return cache.status()["tiers"]["ssd"]


def test_a_read_that_never_answers_is_left_behind_and_planned_around(bench):
    bench.clock = time.monotonic
    with bench.open() as cache:
        bench.tier.hold = True
        _, restored = plan_and_restore(cache, deadline_s=0.05)
        assert (restored.boundary, restored.miss_reason) == (0, Miss.DEADLINE)
        stalls = ssd(cache)["stalls"]  # of two; a thread that is late to begin drops its read
        assert ssd(cache)["state"] == "down"
        assert 1 <= stalls <= 2
        plan, restored = plan_and_restore(cache)
        assert (plan.boundary, plan.miss_reason) == (0, Miss.TIER_ERROR)
        assert restored.miss_reason is Miss.TIER_ERROR
        assert len(bench.tier.gets) == stalls  # nothing more was asked of it
        # When the medium answers again, so does the cache; what came late was not used.
        bench.tier.hold = False
        bench.tier.release.set()
        assert cache._lanes.reads.drain(60)
        assert ssd(cache)["state"] == "up"
        _, restored = plan_and_restore(cache)
        assert restored.sources == {"ssd": 40}


def test_what_arrived_in_time_and_forms_a_boundary_is_used(bench):
    with bench.open() as cache:
        for block in BLOCKS[:3]:
            commit(cache, block)  # into RAM
        bench.tier.hold = True
        _, restored = plan_and_restore(cache, deadline_s=0.05)
        assert (restored.boundary, restored.miss_reason) == (3, Miss.DEADLINE)
        assert restored.sources == {"ram": 12}


def test_stalled_threads_are_replaced_within_a_bound_and_then_the_lane_is_busy(bench):
    with bench.open() as cache:
        early = cache.plan(BLOCKS, limit=10)
        bench.tier.hold = True
        reasons = []
        for _ in range(5):
            _, restored = plan_and_restore(cache, deadline_s=0.02)
            reasons.append(restored.miss_reason)
            bench.clock.pass_(60)  # no longer marked down: tried again
        assert reasons[0] is Miss.DEADLINE
        assert reasons[-1] is Miss.TIER_ERROR  # nobody is left to ask what is stored
        assert cache.restore(early, deadline_s=0.02).miss_reason is Miss.BUSY
        assert ssd(cache)["stalls"] == bench.io_threads + SPARE_THREADS
        assert len(bench.tier.gets) == bench.io_threads + SPARE_THREADS


@pytest.mark.parametrize(
    "mangle",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: b"x" * len(data),
    ],
    ids=["short", "empty", "long", "flipped at the end", "flipped at the start", "garbage"],
)
def test_bytes_that_are_not_what_was_sealed_leave_the_tier_and_are_never_served(bench, mangle):
    with bench.open() as cache:
        bench.tier.mangle = mangle
        _, restored = plan_and_restore(cache)
        assert (restored.boundary, restored.miss_reason) == (0, Miss.CORRUPT)
        assert not restored.parts
        assert counters(cache)["corrupt"] == counters(cache)["verification_failures"] == 10
        bench.tier.mangle = None
        assert cache.plan(BLOCKS, limit=10).boundary == 0
        assert cache.drain(60)
        assert bench.records() == []
        assert ssd(cache)["parts"] == ssd(cache)["bytes"] == 0
        # Computed anew, it is stored and served again (I8).
        take_turn(cache, TOKENS)
        assert cache.drain(60)
        cache._ram.evict(1 << 30)
        _, restored = plan_and_restore(cache)
        assert restored.sources == {"ssd": 40}
    with bench.open() as cache:
        _, restored = plan_and_restore(cache)
        assert restored.sources == {"ssd": 40}


def test_one_bad_record_costs_what_stands_on_it_alone(bench):
    bad = next(path for path in bench.records() if BLOCKS[6].name.hex() in path.name)
    bad.write_bytes(bad.read_bytes()[:-1] + b"\xff")
    with bench.open() as cache:
        # The turn that met it stores what it computes in its place.
        _, restored = take_turn(cache, TOKENS)
        assert (restored.boundary, restored.miss_reason) == (6, Miss.CORRUPT)
        _, restored = plan_and_restore(cache)
        assert restored.boundary == 10


def test_a_damaged_ram_copy_goes_from_every_tier(bench):
    with bench.open() as cache:
        take_turn(cache, TOKENS)
        key = record_key(BLOCKS[6].name, "rows")
        data = cache._ram.get((BLOCKS[6].name, "rows"))
        cache._ram._tier.put(key, data[:-1] + b"\xff")
        _, restored = plan_and_restore(cache)
        assert (restored.boundary, restored.miss_reason) == (6, Miss.CORRUPT)
        assert cache.plan(BLOCKS, limit=10).boundary == 6
        assert cache.drain(60)
        assert len(bench.records()) == 6  # with all that descends from it
        assert cache.status()["quarantined"]["records"] == 4


def test_a_record_of_other_tokens_under_an_equal_name_is_refused(bench):
    with bench.open() as cache:
        forged = tuple(
            block._replace(ids=bytes(len(block.ids))) if index == 4 else block
            for index, block in enumerate(BLOCKS)
        )
        restored = cache.restore(cache.plan(forged, limit=10), deadline_s=5)
        assert (restored.boundary, restored.miss_reason) == (4, Miss.CORRUPT)


@pytest.mark.parametrize(
    "field", [{"start": 17, "end": 21}, {"parent": b"p" * 32}, {"model": b"x" * 32}]
)
def test_every_field_of_the_block_is_compared(bench, field):
    with bench.open() as cache:
        forged = (*BLOCKS[:4], BLOCKS[4]._replace(**field), *BLOCKS[5:])
        restored = cache.restore(cache.plan(forged, limit=5), deadline_s=5)
        assert (restored.boundary, restored.miss_reason) == (4, Miss.CORRUPT)


def test_a_part_that_does_not_fit_the_schema_is_corrupt(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    with bench.open() as cache:
        take_turn(cache, TOKENS)
    wider = Bench(tmp_path, HYBRID[1:])
    wider.groups = (HYBRID[1].__class__("rows", ROWS_ONLY[0].law, HYBRID[1].schema),)
    with wider.open() as cache:
        restored = cache.restore(cache.plan(BLOCKS, limit=10), deadline_s=5)
        assert (restored.boundary, restored.miss_reason) == (0, Miss.CORRUPT)


def test_a_medium_that_fails_is_a_tier_error_and_keeps_its_records(bench):
    with bench.open() as cache:
        bench.tier.fail_gets = True
        _, restored = plan_and_restore(cache)
        assert (restored.boundary, restored.miss_reason) == (0, Miss.TIER_ERROR)
        assert ssd(cache)["failures"] == 10
        bench.tier.fail_gets = False
        _, restored = plan_and_restore(cache)
        assert restored.boundary == 10


def test_a_file_gone_between_plan_and_restore_is_a_miss_and_its_row_goes(bench):
    with bench.open() as cache:
        plan = cache.plan(BLOCKS, limit=10)
        next(path for path in bench.records() if BLOCKS[3].name.hex() in path.name).unlink()
        restored = cache.restore(plan, deadline_s=5)
        assert (restored.boundary, restored.miss_reason) == (3, Miss.EVICTED)
        assert cache.plan(BLOCKS, limit=10).miss_reason is Miss.EVICTED
        assert cache.drain(60)
        assert ssd(cache)["parts"] == 9


def test_a_ram_part_gone_between_plan_and_restore_is_a_miss(bench):
    with bench.open() as cache:
        take_turn(cache, TOKENS)
        plan = cache.plan(BLOCKS, limit=10)
        cache._ram.evict(1 << 30)
        restored = cache.restore(plan, deadline_s=5)
        assert (restored.boundary, restored.miss_reason) == (0, Miss.EVICTED)


def test_a_full_disk_keeps_the_turn_and_leaves_no_row(tmp_path):
    bench = Bench(tmp_path, EVERY_LAW)
    with bench.open() as cache:
        bench.tier.fail_puts = True
        take_turn(cache, TOKENS)
        assert cache.drain(60)
        assert ssd(cache)["parts"] == ssd(cache)["bytes"] == 0
        assert ssd(cache)["failures"] == len(bench.tier.puts)
        _, restored = plan_and_restore(cache)
        assert restored.sources == {"ram": 40}
        # The next commit of the same blocks tries again.
        bench.tier.fail_puts = False
        for block in BLOCKS:
            assert commit(cache, block, groups=("rows", "window", "pooled")) == 0
        commit(cache, BLOCKS[9])
    with bench.open() as cache:
        assert cache.plan(BLOCKS, limit=10).boundary == 10


def test_a_retreat_reads_a_lower_snapshot_once(tmp_path):
    bench = Bench(tmp_path, HYBRID)
    with bench.open() as cache:
        take_turn(cache, TOKENS)  # snapshots at 1, 2, 4, 8 and 10
    damage(bench, BLOCKS[9], "state")
    with bench.open() as cache:
        plan, restored = plan_and_restore(cache)
        assert plan.boundary == 10
        assert (restored.boundary, restored.miss_reason) == (8, Miss.CORRUPT)
        assert len(bench.tier.gets) == 12
    damage(bench, BLOCKS[7], "state")
    damage(bench, BLOCKS[3], "state")
    with bench.open() as cache:
        _, restored = plan_and_restore(cache)
        assert (restored.boundary, restored.miss_reason) == (0, Miss.CORRUPT)
        assert cache.drain(60)
        _, restored = plan_and_restore(cache)
        assert (restored.boundary, restored.miss_reason) == (2, Miss.QUARANTINED)


def damage(bench, block, group):
    (path,) = bench.folder.glob(f"records/*/{record_key(block.name, group)}.rec")
    path.write_bytes(path.read_bytes()[:-1] + b"\xee")


def test_a_full_queue_leaves_parts_in_ram_and_never_waits(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    bench.queue_bytes = 2_500
    with bench.open() as cache:
        bench.tier.hold_puts = True
        take_turn(cache, TOKENS)
        assert counters(cache)["unqueued_writes"] > 0
        assert not cache.drain(0.01)
        pending = cache.status()["pending_writes"]
        record_bytes = cache.status()["tiers"]["ram"]["bytes"] // 10
        assert pending == bench.queue_bytes // record_bytes
        _, restored = plan_and_restore(cache)
        assert restored.sources == {"ram": 40}
        bench.tier.hold_puts = False
        bench.tier.release.set()
        assert cache.drain(60)
        assert cache.status()["pending_writes"] == 0
        # What did not fit the queue is queued when it is committed again.
        for block in BLOCKS:
            commit(cache, block)
            assert cache.drain(60)
        assert ssd(cache)["parts"] == 10


def test_a_stalled_writer_is_replaced_and_its_late_write_is_sound(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    with bench.open() as cache:
        bench.tier.hold_puts = True
        commit(cache, BLOCKS[0])
        assert bench.tier.held.wait(10)
        bench.tier.hold_puts = False
        bench.clock.pass_(WRITE_STALL_S + 1)
        commit(cache, BLOCKS[1])
        assert not cache.drain(0.05)  # the stalled one is still pending
        assert ssd(cache)["stalls"] == 1
        bench.tier.release.set()
        assert cache.drain(60)
        assert ssd(cache)["parts"] == 2
    assert len(bench.records()) == 2


def test_a_bug_in_an_io_thread_is_raised_where_it_is_seen(bench):
    with bench.open() as cache:

        def explode(key):
            raise AssertionError("a bug")

        bench.tier.get = explode
        with pytest.raises(AssertionError, match="a bug"):
            plan_and_restore(cache)


def test_a_part_that_failed_under_another_turn_is_fenced_until_that_turn_ends(bench):
    with bench.open() as cache:
        other = cache.plan(BLOCKS, limit=10)
        with cache.pinned(other):
            bad = next(path for path in bench.records() if BLOCKS[6].name.hex() in path.name)
            bad.write_bytes(b"gone bad")
            _, restored = plan_and_restore(cache)
            assert (restored.boundary, restored.miss_reason) == (6, Miss.CORRUPT)
            assert bad.exists()  # I7
            plan = cache.plan(BLOCKS, limit=10)
            assert (plan.boundary, plan.miss_reason) == (6, Miss.QUARANTINED)  # I8
            assert commit(cache, BLOCKS[6]) == 0
        assert cache.drain(60)
        assert not bad.exists()
        for block in BLOCKS[6:]:
            assert commit(cache, block) == 4
        assert cache.plan(BLOCKS, limit=10).boundary == 10


@pytest.mark.parametrize("how", ["damaged", "disagreed with"])
def test_a_ram_part_under_another_turn_is_fenced_as_well(how):
    with Bench(None, ROWS_ONLY).open() as cache:
        take_turn(cache, TOKENS)
        other = cache.plan(BLOCKS, limit=10)
        with cache.pinned(other):
            key = (BLOCKS[6].name, "rows")
            if how == "damaged":
                cache._ram._tier.put(record_key(*key), cache._ram.get(key)[:-1] + b"\xff")
                _, restored = plan_and_restore(cache)
                assert (restored.boundary, restored.miss_reason) == (6, Miss.CORRUPT)
            else:
                assert commit(cache, BLOCKS[6], spoil=True) == 0
            assert cache._ram.get(key) is not None  # I7
            plan = cache.plan(BLOCKS, limit=10)
            assert (plan.boundary, plan.miss_reason) == (6, Miss.QUARANTINED)  # I8
        assert cache._ram.get(key) is None
        for block in BLOCKS[6:]:
            assert commit(cache, block) == 4
        assert cache.plan(BLOCKS, limit=10).boundary == 10


def test_an_eviction_leaves_what_a_turn_planned_on(bench):
    with bench.open() as cache:
        plan = cache.plan(BLOCKS[:6], limit=6)
        with cache.pinned(plan):
            cache._ssd.evict(1 << 40)
            assert len(bench.records()) == 6  # I7
            restored = cache.restore(plan, deadline_s=5)
            assert restored.boundary == 6
        cache._ssd.evict(1 << 40)
        assert bench.records() == []


def test_a_part_pinned_while_victims_are_chosen_is_no_victim(bench):
    with bench.open() as cache:
        trees, key = cache._ssd.inventory.trees, (BLOCKS[9].name, "rows")

        def pin_meanwhile(fast):
            found = trees(fast)
            cache._holds.pin([key])
            return found

        cache._ssd.inventory.trees = pin_meanwhile
        cache._ssd.evict(1 << 40)
        assert [path.name for path in bench.records()] == [f"{record_key(*key)}.rec"]  # I7
        cache._holds.unpin([key])


def test_an_eviction_frees_what_was_asked_beside_pinned_parts(bench):
    others = blocks_of(range(100, 140))
    with bench.open() as cache:
        bench.wall.pass_(100)
        for block in others:
            commit(cache, block)
        assert cache.drain(60)
        with cache.pinned(cache.plan(BLOCKS, limit=10)):
            cache._ssd.evict(1)
            left = {entry.name for entry in cache.entries() if "ssd" in entry.tiers}
            assert left == {block.name.hex() for block in (*BLOCKS, *others[:9])}


def test_what_another_process_is_writing_is_no_victim(bench):
    with bench.open() as cache:
        (block,) = blocks_of([9, 9, 9, 9])
        header = Header(block, "rows", b"c" * 32, ())
        cache._ssd.inventory.stage(header, owner="other", nbytes=9, tick=0.0)
        cache._ssd.evict(1 << 40)
        assert cache._ssd.inventory.used() == (9, 1)
        assert bench.records() == []
        cache._ssd.inventory.drop([(block.name, "rows")])


def test_a_victim_that_is_being_deleted_is_no_longer_planned_on(bench):
    with bench.open() as cache:
        plan = cache.plan(BLOCKS, limit=10)
        key = (BLOCKS[9].name, "rows")
        assert cache._holds.claim(key)
        assert cache.plan(BLOCKS, limit=10).boundary == 9
        restored = cache.restore(plan, deadline_s=5)
        assert (restored.boundary, restored.miss_reason) == (9, Miss.EVICTED)


def test_an_inventory_that_fails_costs_the_ssd_tier_only(bench):
    with bench.open() as cache:
        take_turn(cache, TOKENS[:17])
        cache._ssd.inventory.close()
        plan, restored = plan_and_restore(cache)
        assert restored.sources == {"ram": 16}
        assert plan.miss_reason is Miss.TIER_ERROR
        take_turn(cache, TOKENS)
        assert cache.drain(60)
        assert ssd(cache)["state"] == "down"
        _, restored = plan_and_restore(cache)
        assert restored.sources == {"ram": 40}
