"""The RAM shelf: sums, capacity, siblings (I6, I7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.cache.fences import Fence, Reason
from surefoot.cache.ram import RamShelf
from surefoot.record import Header
from surefoot.testing.cache_kit import ROWS_ONLY, blocks_of
from surefoot.tiers.ram import RamTier

BLOCKS = blocks_of(range(32))
LAWS = {one.name: one.law for one in ROWS_ONLY}


def shelf(capacity, pinned=frozenset()):
    return RamShelf(RamTier(), capacity=capacity, laws=LAWS, pinned=lambda: pinned)


def put(made, block, nbytes, *, tick=0.0, fence=0, features=()):
    header = Header(block, "rows", b"c" * 32, features, fence)
    return made.put(header, bytes(nbytes), tick=tick)


@given(
    st.integers(0, 100),
    st.lists(
        st.tuples(st.sampled_from(BLOCKS), st.integers(0, 60), st.integers(0, 3)), max_size=20
    ),
    st.sets(st.sampled_from(BLOCKS)),
)
def test_used_bytes_are_a_recount_and_never_above_the_capacity(capacity, steps, pins):
    pinned = {(block.name, "rows") for block in pins}
    made = shelf(capacity, pinned)
    tier = made._tier
    for block, nbytes, tick in steps:
        key = (block.name, "rows")
        before = {key for key in pinned if made.part(key)}
        if made.part(key) is None:
            put(made, block, nbytes, tick=float(tick))
        elif key not in pinned:
            made.remove(key)
            assert made.get(key) is None
        held = list(tier.list())
        assert sum(size for _, size in held) == made.used_bytes <= capacity
        assert len(held) == made.parts
        assert before <= {key for key in pinned if made.part(key)}  # I7


def test_what_does_not_fit_beside_pinned_parts_is_not_taken():
    made = shelf(100, {(BLOCKS[0].name, "rows")})
    assert put(made, BLOCKS[0], 60)
    assert not put(made, BLOCKS[1], 41)
    assert put(made, BLOCKS[1], 40)
    assert put(made, BLOCKS[2], 40)
    assert made.part((BLOCKS[1].name, "rows")) is None
    assert made.evictions == 1


def test_a_part_that_cannot_fit_evicts_nothing():
    made = shelf(100, {(BLOCKS[0].name, "rows")})
    assert put(made, BLOCKS[0], 60)
    assert put(made, BLOCKS[1], 30)
    assert not put(made, BLOCKS[2], 41)
    assert made.part((BLOCKS[1].name, "rows")) is not None


def test_a_part_is_put_once():
    made = shelf(100)
    assert put(made, BLOCKS[0], 10)
    with pytest.raises(AssertionError):
        put(made, BLOCKS[0], 10)


def test_siblings_come_latest_first_and_go_with_their_last_part():
    made = shelf(1000)
    siblings = [blocks_of([9, 9, 9, last])[0] for last in range(3)]
    for block in siblings:
        put(made, block, 10)
    assert made.children(siblings[0].parent) == siblings[::-1]
    made.remove((siblings[1].name, "rows"))
    made.remove((siblings[1].name, "rows"))
    assert made.children(siblings[0].parent) == [siblings[2], siblings[0]]
    assert list(made.held(siblings[0].name)) == ["rows"]
    assert list(made.held(siblings[1].name)) == []


def barred(made, name, number=9):
    found = made.barred(Fence(number, name, Reason.BY_HAND, "", 0.0))
    return {next(one for one in (*BLOCKS, *SIBLINGS) if one.name == name) for name, _ in found}


SIBLINGS = blocks_of([*range(8), *range(90, 98)])[2:]


def test_a_fence_bars_what_bears_its_name_and_what_descends_from_it():
    made = shelf(10_000)
    for block in (*BLOCKS, *SIBLINGS):
        put(made, block, 10)
    assert barred(made, BLOCKS[2].name) == set(BLOCKS[2:])
    assert barred(made, BLOCKS[1].name) == {*BLOCKS[1:], *SIBLINGS}
    assert barred(made, BLOCKS[0].parent) == barred(made, None) == {*BLOCKS, *SIBLINGS}
    assert barred(made, b"x" * 32) == set()


def test_a_fence_on_features_bars_who_consumed_them_and_a_number_bars_nobody_who_knew_it():
    made = shelf(10_000)
    for index, block in enumerate(BLOCKS):
        put(made, block, 10, fence=index, features=(b"f" * 32,) if index == 3 else ())
    assert barred(made, b"f" * 32, 6) == set(BLOCKS[3:6])
    assert barred(made, None, 2) == set(BLOCKS[:2])
