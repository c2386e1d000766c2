"""The I/O threads: bounded, in order, left behind when they stall; waits are on events alone."""

import threading
import time
from threading import Event

import pytest

from surefoot.cache import courier
from surefoot.cache.courier import SPARE_THREADS, WRITE_STALL_S, Batch, Job, Lane, ask, finish
from surefoot.errors import TierError
from surefoot.testing.cache_kit import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(clock):
    lanes = []

    def lane(*, threads=1, queue_bytes=100):
        made = Lane("test", threads=threads, queue_bytes=queue_bytes, clock=clock)
        lanes.append(made)
        return made

    yield lane
    for made in lanes:
        made.close()


def test_jobs_of_one_thread_run_in_order(make):
    lane, ran = make(), []
    for index in range(50):
        assert lane.submit(Job(lambda index=index: ran.append(index), 0))
    assert lane.drain(60)
    assert ran == list(range(50))
    assert lane.pending() == 0


def test_the_queue_is_bounded_in_bytes(make):
    lane, go = make(queue_bytes=100), Event()
    assert lane.submit(Job(lambda: go.wait(), 500))  # alone, whatever its size
    assert not lane.submit(Job(lambda: None, 1))
    assert lane.submit(Job(lambda: None, 0))  # deletions are always taken
    go.set()
    assert lane.drain(60)
    go.clear()
    assert lane.submit(Job(lambda: go.wait(), 60))
    assert lane.submit(Job(lambda: None, 40))
    assert not lane.submit(Job(lambda: None, 1))
    go.set()
    assert lane.drain(60)


def test_no_more_threads_run_than_were_asked_for(make):
    lane, go = make(threads=3), Event()
    started = threading.Semaphore(0)

    def wait():
        started.release()
        go.wait()

    for _ in range(10):
        assert lane.submit(Job(wait, 0))
    for _ in range(3):
        assert started.acquire(timeout=10)
    assert not started.acquire(blocking=False)
    assert len(lane._live) == 3
    go.set()
    assert lane.drain(60)


def test_a_thread_left_behind_is_replaced_and_leaves_when_it_returns(make):
    lane, go, held = make(), Event(), Event()

    def stall():
        held.set()
        go.wait()

    job = Job(stall, 0)
    lane.submit(job)
    assert held.wait(10)
    assert lane.leave_behind([job]) == 1
    assert (lane.stalled, lane.stalls) == (1, 1)
    done = Event()
    assert lane.submit(Job(done.set, 0))
    assert done.wait(10)
    assert not lane.drain(0)  # what is left behind is pending still
    go.set()
    assert lane.drain(60)
    assert (lane.stalled, lane.stalls) == (0, 1)
    with lane._changed:
        assert lane._changed.wait_for(lambda: len(lane._live) <= 1, 10)


def test_a_lane_whose_every_spare_is_stalled_takes_nothing(make):
    lane, go = make(), Event()
    for _ in range(1 + SPARE_THREADS):
        held = Event()

        def stall(held=held):
            held.set()
            go.wait()

        job = Job(stall, 0)
        assert lane.submit(job)
        assert held.wait(10)
        lane.leave_behind([job])
    assert lane.stuck
    assert not lane.submit(Job(lambda: None, 0))
    assert len(lane._live) == 1 + SPARE_THREADS
    go.set()
    assert lane.drain(60)
    assert not lane.stuck
    done = Event()
    assert lane.submit(Job(done.set, 0))
    assert done.wait(10)


def test_replacements_are_bounded_however_many_threads_a_lane_has(make):
    lane, go = make(threads=3), Event()
    for _ in range(3 + SPARE_THREADS):
        held = Event()

        def stall(held=held):
            held.set()
            go.wait()

        jobs = [Job(stall, 0), *(Job(lambda: None, 0) for _ in range(3))]
        assert all(lane.submit(job) for job in jobs)
        assert held.wait(10)
        lane.leave_behind(jobs)
        assert len(lane._live) <= 3 + SPARE_THREADS
    assert lane.stuck
    go.set()
    assert lane.drain(60)


def test_a_write_that_takes_too_long_is_left_behind_when_the_next_comes(make, clock):
    lane, go, held = make(), Event(), Event()

    def stall():
        held.set()
        go.wait()

    lane.submit(Job(stall, 0))
    assert held.wait(10)
    clock.pass_(WRITE_STALL_S)
    lane.submit(Job(lambda: None, 0))
    assert lane.stalls == 0
    clock.pass_(1)
    done = Event()
    lane.submit(Job(done.set, 0))
    assert done.wait(10)
    assert lane.stalls == 1
    go.set()


def test_jobs_that_did_not_start_are_dropped_when_left_behind(make):
    lane, go, held = make(), Event(), Event()

    def stall():
        held.set()
        go.wait()

    ran = []
    jobs = [Job(stall, 0), Job(lambda: ran.append(1), 0)]
    for job in jobs:
        lane.submit(job)
    assert held.wait(10)
    assert lane.leave_behind(jobs[1:]) == 0
    go.set()
    assert lane.drain(60)
    assert not ran


def test_closing_finishes_the_running_job_and_drops_the_queue(make):
    lane, held, go = make(), Event(), Event()
    ran = []

    def running():
        held.set()
        go.wait()
        ran.append("running")

    lane.submit(Job(running, 0))
    assert held.wait(10)
    lane.submit(Job(lambda: ran.append("queued"), 0))
    closer = threading.Thread(target=lane.close)
    closer.start()
    with lane._changed:
        assert lane._changed.wait_for(lambda: lane._closed, 10)
    go.set()
    closer.join(10)
    assert ran == ["running"]
    assert not lane.submit(Job(lambda: None, 0))
    assert not lane._live


def test_a_bug_reaches_whoever_asks_next(make):
    lane = make()

    def bug():
        raise ZeroDivisionError

    lane.submit(Job(bug, 0))
    with pytest.raises(ZeroDivisionError):
        lane.drain(60)
    assert lane.drain(60)


def test_a_batch_returns_results_and_faults_and_discards_what_is_late(make):
    lane, go = make(threads=3), Event()
    batch = Batch(lane, time.monotonic)

    def fail():
        raise TierError("no")

    def stall():
        go.wait()
        return "late"

    assert batch.submit("good", lambda: 1)
    assert batch.submit("bad", fail)
    assert batch.submit("late", stall)
    while lane._queue or len(lane._running) > 1:  # until the two that end have ended
        time.sleep(0)
    results = batch.wait(time.monotonic() + 0.05)
    assert results["good"] == 1
    assert isinstance(results["bad"], TierError)
    assert "late" not in results
    assert batch.stalled == 1
    go.set()
    assert lane.drain(60)
    assert "late" not in results


def test_a_batch_waits_in_real_time_though_the_clock_stands_still(make, clock):
    lane, go = make(), Event()
    batch = Batch(lane, clock)
    batch.submit("late", lambda: go.wait() or 1)
    assert batch.wait(clock() + 0.02) == {}
    go.set()


def test_what_arrives_after_its_deadline_by_the_clock_is_late_though_it_came(make, clock):
    lane = make()
    batch, deadline = Batch(lane, clock), clock() + 1
    batch.submit("at the deadline", lambda: clock.pass_(1) or 1)
    batch.submit("after it", lambda: clock.pass_(0.5) or 2)
    assert lane.drain(60)
    assert batch.wait(deadline) == {"at the deadline": 1}
    assert (batch.stalled, lane.stalled) == (0, 0)


def test_a_bug_in_a_read_is_raised_where_it_is_waited_for_and_once(make):
    lane, go, held = make(threads=2), Event(), Event()
    batch = Batch(lane, time.monotonic)
    batch.submit("held", lambda: held.set() or go.wait())
    assert held.wait(10)
    batch.submit("bug", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        batch.wait(time.monotonic() + 10)
    assert batch.stalled == 1  # the other read is nobody's any more
    go.set()
    assert lane.drain(60)


@pytest.mark.parametrize("answer", [7, None, False, ()])
def test_a_question_is_answered_whatever_the_answer(make, clock, answer):
    assert ask(make(), clock, lambda: answer, deadline=clock() + 10) == answer


def test_a_fault_of_a_question_is_its_answer(make, clock):
    fault = TierError("the index is damaged")

    def fail():
        raise fault

    assert ask(make(), clock, fail, deadline=clock() + 10) is fault


def test_a_question_without_an_answer_is_left_behind_and_its_late_answer_goes_nowhere(make):
    lane, go, late = make(), Event(), []

    def stall():
        go.wait()
        late.append("late")
        return late

    answer = None
    while not lane.stalled:  # one that did not even start was dropped
        answer = ask(lane, time.monotonic, stall, deadline=time.monotonic() + 0.02)
    assert isinstance(answer, TierError)
    assert "did not answer in time" in str(answer)
    assert (lane.stalled, lane.stalls) == (1, 1)
    assert ask(lane, time.monotonic, lambda: "next", deadline=time.monotonic() + 10) == "next"
    assert late == []
    go.set()
    assert lane.drain(60)
    assert (lane.stalled, lane.stalls, late) == (0, 1, ["late"])
    assert ask(lane, time.monotonic, lambda: "again", deadline=time.monotonic() + 10) == "again"


def test_a_question_that_no_thread_can_take_is_refused_at_once(make, clock):
    lane, go = make(), Event()
    while not lane.stuck:
        ask(lane, time.monotonic, go.wait, deadline=time.monotonic() + 0.01)
    asked = []
    answer = ask(lane, clock, lambda: asked.append(1), deadline=clock() + 1e9)
    assert isinstance(answer, TierError)
    assert "no I/O thread is free" in str(answer)
    go.set()
    assert lane.drain(60)
    assert asked == []


def test_a_question_whose_deadline_has_passed_does_not_wait(make, clock):
    lane, go = make(), Event()
    answer = ask(lane, clock, go.wait, deadline=clock() - 600)
    assert isinstance(answer, TierError)
    go.set()


def test_a_bug_in_a_question_is_raised_where_it_was_asked_and_only_there(make, clock):
    lane = make()
    with pytest.raises(ZeroDivisionError):
        ask(lane, clock, lambda: 1 // 0, deadline=clock() + 10)
    assert lane.drain(60)
    assert lane.stalls == 0


def test_a_bug_in_a_question_that_nobody_waits_for_reaches_the_next_who_asks(make, clock):
    lane, go = make(), Event()

    def stall():
        go.wait()
        return 1 // 0

    while not lane.stalled:
        ask(lane, time.monotonic, stall, deadline=time.monotonic() + 0.01)
    go.set()
    with pytest.raises(ZeroDivisionError):
        lane.drain(60)


def test_the_last_work_is_waited_for_and_its_bug_raised():
    done = []
    assert finish(lambda: done.append(threading.current_thread().name))
    assert done == ["surefoot-finish"]
    with pytest.raises(ZeroDivisionError):
        finish(lambda: 1 // 0)


def test_last_work_that_stalls_is_left_behind(monkeypatch):
    monkeypatch.setattr(courier, "JOIN_S", 0.02)
    go, ended = Event(), Event()
    assert not finish(lambda: (go.wait(), ended.set()))
    go.set()
    assert ended.wait(10)
