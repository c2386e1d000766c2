"""The cache as a turn uses it: plan, restore, commit, with RAM, with SSD, across a restart."""

import pytest

from surefoot.identity import salt_of
from surefoot.receipt import Miss
from surefoot.testing.cache_kit import (
    FAMILIES,
    HYBRID,
    ROWS_ONLY,
    Bench,
    blocks_of,
    check_restored,
    commit,
    take_turn,
)

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture(params=FAMILIES, ids=str)
def family(request):
    return FAMILIES[request.param]


def tokens(count, seed=0):
    return [(seed * 7919 + index) % 50_000 for index in range(count)]


def test_the_same_prompt_again_stands_at_its_limit_from_ram(family):
    with Bench(None, family).open() as cache:
        plan, restored = take_turn(cache, tokens(41))
        assert (restored.boundary, restored.miss_reason) == (0, Miss.COLD)
        plan, restored = take_turn(cache, tokens(41))
        check_restored(cache, plan, restored)
        assert restored.boundary == 10
        assert restored.boundary_tokens == 40
        assert restored.miss_reason is None
        assert restored.sources == {"ram": 40}


@pytest.mark.parametrize("count", [39, 40, 41])
def test_a_restart_restores_from_ssd_around_a_boundary(tmp_path, family, count):
    bench = Bench(tmp_path, family)
    with bench.open() as cache:
        take_turn(cache, tokens(count))
        assert cache.drain(60)
        assert cache.status()["pending_writes"] == 0
    with bench.open() as cache:
        plan, restored = take_turn(cache, tokens(count))
        check_restored(cache, plan, restored)
        assert restored.boundary == (count - 1) // 4
        assert restored.sources == {"ssd": restored.boundary_tokens}
        # What came from SSD is in RAM now.
        plan, restored = take_turn(cache, tokens(count))
        assert restored.sources == {"ram": restored.boundary_tokens}


def test_the_next_turn_restores_the_last_boundary_of_the_one_before(family):
    with Bench(None, family).open() as cache:
        take_turn(cache, tokens(42))
        plan, restored = take_turn(cache, tokens(90))
        check_restored(cache, plan, restored)
        assert restored.boundary == 10
        assert restored.miss_reason is Miss.DIVERGED
        assert plan.common_prefix_tokens == 40
        assert plan.diverged_at_token is None


def test_a_third_prompt_restores_at_the_branch_that_the_second_found(family):
    with Bench(None, family).open() as cache:
        shared = tokens(36)
        take_turn(cache, shared + tokens(50, seed=1))
        second, _ = take_turn(cache, shared + tokens(50, seed=2))
        plan, restored = take_turn(cache, shared + tokens(50, seed=3))
        assert second.branch == plan.branch == 9
        assert restored.boundary == 9
        check_restored(cache, plan, restored)


def test_divergence_is_found_to_the_token(tmp_path):
    with Bench(tmp_path, ROWS_ONLY).open() as cache:
        take_turn(cache, tokens(40))
        other = tokens(40)
        other[22] = 49_999
        plan, restored = take_turn(cache, other)
        assert (plan.common_blocks, plan.common_prefix_tokens) == (5, 22)
        assert plan.diverged_at_token == 22
        assert restored.boundary == 5
        other = tokens(40)
        other[2] = 49_999
        plan, restored = take_turn(cache, other)
        assert (plan.common_prefix_tokens, plan.diverged_at_token) == (2, 2)
        assert restored.miss_reason is Miss.COLD


def test_divergence_is_found_from_ssd_rows_as_well(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    with bench.open() as cache:
        take_turn(cache, tokens(40))
    with bench.open() as cache:
        other = tokens(40)
        other[22] = 49_999
        plan = cache.plan(blocks_of(other), limit=9)
        assert (plan.common_prefix_tokens, plan.diverged_at_token) == (22, 22)


def test_a_prompt_without_a_boundary_below_its_last_token_is_too_short():
    with Bench(None).open() as cache:
        for count in (0, 1, 3, 4):
            _, restored = take_turn(cache, tokens(count))
            assert restored.miss_reason is Miss.TOO_SHORT
        _, restored = take_turn(cache, tokens(5))
        assert restored.boundary == 1


def test_another_salt_and_another_model_find_nothing(tmp_path):
    with Bench(tmp_path).open() as cache:
        take_turn(cache, tokens(40))
        salted = blocks_of(tokens(40), salt=salt_of(None, "a"))
        plan = cache.plan(salted, limit=9)
        assert (plan.boundary, plan.common_blocks, plan.common_prefix_tokens) == (0, 0, 0)
        assert plan.miss_reason is Miss.COLD


def test_rows_that_reach_further_than_any_snapshot_are_named(tmp_path):
    with Bench(None, HYBRID).open() as cache:
        shared = tokens(28)
        take_turn(cache, shared + tokens(50, seed=1))
        plan, restored = take_turn(cache, shared + tokens(50, seed=2))
        assert restored.boundary == 4  # a rung of the ladder; 7 blocks are shared
        assert restored.miss_reason is Miss.NO_SNAPSHOT
        assert plan.common_prefix_tokens == 28


def test_commit_counts_a_block_once():
    with Bench(None).open() as cache:
        (block,) = blocks_of(tokens(4))
        assert commit(cache, block) == 4
        assert commit(cache, block) == 0
        assert cache.status()["counters"]["committed_tokens"] == 4


def test_a_part_that_joins_its_block_later_counts_and_makes_it_whole(tmp_path):
    bench = Bench(tmp_path, HYBRID)
    with bench.open() as cache:
        (block,) = blocks_of(tokens(4))
        assert commit(cache, block, groups=["rows"]) == 4
        assert cache.plan(blocks_of(tokens(5)), limit=1).boundary == 0
        assert commit(cache, block) == 4
        assert cache.plan(blocks_of(tokens(5)), limit=1).boundary == 1
    with bench.open() as cache:
        assert cache.plan(blocks_of(tokens(5)), limit=1).boundary == 1


@pytest.mark.parametrize("restart", ["same process", "after a restart", "still queued"])
def test_a_commit_that_disagrees_keeps_neither(tmp_path, restart):
    bench = Bench(tmp_path)
    blocks = blocks_of(tokens(12))
    with bench.open() as cache:
        for block in blocks:
            commit(cache, block)
        if restart != "still queued":
            assert cache.drain(60)
        if restart == "same process":
            check_disagreement(cache, blocks)
    if restart != "same process":
        with bench.open() as cache:
            check_disagreement(cache, blocks)
    assert not [path for path in bench.records() if blocks[1].name.hex() in path.name]


def check_disagreement(cache, blocks):
    assert commit(cache, blocks[1], spoil=True) == 0
    assert cache.status()["counters"]["disagreements"] == 1
    plan = cache.plan(blocks, limit=3)
    assert plan.boundary == 1
    assert plan.miss_reason is Miss.QUARANTINED
    # A computation that agrees with nothing stored is stored again, once the fence has a number.
    assert cache.drain(60)
    assert commit(cache, blocks[1]) == commit(cache, blocks[2]) == 4
    assert cache.plan(blocks, limit=3).boundary == 3
    assert cache.drain(60)
    assert commit(cache, blocks[1], spoil=True) == 0
    assert cache.drain(60)
    assert cache.plan(blocks, limit=3).boundary == 1


def test_two_processes_share_one_store(tmp_path):
    bench = Bench(tmp_path)
    with bench.open() as first, bench.open() as second:
        take_turn(first, tokens(40))
        assert first.drain(60)
        plan, restored = take_turn(second, tokens(40))
        check_restored(second, plan, restored)
        assert restored.sources == {"ssd": 36}
        assert first.secret == second.secret


def test_a_disagreement_between_processes_is_found_when_writing(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    (block,) = blocks_of(tokens(4))
    with bench.open() as first, bench.open() as second:
        bench.tier.hold_puts = True
        commit(second, block)  # staged, not published
        bench.tier.held.wait(10)
        commit(first, block, spoil=True)
        assert first.drain(60)
        assert first.status()["counters"]["disagreements"] == 1
        bench.tier.release.set()
        assert second.drain(60)
        assert not bench.records()
        assert first.plan((block,), limit=1).boundary == 0


def test_store_off_touches_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Bench(None).open() as cache:
        take_turn(cache, tokens(40))
        assert "ssd" not in cache.status()["tiers"]
        assert len(cache.secret) == 32
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_for_its_owner_alone(tmp_path):
    bench = Bench(tmp_path / "store")
    with bench.open() as cache:
        take_turn(cache, tokens(40))
        assert cache.drain(60)
        for path in [bench.folder, *bench.folder.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path


def test_entries_name_every_part_once_with_its_tiers(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    with bench.open() as cache:
        take_turn(cache, tokens(12))
        assert {entry.tiers for entry in cache.entries()} <= {("ram",), ("ram", "ssd")}
        assert cache.drain(60)
        listed = list(cache.entries())
        assert [(one.start, one.end, one.tiers) for one in listed] == [
            (0, 4, ("ram", "ssd")),
            (4, 8, ("ram", "ssd")),
            (8, 12, ("ram", "ssd")),
        ]
        assert cache.status()["tiers"]["ssd"]["parts"] == 3
    with bench.open() as cache:
        assert {entry.tiers for entry in cache.entries()} == {("ssd",)}


def test_a_turn_that_is_larger_than_ram_keeps_its_beginning(family):
    bench = Bench(None, family)
    with bench.open() as cache:
        take_turn(cache, tokens(161))
        whole = cache.status()["tiers"]["ram"]["bytes"]
    bench.ram_bytes = whole // 4
    with bench.open() as cache:
        for _ in range(3):
            plan, restored = take_turn(cache, tokens(161))
            check_restored(cache, plan, restored)
            assert cache.status()["tiers"]["ram"]["bytes"] <= bench.ram_bytes
        if family not in (FAMILIES["snapshot-only"], FAMILIES["window-only"]):
            assert restored.boundary >= 4


def test_an_old_conversation_makes_room_for_a_new_one(family):
    bench = Bench(None, family)
    with bench.open() as cache:
        take_turn(cache, tokens(161))
        whole = cache.status()["tiers"]["ram"]["bytes"]
    bench.ram_bytes = whole * 5 // 4
    with bench.open() as cache:
        for seed in range(4):
            bench.clock.pass_(1)
            take_turn(cache, tokens(161, seed=seed))
            bench.clock.pass_(1)
            _, restored = take_turn(cache, tokens(161, seed=seed))
            assert restored.boundary == 40
