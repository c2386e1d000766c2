"""Places and memory that requests share: never overdrawn, never all one client's, and never kept by
a body that dribbles.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import CapacityError
from surefoot.server import Limits
from surefoot.server.limits import MIB
from surefoot.server.refusals import TooManyAtOnce
from surefoot.server.room import SLOW_S, Room

LIMITS = Limits(requests=6, client_requests=3)
ROOM, EACH = LIMITS.room_bytes, LIMITS.client_bytes


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def room(limits=LIMITS):
    clock = Clock()
    return Room(limits, clock), clock


def arriving(share):
    """A body that is awaited; returns the list of its dismissals."""
    calls = []
    share.arriving, share.on_dismiss = True, lambda: calls.append(1)
    return calls


def test_a_share_is_taken_to_the_last_byte_and_given_back():
    one_room, _ = room()
    one, other = one_room.enter(None), one_room.enter(None)
    one.take(ROOM - 4)
    other.take(4)
    with pytest.raises(CapacityError, match=f"at most {ROOM} bytes of requests at once"):
        other.take(1)
    other.take(0)
    one.close()
    other.take(ROOM - 4)
    with pytest.raises(CapacityError):
        one_room.enter(None).take(1)
    other.close()
    one_room.enter(None).take(ROOM)


def test_places_are_given_to_the_last_and_given_back_once():
    one_room, _ = room()
    shares = [one_room.enter(None) for _ in range(6)]
    with pytest.raises(CapacityError, match="at most 6 requests at once") as caught:
        one_room.enter("new")
    assert not isinstance(caught.value, TooManyAtOnce)
    one_room.enter(None, watching=True)  # and takes no place from anybody
    for _ in range(2):
        shares[0].close()
    one_room.enter(None)
    with pytest.raises(CapacityError):
        one_room.enter(None)


def test_one_client_has_a_part_of_the_places_and_the_others_the_rest():
    one_room, _ = room()
    mine = [one_room.enter("greedy") for _ in range(3)]
    with pytest.raises(TooManyAtOnce, match="3 requests of this client"):
        one_room.enter("greedy")
    for _ in range(3):
        one_room.enter("modest")
    mine[1].close()
    one_room.enter("greedy")


def test_one_client_has_a_part_of_the_bytes_and_the_others_the_rest():
    one_room, _ = room()
    first, second = one_room.enter("greedy"), one_room.enter("greedy")
    first.take(EACH - 1)
    second.take(1)
    with pytest.raises(TooManyAtOnce, match=f"at most {EACH} bytes"):
        second.take(1)
    one_room.enter("modest").take(ROOM - EACH)
    first.close()
    second.take(EACH - 1)


def test_a_client_that_is_not_told_apart_may_have_everything():
    one_room, _ = room()
    for _ in range(6):
        last = one_room.enter(None)
    last.take(ROOM)


def test_where_room_is_needed_the_slowest_body_gives_way_and_no_other():
    one_room, clock = room()
    dribbling, coming, whole = (one_room.enter(None) for _ in range(3))
    dismissed = [arriving(dribbling), arriving(coming)]
    whole.take(ROOM - 5 * MIB)
    dribbling.take(2 * MIB)
    coming.take(2 * MIB)
    clock.now += SLOW_S
    coming.take(MIB)  # a whole MiB since, so it is as fast as at its beginning
    dribbling.take(0)
    newcomer = one_room.enter(None)
    newcomer.take(2 * MIB)
    assert dismissed == [[1], []]
    assert dribbling.dismissed
    with pytest.raises(CapacityError):
        newcomer.take(1)  # nobody is slow who is still there
    clock.now += SLOW_S
    newcomer.take(1)
    assert dismissed == [[1], [1]]
    clock.now += 1000 * SLOW_S
    with pytest.raises(CapacityError):
        newcomer.take(4 * MIB)  # nobody gives way who is whole
    assert not whole.dismissed


def test_bytes_that_trickle_do_not_make_a_body_fast():
    one_room, clock = room()
    trickling = one_room.enter(None)
    dismissed = arriving(trickling)
    trickling.take(ROOM - MIB)
    for _ in range(20):
        clock.now += SLOW_S / 10
        trickling.take(100)
    one_room.enter(None).take(MIB)
    assert dismissed == [1]


def test_where_a_place_is_needed_the_slowest_body_gives_way():
    one_room, clock = room()
    shares = [one_room.enter(None) for _ in range(6)]
    dismissed = arriving(shares[4])
    with pytest.raises(CapacityError):
        one_room.enter(None)
    clock.now += SLOW_S
    one_room.enter(None)
    assert dismissed == [1]
    shares[4].close()  # its place is another's by now
    with pytest.raises(CapacityError):
        one_room.enter(None)


def test_nobody_gives_way_to_itself():
    one_room, clock = room()
    one = one_room.enter(None)
    dismissed = arriving(one)
    one.take(ROOM)
    clock.now += 10 * SLOW_S
    with pytest.raises(CapacityError):
        one.take(1)
    assert dismissed == []


def test_a_client_that_left_is_forgotten():
    one_room, _ = room()
    for number in range(1000):
        share = one_room.enter(f"client {number}")
        share.take(1)
        share.close()
    assert not one_room._places
    assert not one_room._bytes


STEP = st.tuples(st.integers(0, 7), st.sampled_from(["enter", "take", "close", "arrive", "wait"]))


@given(st.lists(st.tuples(STEP, st.integers(1, 9)), max_size=60))
def test_whatever_happens_nothing_is_overdrawn(steps):
    one_room, clock = room()
    held = {}  # share -> bytes, as a plain account

    for (at, verb), amount in steps:
        shares = list(held)
        share = shares[at % len(shares)] if shares else None
        places, nbytes = Counter(), Counter()
        for one, count in held.items():
            places[one.client] += 1
            nbytes[one.client] += count
        try:
            if verb == "enter":
                client = (None, "a", "b")[amount % 3]
                held[one_room.enter(client)] = 0
                assert client is None or places[client] < 3
            elif share is None:
                continue
            elif verb == "take":
                size = amount * 20 * MIB
                share.take(size)
                held[share] += size
            elif verb == "close":
                share.close()
                del held[share]
            elif verb == "arrive":
                arriving(share)
            else:
                clock.now += amount / 3
        except TooManyAtOnce:
            mine = client if verb == "enter" else share.client
            assert places[mine] >= 3 if verb == "enter" else nbytes[mine] + size > EACH
        except CapacityError:
            live = [one for one in held if not one.dismissed]
            full = len(live) >= 6 if verb == "enter" else sum(held.values()) + size > ROOM
            assert full
        held = {one: count for one, count in held.items() if not one.dismissed}
        assert sum(held.values()) <= ROOM
        assert len(held) <= 6
        for client in ("a", "b"):
            mine = [count for one, count in held.items() if one.client == client]
            assert len(mine) <= 3
            assert sum(mine) <= EACH
    for one in held:
        one.close()
    one_room.enter(None).take(ROOM)
