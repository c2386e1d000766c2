"""One engine thread: fair, cancellable within a unit, idle only when nothing waits.

Every test waits on facts: an event that a unit sets, or the end of a turn. Turns are submitted
before the thread starts where the order of units is what is tested.
"""

import itertools
import threading

import pytest
from scheduler_house import WAIT_S, C, wait_for

from surefoot.errors import CapacityError, EngineError, RequestError
from surefoot.receipt import Finish, Kind
from surefoot.turn import CacheMode, Delta, Done, Failed


def test_a_long_prefill_costs_another_turn_one_block_between_tokens(house):
    one = house()
    short = one.submit(2, tokens=6, seed=1)
    long = one.submit(10 * C, tokens=1, seed=2)
    one.scheduler.start()
    short.end()
    long.end()
    kinds = [kind for kind, _, _ in one.units]
    decodes = [at for at, kind in enumerate(kinds) if kind == "decode"]
    assert len(decodes) >= 5
    between = [b - a - 1 for a, b in itertools.pairwise(decodes)]
    assert max(between) == 1


def test_answers_of_interleaved_turns_are_their_answers_alone(house):
    one = house(running=3)
    wanted = []
    for seed in (1, 2, 3):
        alone = house()
        watch = alone.submit(9, seed=seed)
        alone.scheduler.start()
        watch.end()
        wanted.append("".join(e.text for e in watch.events if isinstance(e, Delta)))
    watches = [one.submit(9, seed=seed) for seed in (1, 2, 3)]
    one.scheduler.start()
    for watch, text in zip(watches, wanted, strict=True):
        watch.end()
        assert "".join(e.text for e in watch.events if isinstance(e, Delta)) == text


def test_a_cancelled_turn_stops_within_one_unit_and_keeps_its_blocks(house):
    one = house()
    inside, go_on = threading.Event(), threading.Event()

    def hold(kind, start, end):
        if start == 2 * C:
            inside.set()
            assert go_on.wait(WAIT_S)

    one.hooks.append(hold)
    watch = one.submit(9 * C)
    one.scheduler.start()
    assert inside.wait(WAIT_S)
    watch.ticket.cancel()
    go_on.set()
    done = watch.end()
    assert done.receipt.finish is Finish.CANCELLED
    assert done.receipt.computed_tokens == 3 * C
    assert done.receipt.unreached_tokens == 6 * C
    assert done.receipt.committed_tokens == 3 * C
    one.hooks.clear()
    again = one.submit(9 * C)
    assert again.end().receipt.restored_tokens == 3 * C


def test_a_turn_cancelled_while_it_waits_never_starts(house):
    one = house()
    watch = one.submit(9)
    watch.ticket.cancel()
    one.scheduler.start()
    assert isinstance(watch.end(), Failed)
    assert one.units == []


def test_idle_work_is_listed_before_the_answer_ends_and_done_when_nothing_waits(house):
    one = house()
    seen = []
    watch = one.submit(0, text="tell me something", seed=5)
    deliver = watch.deliver

    def look(event):
        if isinstance(event, Done):
            seen.append(one.scheduler.status()["idle_work"])
        deliver(event)

    watch.ticket.deliver = look
    one.scheduler.start()
    watch.end()
    assert seen == [1]
    wait_for(one, lambda: one.scheduler.status()["idle_work"] == 0)
    assert [one.kind for one in one.receipts] == [Kind.TURN, Kind.IDLE]
    assert one.receipts[1].committed_tokens > 0


def test_idle_work_yields_to_a_request_at_the_end_of_a_unit(house):
    one = house()
    late = []

    def arrive(kind, start, end):
        if one.scheduler.status()["idle_work"] and not late and kind == "prefill":
            late.append(one.submit(5, seed=8))
            one.arrived_at = len(one.units)

    one.hooks.append(arrive)
    first = one.submit(0, text="a long history " * 3, tokens=12, seed=6)
    one.scheduler.start()
    first.end()
    wait_for(one, lambda: late and not one.scheduler.status()["idle_work"])
    late[0].end()
    assert one.units[one.arrived_at] == ("prefill", 0, C), "the request's first block comes next"
    assert [r.kind for r in one.receipts] == [Kind.TURN, Kind.TURN, Kind.IDLE]


def test_conversations_wait_for_idle_work_with_so_many_bytes_of_pictures_and_no_more(house):
    one = house(running=1, idle_media_bytes=50)
    watches = [
        one.submit(0, text="which?", seed=seed, picture=picture)
        for seed, picture in ((1, b"a" * 40), (2, b"b" * 11), (3, b"c" * 51), (4, None))
    ]
    one.scheduler.start()
    for watch in watches:
        watch.end()
    wait_for(one, lambda: one.scheduler.status()["idle_work"] == 0)
    done = {receipt.id for receipt in one.receipts if receipt.kind is Kind.IDLE}
    # The third alone is too much, and takes those before it along: the oldest leave first.
    assert done == {"idle-4"}


def test_pictures_that_fit_wait_side_by_side(house):
    one = house(running=1, idle_media_bytes=50)
    watches = [
        one.submit(0, text="which?", seed=seed, picture=bytes([65 + seed]) * 25) for seed in (1, 2)
    ]
    one.scheduler.start()
    for watch in watches:
        watch.end()
    wait_for(one, lambda: one.scheduler.status()["idle_work"] == 0)
    done = {receipt.id for receipt in one.receipts if receipt.kind is Kind.IDLE}
    assert done == {"idle-1", "idle-2"}


def test_idle_work_may_read_what_a_turn_that_only_writes_has_stored(house):
    one = house()
    watch = one.submit(0, text="tell me something", seed=5, mode=CacheMode.WRITE)
    one.scheduler.start()
    assert watch.end().receipt.restored_tokens == 0
    wait_for(one, lambda: one.scheduler.status()["idle_work"] == 0)
    assert one.receipts[1].restored_tokens > 0


def test_no_idle_work_for_a_turn_that_may_not_write(house):
    one = house()
    watches = [
        one.submit(0, text="read only", mode=mode) for mode in (CacheMode.READ, CacheMode.BYPASS)
    ]
    one.scheduler.start()
    for watch in watches:
        watch.end()
    assert one.scheduler.status()["idle_work"] == 0
    assert {receipt.kind for receipt in one.receipts} == {Kind.TURN}


def test_a_full_queue_and_a_stopping_scheduler_refuse(house):
    one = house(queued=1)
    one.submit(3)
    with pytest.raises(CapacityError, match="1 requests are waiting"):
        one.submit(3)
    one.scheduler.start()
    assert one.scheduler.stop(WAIT_S)
    with pytest.raises(CapacityError, match="stopping"):
        one.submit(3)


def test_a_refused_request_is_delivered_and_is_no_bug(house):
    one = house()
    one.scheduler.start()
    failed = one.submit(0).end()
    assert isinstance(failed.error, RequestError)
    assert failed.receipt is None
    assert one.bugs == []


@pytest.mark.parametrize("error", [EngineError("out of memory"), ZeroDivisionError("a bug")])
def test_a_turn_that_breaks_is_answered_and_the_next_one_runs(house, error):
    one = house()

    def breaks(kind, start, end):
        if start == C:
            raise error

    one.hooks.append(breaks)
    one.scheduler.start()
    failed = one.submit(3 * C).end()
    assert failed.error is error
    assert failed.receipt.finish is Finish.ERROR
    assert (failed.receipt.computed_tokens, failed.receipt.unreached_tokens) == (C, 2 * C)
    assert one.bugs == [error]
    one.hooks.clear()
    assert one.submit(3 * C).end().receipt.finish is Finish.LENGTH


def test_stopping_lets_running_turns_end_and_cancels_those_that_do_not(house):
    one = house()
    inside, go_on = threading.Event(), threading.Event()

    def hold(kind, start, end):
        if kind == "decode":
            inside.set()
            assert go_on.wait(WAIT_S)

    one.hooks.append(hold)
    watch = one.submit(3, tokens=200)
    one.scheduler.start()
    assert inside.wait(WAIT_S)
    assert not one.scheduler.stop(0.01)
    go_on.set()
    assert watch.end().receipt.finish is Finish.CANCELLED
