"""What sequences hold is bounded; who waits for memory is served in the order in which it asked.

The fake engine counts open runs, so that a turn that was not let in is seen not to have begun.
"""

import threading

import pytest
from scheduler_house import WAIT_S, C, wait_for

from surefoot.receipt import Finish, Kind
from surefoot.state import state_bytes
from surefoot.testing.fake_chat import image_item
from surefoot.testing.fake_engine import FEATURES, GROUPS, KEEP, FakeEngine
from surefoot.turn import Failed, Needs

SMALL = 3 * C  # tokens of a prompt
SHORT = 6  # tokens of an answer; 18 in all is a size that a buffer can have
# Of a small turn: 8 bytes a row, and a row a token with buffers that fit.
NEED = 8 * (SMALL + SHORT + KEEP + C + 1)


@pytest.fixture(autouse=True)
def exact_buffers(monkeypatch):
    """Let a need follow the tokens closely: the fake's sequences are far shorter than a step."""
    monkeypatch.setattr("surefoot.state.STEP_ROWS", 1)


class Held:
    """Stops the engine thread at the first decoded token, until let go."""

    def __init__(self, one):
        self.inside, self.go_on = threading.Event(), threading.Event()
        one.hooks.append(self)

    def __call__(self, kind, start, end):
        if not self.go_on.is_set() and kind == "decode":
            self.inside.set()
            assert self.go_on.wait(WAIT_S)


def most_at_once(one):
    """Watch how much turns may hold, and how many runs are open, at every unit."""
    seen = []
    one.hooks.append(
        lambda *unit: seen.append((one.scheduler.status()["live_bytes"], one.engine.open_runs))
    )
    return seen


def test_turns_that_fit_side_by_side_run_side_by_side_and_no_more(house):
    one = house(running=8, queued=8, live_bytes=2 * NEED + NEED // 2)
    seen = most_at_once(one)
    watches = [one.submit(SMALL, tokens=SHORT, seed=seed) for seed in range(1, 7)]
    one.scheduler.start()
    for watch in watches:
        assert watch.end().receipt.finish is Finish.LENGTH
    assert max(nbytes for nbytes, _ in seen) == 2 * NEED
    assert max(runs for _, runs in seen) == 2
    assert one.scheduler.status()["live_bytes"] == 0


def test_a_turn_alone_runs_however_large_and_others_wait_for_its_end(house):
    one = house(live_bytes=NEED)
    seen = most_at_once(one)
    large = one.submit(20 * C, tokens=SHORT, seed=1)
    small = one.submit(SMALL, tokens=SHORT, seed=2)
    one.scheduler.start()
    assert large.end().receipt.finish is Finish.LENGTH
    assert small.end().receipt.finish is Finish.LENGTH
    assert max(runs for _, runs in seen) == 1
    assert max(nbytes for nbytes, _ in seen) > 3 * NEED


def test_a_large_turn_that_waits_is_not_overtaken_by_small_ones(house):
    one = house(running=8, queued=8, live_bytes=2 * NEED)
    ended = []
    watches = [
        one.submit(n, tokens=SHORT, seed=seed)
        for seed, n in ((1, SMALL), (2, 30 * C), (3, SMALL), (4, SMALL))
    ]
    one.scheduler._on_receipt = lambda receipt: ended.append(receipt.id)
    one.scheduler.start()
    for watch in watches:
        watch.end()
    # The third and fourth would have fitted beside the first.
    assert ended == ["1", "2", "3", "4"]


def test_waiting_is_queue_time_in_the_receipt_and_shows_in_the_status(house):
    one = house(live_bytes=NEED)
    held = Held(one)
    first = one.submit(SMALL, tokens=SHORT, seed=1)
    second = one.submit(SMALL, tokens=SHORT, seed=2)
    one.scheduler.start()
    assert held.inside.wait(WAIT_S)
    status = one.scheduler.status()
    assert (status["running"], status["waiting"], status["live_bytes"]) == (1, 1, NEED)
    one.now += 100.0
    held.go_on.set()
    waited, let_in = second.end().receipt.timings_ms, first.end().receipt.timings_ms
    assert 100_000 <= waited.queue < 101_000
    assert waited.ttft > waited.queue
    assert let_in.queue < 1_000


def test_a_turn_cancelled_while_it_waits_for_memory_ends_before_there_is_room(house):
    one = house(live_bytes=NEED)
    held = Held(one)
    first = one.submit(SMALL, tokens=SHORT, seed=1)
    second = one.submit(SMALL, tokens=SHORT, seed=2)
    order = []
    for watch in (first, second):
        one_deliver = watch.ticket.deliver
        watch.ticket.deliver = lambda event, to=one_deliver: (order.append(to), to(event))
    one.scheduler.start()
    assert held.inside.wait(WAIT_S)
    second.ticket.cancel()
    held.go_on.set()
    receipt = second.end().receipt
    assert receipt.finish is Finish.CANCELLED
    assert (receipt.computed_tokens, receipt.unreached_tokens) == (0, SMALL)
    assert first.end().receipt.finish is Finish.LENGTH
    assert order[0] == first.deliver
    assert order[-1] == first.deliver, "the cancelled one did not wait for the first one's end"
    assert one.scheduler.status()["waiting"] == 0


def test_a_turn_cancelled_in_the_queue_ends_before_a_place_is_free(house):
    one = house(running=1)
    held = Held(one)
    first = one.submit(SMALL, tokens=SHORT, seed=1)
    second = one.submit(SMALL, tokens=SHORT, seed=2)
    one.scheduler.start()
    assert held.inside.wait(WAIT_S)
    second.ticket.cancel()
    ended = []
    first.ticket.deliver = lambda event: (ended.append(second.ended.is_set()), first.deliver(event))
    held.go_on.set()
    assert isinstance(second.end(), Failed)
    first.end()
    assert ended[-1]


def test_turns_that_wait_for_memory_hold_a_place_among_the_running(house):
    one = house(running=2, queued=8, live_bytes=NEED)
    held = Held(one)
    watches = [one.submit(SMALL, tokens=SHORT, seed=seed) for seed in (1, 2, 3)]
    one.scheduler.start()
    assert held.inside.wait(WAIT_S)
    status = one.scheduler.status()
    assert (status["running"], status["waiting"], status["queued"]) == (1, 1, 1)
    held.go_on.set()
    for watch in watches:
        watch.end()


def test_stopping_cancels_those_that_wait_for_memory(house):
    one = house(live_bytes=NEED)
    held = Held(one)
    first = one.submit(SMALL, tokens=200, seed=1)
    second = one.submit(SMALL, tokens=SHORT, seed=2)
    one.scheduler.start()
    assert held.inside.wait(WAIT_S)
    assert not one.scheduler.stop(0.01)
    held.go_on.set()
    for watch in (first, second):
        assert watch.end().receipt.finish is Finish.CANCELLED


def test_idle_work_gives_back_what_it_holds_when_a_turn_wants_it(house):
    one = house(live_bytes=state_bytes(GROUPS, 64, C))
    seen = most_at_once(one)
    late = []

    def arrive(kind, start, end):
        if one.scheduler.status()["idle_work"] and not late and kind == "prefill":
            late.append(one.submit(SMALL, tokens=SHORT, seed=8))

    one.hooks.append(arrive)
    first = one.submit(0, text="a long history " * 2, tokens=12, seed=6)
    one.scheduler.start()
    first.end()
    wait_for(one, lambda: late and not one.scheduler.status()["idle_work"])
    assert late[0].end().receipt.timings_ms.queue < 1_000
    assert max(runs for _, runs in seen) == 1
    assert [one.kind for one in one.receipts] == [Kind.TURN, Kind.TURN, Kind.IDLE]
    assert one.scheduler.status()["live_bytes"] == 0


def test_idle_work_larger_than_the_bound_is_left_alone(house):
    one = house(live_bytes=NEED)
    first = one.submit(0, text="a long history " * 9, tokens=12, seed=6)
    one.scheduler.start()
    assert first.end().receipt.finish is Finish.LENGTH
    wait_for(one, lambda: not one.scheduler.status()["idle_work"])
    assert [one.kind for one in one.receipts] == [Kind.TURN]
    assert one.scheduler.status()["live_bytes"] == 0


def test_a_need_counts_state_and_the_features_of_each_picture_once():
    engine = FakeEngine(block_tokens=C)
    item, other = image_item(b"abc"), image_item(b"bcd")
    bare = Needs.of(engine, 40).nbytes
    assert bare == state_bytes(GROUPS, 40, C)
    assert Needs.of(engine, SMALL + SHORT).nbytes == NEED
    shown = FEATURES.feature_bytes(item.tokens) + FEATURES.feature_bytes(other.tokens)
    assert Needs.of(engine, 40, (item, other, item)).nbytes == bare + shown
    assert Needs.of(FakeEngine(block_tokens=C, features=None), 40, (item,)).nbytes == bare
