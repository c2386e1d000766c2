"""The memory that requests share: taken as bytes come, given back whole, never overdrawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import CapacityError
from surefoot.server.room import Room


def test_a_share_is_taken_to_the_last_byte_and_given_back():
    room = Room(10)
    one, other = room.share(), room.share()
    one.take(6)
    other.take(4)
    with pytest.raises(CapacityError, match="at most 10 bytes of requests at once"):
        other.take(1)
    other.take(0)
    one.close()
    other.take(6)
    with pytest.raises(CapacityError):
        one.take(1)
    one.close()
    other.close()
    room.share().take(10)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 7))))
def test_what_is_held_is_what_was_taken_and_not_given_back(steps):
    room, model = Room(12), [0, 0, 0]
    shares = [room.share() for _ in model]
    for at, nbytes in steps:
        if nbytes < 0:
            shares[at].close()
            model[at] = 0
        elif sum(model) + nbytes <= 12:
            shares[at].take(nbytes)
            model[at] += nbytes
        else:
            with pytest.raises(CapacityError):
                shares[at].take(nbytes)
    left = 12 - sum(model)
    room.share().take(left)
    with pytest.raises(CapacityError):
        room.take(1)
