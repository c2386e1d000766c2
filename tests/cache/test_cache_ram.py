"""The RAM shelf: sums, capacity, siblings (I6, I7)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.cache.ram import RamShelf
from surefoot.testing.cache_kit import ROWS_ONLY, blocks_of
from surefoot.tiers.ram import RamTier

BLOCKS = blocks_of(range(32))
LAWS = {one.name: one.law for one in ROWS_ONLY}


def shelf(capacity, pinned=frozenset()):
    return RamShelf(RamTier(), capacity=capacity, laws=LAWS, pinned=lambda: pinned)


def put(made, block, nbytes, *, tick=0.0):
    return made.put(block, "rows", bytes(nbytes), content=b"c" * 32, tick=tick)


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
        before = {key for key in pinned if made.content(key)}
        if made.content(key) is None:
            put(made, block, nbytes, tick=float(tick))
        elif key not in pinned:
            made.remove(key)
            assert made.get(key) is None
        held = list(tier.list())
        assert sum(size for _, size in held) == made.used_bytes <= capacity
        assert len(held) == made.parts
        assert before <= {key for key in pinned if made.content(key)}  # I7


def test_what_does_not_fit_beside_pinned_parts_is_not_taken():
    made = shelf(100, {(BLOCKS[0].name, "rows")})
    assert put(made, BLOCKS[0], 60)
    assert not put(made, BLOCKS[1], 41)
    assert put(made, BLOCKS[1], 40)
    assert put(made, BLOCKS[2], 40)
    assert made.content((BLOCKS[1].name, "rows")) is None
    assert made.evictions == 1


def test_a_part_that_cannot_fit_evicts_nothing():
    made = shelf(100, {(BLOCKS[0].name, "rows")})
    assert put(made, BLOCKS[0], 60)
    assert put(made, BLOCKS[1], 30)
    assert not put(made, BLOCKS[2], 41)
    assert made.content((BLOCKS[1].name, "rows")) is not None


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
