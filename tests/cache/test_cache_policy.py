"""The snapshot policy, enumerated, and the law of hits that follows from it."""

import pytest

from surefoot.cache.policy import LADDER_BLOCKS, kept_groups, on_ladder
from surefoot.laws import RecurrentSnapshot, TokenRows
from surefoot.prompt import MediaName, MediaSpan
from surefoot.receipt import Miss
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    HYBRID,
    ROWS_ONLY,
    SNAPSHOT_ONLY,
    Bench,
    blocks_of,
    group,
    take_turn,
)

C = 4  # tokens in a block


def kept(groups, count, *, branch=0, media=()):
    blocks = blocks_of(range(count), media=media)
    return {
        index + 1
        for index in range(len(blocks))
        if "state" in kept_groups(groups, blocks, index, prompt_tokens=count, branch=branch)
    }


def test_the_ladder_doubles_to_sixteen_and_then_steps():
    assert [n for n in range(1, 70) if on_ladder(n)] == [1, 2, 4, 8, 16, 32, 48, 64]


@pytest.mark.parametrize("groups", [HYBRID, EVERY_LAW, SNAPSHOT_ONLY])
def test_a_snapshot_is_kept_at_both_ends_the_branch_and_the_ladder(groups):
    for count in range(1, 90):
        for branch in {0, 1, 3, 5, count // C}:
            whole = count // C
            ladder = filter(on_ladder, range(1, whole + 1))
            expected = {(count - 1) // C, count // C, branch, *ladder}
            assert kept(groups, count, branch=branch) == {n for n in expected if 0 < n <= whole}


@pytest.mark.parametrize("groups", [HYBRID, SNAPSHOT_ONLY])
def test_a_snapshot_is_kept_before_the_first_image_and_before_the_last(groups):
    count = 50 * C
    plain = kept(groups, count)
    for starts in ((70,), (72,), (75, 97, 130), (75, 76, 190), (70, 70 + C), (198,), (0,)):
        media = tuple(MediaSpan(start, 1, MediaName(bytes([start]) * 32)) for start in starts)
        expected = {starts[0] // C, starts[-1] // C} - {0}
        assert kept(groups, count, media=media) == plain | expected, starts


def test_an_image_of_many_blocks_begins_but_once():
    media = (MediaSpan(70, 60, MediaName(b"m" * 32)),)
    assert kept(HYBRID, 50 * C, media=media) == kept(HYBRID, 50 * C) | {70 // C}


@pytest.mark.parametrize("start", range(60, 70))
def test_another_picture_under_one_text_restores_the_text_from_the_second_on(start):
    tokens = list(range(start)) + [9] * 6 + list(range(100, 130))
    first, second = ((MediaSpan(start, 6, MediaName(bytes([byte]) * 32)),) for byte in (1, 2))
    with Bench(None, HYBRID).open() as cache:
        take_turn(cache, tokens, media=first)
        _, restored = take_turn(cache, tokens, media=second)
        assert restored.boundary == start // C


def test_groups_that_are_no_snapshots_are_cut_for_every_block():
    for count in range(4, 90):
        blocks = blocks_of(range(count))
        for index in range(len(blocks)):
            names = kept_groups(EVERY_LAW, blocks, index, prompt_tokens=count, branch=0)
            assert {"rows", "window", "pooled"} <= names


@pytest.mark.parametrize(("width", "everywhere"), [(8 * C, True), (8 * C + 1, False)])
def test_a_snapshot_no_larger_than_the_rows_is_kept_everywhere(width, everywhere):
    groups = (group("rows", TokenRows()), group("state", RecurrentSnapshot(), width=width))
    assert (kept(groups, 4 * 30) == set(range(1, 31))) is everywhere


def rung(n):
    return max((one for one in range(1, n + 1) if on_ladder(one)), default=0)


@pytest.mark.parametrize("shared", [0, 3, 4, 7, 8, 23, 28, 59, 60, 63, 64, 90, 129])
@pytest.mark.parametrize("tail", [1, 2, 4, 9, 30])
def test_the_law_of_hits_holds_with_snapshots(shared, tail):
    common = [index % 30_000 for index in range(shared)]
    stored = common + [40_000 + index for index in range(53)]
    new = common + [45_000 + index for index in range(tail)]
    third = common + [47_000 + index for index in range(tail)]
    bound = min(shared // C, (shared + tail - 1) // C)
    with Bench(None, HYBRID).open() as cache:
        take_turn(cache, stored)
        _, restored = take_turn(cache, new)
        # Where the stored prompt itself ended may be higher than the last rung.
        assert restored.boundary == rung(bound)
        _, restored = take_turn(cache, third)
        assert restored.boundary == bound
    with Bench(None, ROWS_ONLY).open() as cache:
        take_turn(cache, stored)
        _, restored = take_turn(cache, new)
        assert restored.boundary == bound


@pytest.mark.parametrize("groups", [HYBRID, SNAPSHOT_ONLY, EVERY_LAW])
def test_the_same_prompt_and_the_next_turn_need_no_ladder(groups):
    for count in range(1, 4 * LADDER_BLOCKS):
        with Bench(None, groups).open() as cache:
            take_turn(cache, range(count))
            _, same = take_turn(cache, range(count))
            assert same.boundary == (count - 1) // C
            _, longer = take_turn(cache, range(count + 9))
            assert longer.boundary == min(count // C, (count + 8) // C)
            assert longer.miss_reason is (Miss.COLD if count < C else Miss.DIVERGED)
