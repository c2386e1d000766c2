"""Planning, enumerated over every small inventory (I4), and every reason to miss."""

from itertools import chain, combinations

import pytest

from surefoot.cache.planner import Source, Stored, agreement, make_plan
from surefoot.identity import SpanSlice
from surefoot.prompt import MediaName
from surefoot.receipt import Miss
from surefoot.testing.cache_kit import FAMILIES, HYBRID, ROWS_ONLY, SNAPSHOT_ONLY, WINDOW, blocks_of

BLOCKS = blocks_of(range(16))


def plan_with(groups, held, *, limit, known=None, barred=Miss.EVICTED, unknown=False):
    """``held`` are (group, block index) pairs."""
    usable = {(BLOCKS[index].name, name): Source.SSD for name, index in held}
    return make_plan(
        groups,
        BLOCKS,
        Stored(
            usable,
            frozenset(usable) | frozenset(known or ()),
            lambda name: False,
            barred,
            unknown,
        ),
        limit=limit,
        children=lambda block: [],
        tick=0.0,
        wall=0.0,
    )


def subsets(items):
    return chain.from_iterable(combinations(items, count) for count in range(len(items) + 1))


@pytest.mark.parametrize("family", ["rows", "window", "hybrid", "snapshot-only", "window-only"])
def test_every_small_inventory_is_planned_at_the_greatest_boundary(family):
    groups = FAMILIES[family]
    ends = [block.end for block in BLOCKS]
    for held in subsets([(one.name, index) for one in groups for index in range(len(BLOCKS))]):
        for limit in range(len(BLOCKS) + 1):
            plan = plan_with(groups, held, limit=limit)
            stands = [
                n
                for n in range(1, limit + 1)
                if all(
                    (one.name, index) in held for one in groups for index in one.law.needs(ends, n)
                )
            ]
            assert plan.boundary == max(stands, default=0)
            assert {(load.group, load.block) for load in plan.loads} == {
                (one.name, index)
                for one in groups
                if plan.boundary
                for index in one.law.needs(ends, plan.boundary)
            }
            assert plan.common_blocks == max((index + 1 for _, index in held), default=0)
            assert (plan.miss_reason is None) == (0 < plan.boundary == limit)


def rows(count):
    return [("rows", index) for index in range(count)]


@pytest.mark.parametrize(
    ("groups", "held", "limit", "reason"),
    [
        (ROWS_ONLY, rows(4), 0, Miss.TOO_SHORT),
        (ROWS_ONLY, [], 3, Miss.COLD),
        (ROWS_ONLY, rows(2), 3, Miss.DIVERGED),
        (ROWS_ONLY, rows(3), 3, None),
        (ROWS_ONLY, [("rows", 0), ("rows", 2)], 3, Miss.EVICTED),
        (HYBRID, rows(3), 3, Miss.NO_SNAPSHOT),
        (HYBRID, [*rows(3), ("state", 0)], 3, Miss.NO_SNAPSHOT),
        (HYBRID, [*rows(2), ("state", 1)], 3, Miss.DIVERGED),
        (HYBRID, [("rows", 0), ("state", 2)], 3, Miss.NO_SNAPSHOT),
        (SNAPSHOT_ONLY, [("state", 3)], 3, Miss.NO_SNAPSHOT),
        (SNAPSHOT_ONLY, [("state", 1)], 3, Miss.DIVERGED),
        (WINDOW, rows(3), 3, Miss.EVICTED),
    ],
)
def test_the_reason_to_miss_is_the_true_one(groups, held, limit, reason):
    assert plan_with(groups, held, limit=limit).miss_reason is reason


def test_parts_that_are_known_and_barred_give_their_own_reason():
    known = {(block.name, "rows") for block in BLOCKS}
    for barred in (Miss.TIER_ERROR, Miss.CORRUPT, Miss.EVICTED):
        plan = plan_with(ROWS_ONLY, rows(1), limit=3, known=known, barred=barred)
        assert (plan.boundary, plan.miss_reason) == (1, barred)
    # Barred parts that would not have helped are no reason.
    plan = plan_with(ROWS_ONLY, rows(3), limit=3, known=known, barred=Miss.TIER_ERROR)
    assert plan.miss_reason is None
    known = {(BLOCKS[3].name, "rows")}
    plan = plan_with(ROWS_ONLY, rows(1), limit=3, known=known, barred=Miss.TIER_ERROR)
    assert plan.miss_reason is Miss.EVICTED


def test_a_tier_that_cannot_say_what_it_holds_is_a_tier_error_unless_nothing_was_missing():
    assert plan_with(ROWS_ONLY, [], limit=3, unknown=True).miss_reason is Miss.TIER_ERROR
    assert plan_with(ROWS_ONLY, rows(3), limit=3, unknown=True).miss_reason is None


def test_the_stored_prompt_that_agrees_longest_says_where_this_one_left():
    stored = Stored({}, frozenset(), lambda name: False, Miss.EVICTED)
    (asked,) = blocks_of([1, 2, 3, 4])
    others = [blocks_of(tokens)[0] for tokens in ([9, 9, 9, 9], [1, 2, 9, 9], [1, 9, 9, 9])]

    def diverged(children):
        plan = make_plan(
            ROWS_ONLY,
            (asked,),
            stored,
            limit=1,
            children=lambda block: children,
            tick=0.0,
            wall=0.0,
        )
        return plan.common_prefix_tokens, plan.diverged_at_token

    assert diverged(others) == diverged(others[::-1]) == (2, 2)
    assert diverged(others[:1]) == (0, 0)
    # A row that is staged or barred is the block itself: nothing diverges there.
    assert diverged([asked]) == (0, None)


def test_a_model_without_groups_stands_nowhere():
    assert plan_with((), [], limit=3).boundary == 0


def spans(block, *slices):
    return block._replace(spans=tuple(slices))


def test_agreement_counts_tokens_and_media():
    (one,) = blocks_of([1, 2, 3, 4])
    first, second = MediaName(b"1" * 32), MediaName(b"2" * 32)
    for index in range(4):
        tokens = [1, 2, 3, 4]
        tokens[index] = 9
        assert agreement(one, blocks_of(tokens)[0]) == index
    assert agreement(one, one) == 4
    pictured = spans(one, SpanSlice(1, 2, 0, first))
    assert agreement(pictured, spans(one, SpanSlice(1, 2, 0, second))) == 1
    assert agreement(pictured, spans(one, SpanSlice(1, 2, 5, first))) == 1
    assert agreement(pictured, spans(one, SpanSlice(1, 1, 0, first))) == 2
    assert agreement(spans(one, SpanSlice(1, 1, 0, first)), pictured) == 2
    assert agreement(pictured, one) == agreement(one, pictured) == 1
    assert agreement(pictured, pictured) == 4


def test_below_a_name_are_the_blocks_that_bear_it_consumed_it_or_follow():
    plan = make_plan(
        ROWS_ONLY,
        BLOCKS,
        Stored({}, frozenset(), lambda name: False, Miss.EVICTED),
        limit=4,
        children=lambda block: [],
        tick=0.0,
        wall=0.0,
        features=((), (), (b"f" * 32,), ()),
    )
    names = [block.name for block in BLOCKS]
    expected = {BLOCKS[0].parent: 0, names[0]: 0, names[1]: 1, names[3]: 3, b"f" * 32: 2}
    for name, first in expected.items():
        assert plan.below(name) == set(names[first:])
    assert plan.below(b"x" * 32) == set()


def test_a_block_behind_a_fence_that_nobody_computed_since_is_named_as_the_reason():
    for held, reason in (([], Miss.QUARANTINED), ([("rows", 0)], Miss.QUARANTINED)):
        usable = {(BLOCKS[index].name, name): Source.SSD for name, index in held}
        stored = Stored(
            usable, frozenset(usable), lambda name: False, Miss.EVICTED, fenced=frozenset({2})
        )
        plan = make_plan(
            ROWS_ONLY, BLOCKS, stored, limit=4, children=lambda block: [], tick=0.0, wall=0.0
        )
        assert (plan.boundary, plan.miss_reason) == (len(held), reason)
        short = make_plan(
            ROWS_ONLY, BLOCKS, stored, limit=2, children=lambda block: [], tick=0.0, wall=0.0
        )
        assert short.miss_reason is not Miss.QUARANTINED  # it lies beyond the limit
