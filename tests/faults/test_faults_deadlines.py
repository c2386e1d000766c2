"""Every wait for a medium has an end, and what comes after the end touches nothing (I10).

Reads, writes and the index are held by events, never by time; what is asked is what a turn, a
sequence, the RAM tier and the counters show meanwhile, and after the medium has answered.
"""

import threading
from threading import Event

import pytest

from surefoot.cache import courier, quarantine
from surefoot.cache.courier import SPARE_THREADS
from surefoot.cache.inventory import Inventory
from surefoot.receipt import Miss
from surefoot.testing import script
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.fake_engine import FakeEngine
from surefoot.testing.faulty import FEATURES, PARTS, Schedule
from surefoot.testing.script import (
    AMPLE,
    BEGUN_S,
    FLOOR_S,
    RECORDS,
    WAIT_S,
    House,
    Subject,
    crowd_of,
    play,
)
from surefoot.turn import CacheMode

BLOCK = 16
((LABEL, TALK),) = crowd_of(1)
IO_THREADS = 2
# More than there are threads to stall: on a busy machine one may not have begun by a deadline.
CROWD = crowd_of(IO_THREADS + SPARE_THREADS + 3)


def subject():
    return Subject(FakeEngine(block_tokens=BLOCK), FakeChat(), (b"\x03first", b"\x05second"))


@pytest.fixture
def cold():
    house = House(subject(), None, mode=CacheMode.BYPASS)
    yield house
    house.close()


@pytest.fixture
def build(tmp_path):
    made = []

    def house(**settings):
        made.append(House(subject(), tmp_path / "store", **({"floor_s": FLOOR_S} | settings)))
        return made[-1]

    yield house
    for one in made:
        one.lift()
        one.check_later_plans()
        one.close()


def records(house):
    return next(one for one in reversed(house.tiers) if one._root.name == RECORDS)


def in_ram(house):
    tiers = house.cache._ram._tier, house.cache._features._ram._tier
    return [dict(tier._values) for tier in tiers]


def state(run):
    return run._rows[:], run._window[:], run._snapshot, run._position


def at_first_fed_token(house, act):
    """Run ``act`` on the engine thread, in the middle of a turn, when its prompt is computed."""
    done = []

    def look(units):
        run = house.engine.run
        if not done and run and run.position >= len(run._run._prompt):
            done.append(act(run._run))

    house.engine.on_unit = look
    return done


@pytest.mark.parametrize(
    ("keys", "picture"), [(PARTS, False), (FEATURES, True)], ids=["parts", "features"]
)
def test_what_comes_after_the_deadline_reaches_no_sequence_and_no_tier(build, cold, keys, picture):
    house = build(ram_bytes=AMPLE, floor_s=BEGUN_S)
    talk = pictured(house) if picture else TALK
    expected = cold.ask(LABEL, talk)
    house.ask(LABEL, talk)
    house.restart()
    house._mode = CacheMode.READ  # so that nothing is put into RAM but what a read brings
    tier, lane = records(house), house.cache._lanes.reads
    tier.schedule = Schedule.read(f"get[{keys}] stalled")
    if picture:
        tier.schedule = Schedule.read(f"get[{PARTS}] broken; get[{keys}] stalled")
    held = []

    def release(run):
        held.append((lane.stalled, in_ram(house), state(run)))
        tier.release.set()
        assert lane.drain(WAIT_S)
        assert in_ram(house) == held[0][1] == [{}, {}]
        assert state(run) == held[0][2]

    assert lane.stalled == 0
    released = at_first_fed_token(house, release)
    answer = house.ask(LABEL, talk)
    assert released
    assert held[0][0] > 0
    assert answer.bits == expected.bits
    assert in_ram(house) == [{}, {}]
    assert lane.stalled == 0
    if not picture:
        assert (answer.receipt.miss_reason, answer.receipt.restored_tokens) == (Miss.DEADLINE, 0)


def pictured(house):
    image = script.Image(house.subject.pictures[0], "here")
    return (TALK[0], script.Message(role=script.Role.USER, content=("Look: ", image, " What?")))


@pytest.mark.parametrize(
    "kind", ["short", "flipped@700", "swapped", "broken", "evicted", "vanished", "slow", "stalled"]
)
def test_a_failed_restore_leaves_the_sequence_untouched(build, cold, kind):
    cold.ask(LABEL, TALK)
    units = [unit for unit in cold.subject.engine.computed if unit[0] < unit[1]]
    house = build(floor_s=FLOOR_S if kind == "stalled" else WAIT_S)
    house.ask(LABEL, TALK)
    house.restart()
    house.subject.engine.computed.clear()
    house.engine.installed.clear()
    records(house).schedule = Schedule.read(f"get[{PARTS}] {kind}")
    answer = house._submit(LABEL, TALK, None).answer()
    assert answer.receipt.restored_tokens == 0
    assert house.engine.installed == []
    assert house.subject.engine.computed[: len(units)] == units  # the very calls of a cold turn
    house.settle()


def test_a_restore_that_fails_in_part_stands_once_on_what_arrived(build, cold):
    expected = cold.ask(LABEL, TALK)
    house = build(floor_s=WAIT_S)
    house.ask(LABEL, TALK)
    house.restart()
    house.engine.installed.clear()
    fourth = house.blocks(LABEL)[3].name.hex()
    records(house).schedule = Schedule.read(f"get[{fourth}] broken")
    answer = house._submit(LABEL, TALK, None).answer()
    assert answer.bits == expected.bits
    assert house.engine.installed == [3 * BLOCK]
    assert (answer.receipt.miss_reason, answer.receipt.restored_tokens) == (
        Miss.TIER_ERROR,
        3 * BLOCK,
    )
    house.settle()


def test_stalled_threads_are_counted_left_behind_replaced_and_back_when_released(build, cold):
    expected = [cold.ask(label, talk).bits for label, talk in CROWD]
    house = build()
    for label, talk in CROWD:
        house.ask(label, talk)
    house.restart()
    lane, tier = house.cache._lanes.reads, records(house)
    tier.schedule = Schedule.read(f"get[{PARTS}] stalled")
    misses = []
    for (label, talk), bits in zip(CROWD, expected, strict=True):
        answer = house._submit(label, talk, None).answer()
        assert answer.bits == bits
        misses.append(answer.receipt.miss_reason)
        assert lane.stalled == lane.stalls <= IO_THREADS + SPARE_THREADS
        assert len(lane._live) <= IO_THREADS + SPARE_THREADS
        house.clock.pass_(WAIT_S)  # the tier was left alone for a while; it is tried again
    assert misses[0] is Miss.DEADLINE
    assert misses[-1] in (Miss.BUSY, Miss.TIER_ERROR)
    assert house.figures()["stalls"] >= lane.stalls == IO_THREADS + SPARE_THREADS
    house.lift()
    assert lane.stalled == 0
    with lane._changed:
        assert lane._changed.wait_for(lambda: len(lane._live) <= IO_THREADS, WAIT_S)
    label, talk = crowd_of(6)[5]
    assert house.ask(label, talk).receipt.sources.keys() == {"ssd"}


def test_a_write_that_stalls_for_ten_minutes_holds_up_nothing(build, cold, monkeypatch):
    monkeypatch.setattr(courier, "JOIN_S", 0.1)
    queue_bytes = 20_000
    house = build(ram_bytes=AMPLE, queue_bytes=queue_bytes)
    records(house).schedule = Schedule.read("put stalled")
    lane = house.cache._lanes.writes
    for label, talk in crowd_of(9):
        expected = cold.ask(label, talk).bits
        for _ in range(2):
            watch = house._submit(label, talk, None)
            assert watch.answer().bits == expected
            assert lane._waiting_bytes <= queue_bytes  # what waits is bounded
            assert lane.stalled <= 1 + SPARE_THREADS  # and so is what is left behind
    assert house.halted.is_set()
    assert house.figures()["unqueued_writes"] > 0
    assert house.figures()["stalls"] > 0
    assert not house.cache.drain(0.01)
    closing = threading.Thread(target=house.close)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    # What was written late, into a store that is closed, is whole or is not there.
    for tier in house.tiers:
        tier.lift()
    assert lane.drain(WAIT_S)
    house.schedules = {}
    house.open()
    for label, talk in crowd_of(9):
        assert house.ask(label, talk).bits == cold.ask(label, talk).bits


class HeldConnection:
    """A connection of the inventory whose reads wait for an event, and say which thread waits."""

    def __init__(self, connection, answers, threads):
        self._connection = connection
        self._answers = answers
        self._threads = threads

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, *arguments):
        self._threads.append(threading.current_thread().name)
        assert self._answers.wait(WAIT_S)
        return self._connection.execute(*arguments)


def test_an_index_that_does_not_answer_holds_up_no_turn_and_no_status(build, cold, monkeypatch):
    monkeypatch.setattr(quarantine, "LOOK_S", FLOOR_S)
    expected = cold.ask(LABEL, pictured(cold)).bits
    house = build(ram_bytes=AMPLE)
    answers, threads = Event(), []
    inventory = house.cache._ssd.inventory
    inventory._reader = HeldConnection(inventory._reader, answers, threads)
    for _ in range(3):
        answer = house._submit(LABEL, pictured(house), None).answer()
        assert answer.bits == expected
    assert answer.receipt.miss_reason in (Miss.TIER_ERROR, None)
    ssd = house.cache.status()["tiers"]["ssd"]
    assert ssd["state"] == "down"
    assert ssd["failures"] > 0
    assert threads
    assert set(threads) <= {"surefoot-read", "surefoot-write"}
    answers.set()
    house.lift()
    house.ask(LABEL, pictured(house))
    assert house.cache.status()["tiers"]["ssd"]["state"] == "up"


def test_the_engine_thread_touches_no_file_and_no_index_in_all_of_the_script(build, monkeypatch):
    touched = set()

    def watched(owner, name):
        honest = getattr(owner, name)

        def seen(*arguments, **named):
            touched.add((threading.current_thread().name, name))
            return honest(*arguments, **named)

        monkeypatch.setattr(owner, name, seen)

    for name in ("read", "write_new", "rename", "remove", "sync_file", "sync_folder", "entries"):
        watched(script.UnsyncedDisk, name)
    for name in ("_read", "_write"):
        watched(Inventory, name)
    house = build(ram_bytes=20_000, floor_s=WAIT_S)
    play(house)
    names = {thread for thread, _ in touched}
    assert {"surefoot-read", "surefoot-write"} <= names
    assert "engine" not in names


@pytest.mark.parametrize("connection", ["_reader", "_writer"])
def test_a_store_whose_index_stalls_is_closed_in_bounded_time(build, monkeypatch, connection):
    monkeypatch.setattr(courier, "JOIN_S", 0.1)
    monkeypatch.setattr(quarantine, "LOOK_S", FLOOR_S)
    house, answers, threads = build(), Event(), []
    inventory = house.cache._ssd.inventory
    held = HeldConnection(getattr(inventory, connection), answers, threads)
    setattr(inventory, connection, held)
    house._submit(LABEL, TALK, None).answer()
    closing = threading.Thread(target=house.close)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    answers.set()
    for lane in house.cache._lanes:
        assert lane.drain(WAIT_S)
    house.open()
