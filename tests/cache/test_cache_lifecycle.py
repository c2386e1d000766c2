"""The table of a part's life, walked, and what a process holds in hand (I7, I8)."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.cache.lifecycle import LIFE, Event, Holds, State, after
from surefoot.record import Header
from surefoot.testing.cache_kit import blocks_of

KEY = (b"n" * 32, "rows")
(BLOCK,) = blocks_of([1, 2, 3, 4])
QUEUED = Header(BLOCK, "rows", b"c" * 32, ())
QUEUED_KEY = (BLOCK.name, "rows")


def test_events_that_cannot_happen_are_bugs():
    for state, event in product(State, Event):
        if (state, event) in LIFE:
            assert after(state, event) is LIFE[state, event]
        else:
            with pytest.raises(AssertionError):
                after(state, event)


def test_nothing_but_verified_storage_is_ever_pinned():
    assert [state for state in State if (state, Event.PIN) in LIFE] == [State.STORED, State.PINNED]


@given(st.lists(st.sampled_from(["pin", "unpin", "fail", "evict"]), max_size=12))
def test_holds_walks_the_table(events):
    holds, pins, state = Holds(), 0, State.STORED
    for event in events:
        if state is State.ABSENT:
            break
        if event == "pin" and state is not State.FENCED:
            holds.pin([KEY])
            pins, state = pins + 1, after(state, Event.PIN)
        elif event == "unpin" and pins:
            pins -= 1
            state = after(state, Event.UNPIN if pins else Event.LAST_UNPIN)
            assert holds.unpin([KEY]) == ([KEY] if state is State.ABSENT else [])
        elif event == "fail":
            free = holds.fence([KEY])
            state = after(state, Event.FAIL)
            assert free == ([KEY] if state is State.ABSENT else [])
        elif event == "evict" and state is not State.FENCED:
            claimed = holds.claim(KEY)
            state = after(state, Event.EVICT)
            assert claimed is (state is State.ABSENT)
        assert holds.pinned(KEY) is (pins > 0)
        assert holds.fenced(KEY) is (state is State.FENCED)


def test_a_queued_part_is_not_claimed_before_it_is_written():
    holds = Holds()
    holds.queue(QUEUED)
    assert not holds.claim(QUEUED_KEY)
    assert holds.pending() == {QUEUED_KEY: QUEUED}
    holds.written(QUEUED_KEY)
    assert holds.claim(QUEUED_KEY)
    assert holds.barred() == (frozenset(), {QUEUED_KEY})
    holds.gone(QUEUED_KEY)
    assert holds.barred() == (frozenset(), frozenset())


def test_letting_go_of_what_is_not_held_is_a_bug():
    with pytest.raises(AssertionError):
        Holds().unpin([KEY])
