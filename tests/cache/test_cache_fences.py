"""Fences: numbered by several processes, durable, judged against what they mean in words (I8)."""

import itertools
from contextlib import contextmanager, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.cache import fences as fences_module
from surefoot.cache.fences import FENCE_END, UNWRITTEN, Fence, Fences, Reason
from surefoot.errors import TierError
from surefoot.identity import FeatureName
from surefoot.testing.cache_kit import Clock, blocks_of
from surefoot.testing.faulty import Fault, FaultyTier, Kind, Schedule, Verb
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier

BLOCKS = blocks_of(range(16))
NAMES = [bytes([number]) * 32 for number in range(1, 10)]
PICTURE = FeatureName(b"f" * 32)


class Store:
    """A folder of fences that several processes share."""

    def __init__(self, folder):
        self.folder = folder
        self.held = False
        self.writers = itertools.count()

    @contextmanager
    def alone(self):
        assert not self.held, "two processes number fences at once"
        self.held = True
        try:
            yield
        finally:
            self.held = False

    def tier(self):
        return SsdTier(self.folder, RealDisk(), f"w{next(self.writers)}")

    def process(self, tier=None):
        made = Fences(tier or self.tier(), alone=self.alone, wall_clock=Clock(7.0))
        made.load()
        return made

    def file(self, number):
        return self.folder / "00" / f"{number:010d}.rec"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "fences")


def put_up(fences, *names, reason=Reason.BY_HAND):
    for name in names:
        fences.bar(name, reason, "said so")
        fences.settle()


def numbers(fences):
    return [(fence.number, fence.name) for fence in fences.known()]


def test_two_processes_number_one_sequence_and_know_each_others(store):
    one, two = store.process(), store.process()
    put_up(one, NAMES[0])
    put_up(two, NAMES[1], NAMES[2])
    put_up(one, NAMES[3])
    assert one.last == 4
    assert [fence.number for fence in two.refresh()] == [4]
    expected = list(enumerate(NAMES[:4], 1))
    assert numbers(one) == numbers(two) == numbers(store.process()) == expected
    assert two.refresh() == []
    (first, *_) = store.process().known()
    assert first == Fence(1, NAMES[0], Reason.BY_HAND, "said so", 7.0)


def test_a_name_is_barred_before_it_has_a_number_and_by_its_number_after(store):
    fences = store.process()
    assert fences.bar(NAMES[0], Reason.CORRUPT, "").number == UNWRITTEN
    assert fences.pending()
    assert fences.number_of(NAMES[0]) == UNWRITTEN
    assert not fences.good(fences.last, fences.number_of(NAMES[0]))
    fences.settle()
    assert not fences.pending()
    assert fences.number_of(NAMES[0]) == 1
    assert [fences.good(number, 1) for number in (0, 1, 2)] == [False, True, False]


def test_without_a_store_a_fence_is_numbered_at_once():
    fences = Fences(None, alone=nullcontext, wall_clock=Clock())
    fences.load()
    assert [fences.bar(name, Reason.CORRUPT, "").number for name in NAMES[:3]] == [1, 2, 3]
    assert not fences.pending()
    assert (fences.settle(), fences.refresh(), fences.last) == ([], [], 3)


@pytest.mark.parametrize("running", [False, True], ids=["at open", "while running"])
def test_a_fence_that_cannot_be_read_bars_what_is_older(store, running):
    fences = store.process()
    put_up(fences, *NAMES[:3])
    data = store.file(2).read_bytes()
    damages = [data[:cut] for cut in range(len(data))]
    damages += [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in (0, 5)
    ]
    damages += [store.file(3).read_bytes(), b"[]", b"{}", b"null", b'"x"', b"[" * 2000]
    damages += [data.replace(b'"by_hand"', b'"whim"'), data.replace(b": 2", b": 3")]
    lost = 0
    for damage in damages:
        if running:
            store.file(2).unlink()
            process = store.process()
            process._known.clear()
            process._last = process._floor = 1
            process._numbers.clear()
            store.file(2).write_bytes(damage)
            process.refresh()
        else:
            store.file(2).write_bytes(damage)
            process = store.process()
        assert process.last == 3
        (found,) = [fence for fence in process.known() if fence.number == 2]
        if found.reason is Reason.LOST:
            lost += 1
            assert process.number_of(NAMES[7]) == 2
        else:
            assert found == fences.known()[1]  # the same fence, spelled otherwise
    assert lost > len(damages) * 9 // 10


@pytest.mark.parametrize("gone", [(1,), (2,), (1, 2), (2, 3), (1, 2, 3)])
def test_fences_before_the_last_that_are_gone_bar_what_is_older(store, gone):
    put_up(store.process(), *NAMES[:4])
    for number in gone:
        store.file(number).unlink()
    fences = store.process()
    assert (fences.last, fences.number_of(NAMES[8])) == (4, max(gone))
    assert fences.number_of(NAMES[3]) == 4


def test_a_fence_that_the_medium_keeps_to_itself_is_lost_and_the_store_opens(store):
    put_up(store.process(), *NAMES[:3])
    store.file(2).unlink()
    store.file(2).mkdir()  # a read of it fails
    assert store.process().number_of(NAMES[8]) == 2


def test_files_that_are_no_fences_are_left_alone(store):
    put_up(store.process(), NAMES[0])
    for name in ("00/1.rec", "00/00000000002.rec", "00/abcdefghij.rec", "00/0000000009.rec.part"):
        (store.folder / name).write_bytes(b"x")
    assert numbers(store.process()) == [(1, NAMES[0])]


def test_records_that_name_a_later_fence_than_is_here_put_up_a_floor(store):
    running = store.process()
    put_up(running, NAMES[0])
    opening = store.process()
    opening.outlived(5)
    assert (opening.last, opening.number_of(NAMES[8])) == (5, 5)
    put_up(opening, NAMES[1])
    # Whoever runs already learns both, and so does whoever comes.
    assert [fence.number for fence in running.refresh()] == [5, 6]
    assert running.number_of(NAMES[8]) == store.process().number_of(NAMES[8]) == 5
    opening.outlived(3)
    assert opening.last == 6


@pytest.mark.parametrize("number", [10_000, FENCE_END - 2])
def test_a_wild_number_costs_one_file_and_all_that_is_older(store, number):
    running = store.process()
    put_up(running, NAMES[0])
    store.process().outlived(number)
    assert len(list(store.folder.rglob("*.rec"))) == 2
    put_up(running, NAMES[1])
    assert running.last == store.process().last == number + 1
    assert running.number_of(NAMES[8]) == number


def tier_that(store, verb, kind, at=0):
    schedule = Schedule.of(Fault(verb, kind, at))
    return FaultyTier(store.tier(), schedule, pass_time=lambda seconds: None)


@pytest.mark.parametrize(
    ("kind", "numbered"), [(Kind.FULL, 1), (Kind.BROKEN, 1), (Kind.UNDONE, 1), (Kind.DONE, 1)]
)
def test_a_fence_that_cannot_be_written_bars_here_and_is_tried_again(store, kind, numbered):
    fences = store.process(tier_that(store, Verb.PUT, kind))
    fences.bar(NAMES[0], Reason.CORRUPT, "")
    with pytest.raises(TierError):
        fences.settle()
    assert fences.pending()
    assert fences.number_of(NAMES[0]) == UNWRITTEN
    fences.settle()
    assert not fences.pending()
    # A write that was done and not acknowledged is found, and not done again.
    assert numbers(fences) == numbers(store.process()) == [(numbered, NAMES[0])]


def test_a_fence_of_another_process_on_the_same_name_is_no_acknowledgement(store):
    # What is barred here may have been computed by somebody who knew the other's fence.
    one, two = store.process(), store.process()
    one.bar(NAMES[0], Reason.CORRUPT, "")
    put_up(two, NAMES[0])
    one.settle()
    assert one.number_of(NAMES[0]) == 2


def test_of_several_names_those_that_were_written_are_not_written_again(store):
    fences = store.process(tier_that(store, Verb.PUT, Kind.FULL, at=1))
    for name in NAMES[:3]:
        fences.bar(name, Reason.CORRUPT, "")
    with pytest.raises(TierError):
        fences.settle()
    assert [fence.number for fence in fences.since(0)] == [1]
    fences.settle()
    assert [name for _, name in numbers(fences)] == NAMES[:3]
    assert numbers(store.process()) == numbers(fences)


def test_a_read_that_fails_says_so_and_changes_nothing(store):
    fences = store.process(tier_that(store, Verb.GET, Kind.BROKEN))
    put_up(store.process(), NAMES[0])
    with pytest.raises(TierError):
        fences.refresh()
    assert (fences.last, fences.known()) == (0, [])
    assert [fence.number for fence in fences.refresh()] == [1]


# Many fences.


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(fences_module, "FENCES_MOST", 6)


def many(store, count):
    fences = store.process()
    put_up(fences, *(number.to_bytes(32, "big") for number in range(1, count + 1)))
    return fences


def test_the_number_of_files_is_bounded_and_whoever_missed_them_knows_the_rest(store, few):
    behind = store.process()
    put_up(behind, NAMES[0])
    busy = many(store, 40)
    assert len(list(store.folder.rglob("*.rec"))) <= 8
    behind.refresh()
    fresh = store.process()
    for fences in (busy, behind, fresh):
        assert fences.last == 41
        assert len(fences.known()) <= 7
        # What was fenced long ago is barred with all that is as old.
        assert fences.number_of(NAMES[0]) == fences.number_of(NAMES[8]) >= 30
        assert fences.number_of((40).to_bytes(32, "big")) == 41
    put_up(behind, NAMES[1])
    assert [fence.number for fence in busy.refresh()] == [42]


@pytest.mark.parametrize("step", range(12))
def test_wherever_retirement_stops_nothing_is_forgotten(store, few, step):
    names = {number: number.to_bytes(32, "big") for number in range(1, 8)}
    fences = many(store, 6)
    behind = store.process()
    behind._last = 0  # it has read nothing yet
    behind._known.clear()
    behind._numbers.clear()
    steps = itertools.count()
    tier = fences._tier

    class Stopping:
        def __getattr__(self, name):
            if name in ("put", "delete") and next(steps) == step:
                raise TierError("the power is gone")
            return getattr(tier, name)

    fences._tier = Stopping()
    fences.bar(names[7], Reason.BY_HAND, "said so")
    try:
        fences.settle()
    except TierError:
        assert step < 6
    present = store.file(7).exists()
    behind.refresh()
    for process in (store.process(), behind):
        for number in range(1, 7 + present):
            assert process.number_of(names[number]) >= number
        assert process.last == 6 + present
    fences._tier = tier
    fences.settle()
    put_up(fences, NAMES[0])
    assert store.process().number_of(names[1]) >= 1
    assert len(fences.known()) <= 6


def test_a_floor_never_goes_back(store, few):
    behind = store.process()
    fences = many(store, 5)
    fences.outlived(50)
    put_up(fences, NAMES[0])  # one file too many
    behind.refresh()
    for process in (behind, store.process()):
        assert (process.number_of(NAMES[8]), process.last) == (50, 51)


def test_a_floor_that_cannot_be_read_bars_what_its_fences_barred(store, few):
    behind = store.process()
    last = many(store, 40).last
    store.file(0).write_bytes(b"torn")
    assert store.process().number_of(NAMES[8]) >= 30
    assert store.process().last == last
    with pytest.raises(TierError):
        behind.refresh()  # it cannot tell what it missed: nothing may be reused


# What is good, in words and by numbers.

PROMPTS = [[0] * 12, [0] * 8 + [1] * 4, [0] * 4 + [2] * 8]  # a trunk, and two ways to leave it
TREE = {
    chain[depth].name: chain[: depth + 1]
    for chain in map(blocks_of, PROMPTS)
    for depth in range(len(chain))
}
CONSUMED = {name: ((PICTURE,) if len(chain) == 2 else ()) for name, chain in TREE.items()}
ROOT = BLOCKS[0].parent


def consumed(chain):
    return [CONSUMED.get(block.name, ()) for block in chain]


def in_words(history, name, number):
    """A record is good unless something it descends from was fenced after its writer planned."""
    chain = TREE[name]
    above = {chain[0].parent, *(block.name for block in chain)}
    above |= {one for names in consumed(chain) for one in names}
    later = history[number:]
    return number <= len(history) and not any(one is None or one in above for one in later)


events = st.lists(
    st.sampled_from([*TREE, TREE[next(iter(TREE))][0].parent, PICTURE, NAMES[0]]), max_size=6
)


@given(events, st.sets(st.integers(1, 6), max_size=2))
def test_what_is_good_by_number_is_what_is_good_in_words(history, lost):
    fences = Fences(None, alone=nullcontext, wall_clock=Clock())
    for number, name in enumerate(history, 1):
        if number in lost:
            history[number - 1] = None
            fences._enter(Fence(number, None, Reason.LOST, "", 0.0))
        else:
            fences.bar(name, Reason.BY_HAND, "")
    for name, chain in TREE.items():
        cover = fences.covering(chain, consumed(chain))
        assert list(cover) == sorted(cover)
        for number in range(len(history) + 2):
            good = fences.good(number, cover[-1])
            assert good == in_words(history, name, number), (history, name.hex(), number)
        named = {
            index
            for index, block in enumerate(chain)
            if {block.name, *CONSUMED.get(block.name, ())} & set(history)
        }
        assert fences.named(chain, consumed(chain)) == named


def test_every_short_history_of_a_small_tree_is_judged_as_it_is_meant():
    targets = [*TREE, ROOT, PICTURE]
    for history in itertools.chain.from_iterable(
        itertools.product(targets, repeat=length) for length in range(4)
    ):
        fences = Fences(None, alone=nullcontext, wall_clock=Clock())
        for name in history:
            fences.bar(name, Reason.BY_HAND, "")
        for name, chain in TREE.items():
            cover = fences.covering(chain, consumed(chain))[-1]
            for number in range(len(history) + 2):
                assert fences.good(number, cover) == in_words(history, name, number)


def test_what_waits_for_its_number_bars_all_that_descends(store):
    fences = store.process()
    put_up(fences, NAMES[0])
    fences.bar(BLOCKS[1].name, Reason.CORRUPT, "")
    assert fences.covering(BLOCKS) == (0, UNWRITTEN, UNWRITTEN, UNWRITTEN)
    assert fences.named(BLOCKS) == {1}
    fences.settle()
    assert fences.covering(BLOCKS) == (0, 2, 2, 2)
