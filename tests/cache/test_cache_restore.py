"""Accounting for what a restore handed over: by the slowest tier of each block (I11)."""

from itertools import product

import pytest

from surefoot.cache.planner import Load, Source
from surefoot.cache.restore import sources
from surefoot.testing.cache_kit import HYBRID, ROWS_ONLY, WINDOW_ONLY, Bench, blocks_of, commit

BLOCKS = blocks_of(range(16))
RAM, SSD = Source.RAM, Source.SSD


def test_a_block_counts_for_the_slowest_tier_of_its_parts():
    for rows, state in product(Source, repeat=2):
        used = [Load("rows", 0, RAM), Load("rows", 1, rows), Load("state", 1, state)]
        slow = SSD if SSD in (rows, state) else RAM
        expected = {"ram": 8} if slow is RAM else {"ssd": 4, "ram": 4}
        assert sources(BLOCKS, 2, used) == expected
        assert sources(BLOCKS, 2, used[::-1]) == expected


def test_blocks_without_parts_count_with_the_next_one_that_has_some():
    assert sources(BLOCKS, 4, [Load("state", 3, SSD)]) == {"ssd": 16}
    used = [Load("window", 1, RAM), Load("window", 3, SSD)]
    assert sources(BLOCKS, 4, used) == {"ram": 8, "ssd": 8}
    assert sources(BLOCKS, 0, []) == {}


@pytest.mark.parametrize("groups", [ROWS_ONLY, WINDOW_ONLY])
def test_what_ssd_gave_is_promoted_and_then_comes_from_ram(tmp_path, groups):
    bench = Bench(tmp_path, groups)
    with bench.open() as cache:
        for block in BLOCKS:
            commit(cache, block)
    with bench.open() as cache:
        for block in BLOCKS[:2]:
            commit(cache, block)
        plan = cache.plan(BLOCKS, limit=4)
        first = cache.restore(plan, deadline_s=5).sources
        assert first == ({"ram": 8, "ssd": 8} if groups is ROWS_ONLY else {"ssd": 16})
        plan = cache.plan(BLOCKS, limit=4)
        assert cache.restore(plan, deadline_s=5).sources == {"ram": 16}


def test_a_deadline_that_has_passed_reads_nothing_more_from_ram(tmp_path):
    bench = Bench(None, HYBRID)
    with bench.open() as cache:
        for block in BLOCKS:
            commit(cache, block)
        plan = cache.plan(BLOCKS, limit=4)
        restored = cache.restore(plan, deadline_s=-1)
        assert (restored.boundary, restored.miss_reason) == (0, "deadline")
        assert restored.verified is False
