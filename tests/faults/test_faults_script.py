"""Whatever goes wrong with a tier: the answers are the cold ones, and the fault has a name.

The whole script is played under every kind of fault, in every operation where it can happen, for
parts and for features. Nothing false is found when the fault is gone, in that life or the next (I8,
I10). A failure prints its schedule; ``Schedule.read`` gives it back.
"""

from collections import Counter

import pytest

from surefoot.cache.fences import Reason
from surefoot.receipt import Miss
from surefoot.testing import script
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.fake_engine import FakeEngine
from surefoot.testing.faulty import FEATURES, KINDS, PARTS, Kind, Schedule, Verb
from surefoot.testing.script import (
    AMPLE,
    CROWD,
    FENCES,
    FLOOR_S,
    QUARANTINE,
    RECORDS,
    WAIT_S,
    House,
    Subject,
    crowd_of,
    play,
)
from surefoot.turn import CacheMode

SMALL_BYTES = 500_000  # an SSD quota that the script overflows
SOME_RAM_BYTES = 20_000


def subject():
    return Subject(FakeEngine(block_tokens=32), FakeChat(), (b"\x03first", b"\x05second"))


@pytest.fixture(scope="module")
def cold():
    house = House(subject(), None, mode=CacheMode.BYPASS)
    answers = play(house)
    house.close()
    assert {one.receipt.miss_reason for one in answers} == {Miss.BYPASS}
    return answers


@pytest.fixture
def played(tmp_path, cold):
    """Play the script under faults, check all that is the same for every fault, and tell."""

    def run(text="", *, fences="", quarantine="", **settings):
        schedules = {RECORDS: text, FENCES: fences, QUARANTINE: quarantine}
        stalls = any(Kind.STALLED in one for one in schedules.values())
        house = House(
            subject(),
            tmp_path / "store",
            schedules={name: Schedule.read(one) for name, one in schedules.items()},
            floor_s=FLOOR_S if stalls else WAIT_S,
            **settings,
        )
        answers = play(house)
        told = Told(house)
        check(house, answers, cold)
        return told

    return run


class Told:
    """What receipts and counters said up to now, and which faults struck."""

    def __init__(self, house):
        self.misses = {one.miss_reason for one in house.receipts}
        self.hits = sum(one.restored_tokens for one in house.receipts)
        self.counters = house.counters + Counter(house.figures())
        self.struck = {(str(one.verb), one.kind) for tier in house.tiers for one in tier.struck}


def check(house, answers, cold):
    assert [one.bits for one in answers] == [one.bits for one in cold]  # I5, I10
    for warm, alone in zip(answers, cold, strict=True):
        assert warm.units <= alone.units * 2, warm.label  # at worst it started over, once
    house.lift()
    house.check_later_plans()  # I8
    again = [house.ask(one.label, house.asked[one.label].input.messages) for one in cold[:1]]
    assert again[0].bits == cold[0].bits
    house.restart()
    house.check_later_plans()
    house.close()


def test_without_faults_all_is_restored_that_can_be(played):
    told = played()
    assert told.hits > 3_000
    # Idle work may come to a history that ends with its first block: nothing lies below that.
    honest = {None, Miss.COLD, Miss.DIVERGED, Miss.EVICTED, Miss.NO_SNAPSHOT, Miss.TOO_SHORT}
    assert told.misses <= honest
    assert told.hits == told.counters["restored_tokens_ssd"] + told.counters["restored_tokens_ram"]
    assert not told.counters["failures"] + told.counters["stalls"] + told.counters["corrupt"]
    assert not told.struck


# What is struck, what a receipt says of it, and which counter counts it.
READS_OF_PARTS = {
    f"get#2[{PARTS}] short@77; get#90[{PARTS}] short": (Miss.CORRUPT, "corrupt"),
    f"get#2[{PARTS}] flipped@77; get#90[{PARTS}] flipped@9999": (Miss.CORRUPT, "corrupt"),
    f"get#2[{PARTS}] swapped@77; get#90[{PARTS}] swapped@3": (Miss.CORRUPT, "corrupt"),
    f"get[{PARTS}] broken": (Miss.TIER_ERROR, "failures"),
    f"get#40[{PARTS}] broken": (Miss.TIER_ERROR, "failures"),
    f"get[{PARTS}] evicted": (Miss.EVICTED, None),
    f"get#40[{PARTS}] evicted": (Miss.EVICTED, None),
    f"get#30[{PARTS}] vanished": (Miss.EVICTED, None),
    f"get[{PARTS}] slow": (Miss.DEADLINE, None),
    f"get#40[{PARTS}] slow": (Miss.DEADLINE, None),
    f"get[{PARTS}] stalled": (Miss.DEADLINE, "stalls"),
    f"get#40[{PARTS}] stalled": (Miss.DEADLINE, "stalls"),
}
READS_OF_FEATURES = {
    f"get[{FEATURES}] short@77": "feature_failures",
    f"get[{FEATURES}] flipped@77": "feature_failures",
    f"get[{FEATURES}] swapped": "feature_failures",
    f"get[{FEATURES}] broken": "failures",
    f"get[{FEATURES}] evicted": "features_missed",
    f"get[{FEATURES}] vanished": "features_missed",
    f"get[{FEATURES}] slow": "features_missed",
    f"get[{FEATURES}] stalled": "stalls",
}
WRITES_OF_PARTS = {
    f"put#0[{PARTS}] short@77; put#50[{PARTS}] short": (Miss.CORRUPT, "corrupt"),
    f"put#0[{PARTS}] flipped@77; put#50[{PARTS}] flipped@9999": (Miss.CORRUPT, "corrupt"),
    f"put[{PARTS}] broken": (Miss.COLD, "failures"),
    f"put[{PARTS}] full": (Miss.COLD, "failures"),
    f"put[{PARTS}] read-only": (Miss.COLD, "failures"),
    f"put[{PARTS}] undone": (Miss.COLD, "failures"),
    f"put[{PARTS}] done": (Miss.COLD, "failures"),
    f"put#40[{PARTS}] done; put#41[{PARTS}] undone": (None, "failures"),
    f"put#40[{PARTS}] claimed; put#90[{PARTS}] claimed": (Miss.EVICTED, None),
    f"put[{PARTS}] claimed": (Miss.EVICTED, None),
    f"put[{PARTS}] twice": (None, "committed_tokens"),
    f"put[{PARTS}] slow": (None, "committed_tokens"),
    f"put[{PARTS}] stalled": (Miss.COLD, "stalls"),
    f"put#40[{PARTS}] stalled": (None, "stalls"),
}
WRITES_OF_FEATURES = {
    f"put[{FEATURES}] short@77": "feature_failures",
    f"put[{FEATURES}] flipped@77": "feature_failures",
    f"put[{FEATURES}] broken": "failures",
    f"put[{FEATURES}] full": "failures",
    f"put[{FEATURES}] read-only": "failures",
    f"put[{FEATURES}] undone": "failures",
    f"put[{FEATURES}] done": "failures",
    f"put[{FEATURES}] claimed": "features_missed",
    f"put[{FEATURES}] twice": "features_committed",
    f"put[{FEATURES}] slow": "features_committed",
    f"put[{FEATURES}] stalled": "stalls",
}


@pytest.mark.parametrize("text", [*READS_OF_PARTS, *WRITES_OF_PARTS])
def test_a_fault_of_parts_costs_no_token_and_has_a_name(played, text):
    told = played(text)
    miss, counter = (READS_OF_PARTS | WRITES_OF_PARTS)[text]
    assert told.struck
    assert miss in told.misses
    assert counter is None or told.counters[counter] > 0


@pytest.mark.parametrize("text", [*READS_OF_FEATURES, *WRITES_OF_FEATURES])
def test_a_fault_of_features_costs_no_token_and_has_a_name(played, text):
    told = played(text)
    assert told.struck
    assert told.counters[(READS_OF_FEATURES | WRITES_OF_FEATURES)[text]] > 0
    assert told.counters["corrupt"] == 0
    assert told.hits > 1_000  # parts are served as ever, but for what consumed bad features


@pytest.mark.parametrize("kind", sorted(KINDS[Verb.DELETE]))
def test_a_fault_of_removals_costs_no_token(played, kind):
    told = played(f"delete {kind}", ssd_bytes=SMALL_BYTES)
    assert told.struck == {("delete", kind)}
    assert told.counters["evictions"] > 0
    if kind in (Kind.BROKEN, Kind.READ_ONLY, Kind.UNDONE, Kind.DONE):
        assert told.counters["failures"] > 0
    if kind is Kind.STALLED:
        assert told.counters["stalls"] > 0


@pytest.mark.parametrize("kind", sorted(KINDS[Verb.HEAD] - {Kind.STALLED, Kind.OLDER}))
def test_a_fault_while_an_inventory_is_rebuilt_costs_no_token(played, kind):
    told = played(f"head#3 {kind}@77; head#90 {kind}@300", forgetful=True)
    assert told.struck == {("head", kind)}


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("kind", sorted(KINDS[Verb.LIST] - {Kind.STALLED}))
def test_a_fault_of_a_listing_costs_no_token(played, kind, forgetful):
    told = played(f"list {kind}@77", forgetful=forgetful)
    assert told.struck == {("list", kind)}


def short_of(kinds, short):
    """Mark all kinds but some as long: all are alike to a fence or to what lies aside."""
    return [kind if kind in short else pytest.param(kind, marks=pytest.mark.long) for kind in kinds]


FEW_WRITES = {Kind.BROKEN, Kind.DONE, Kind.CLAIMED, Kind.FLIPPED, Kind.STALLED}
FEW_READS = {Kind.BROKEN, Kind.FLIPPED, Kind.VANISHED}
FENCED = f"get#2[{PARTS}] flipped@77; get#90[{PARTS}] flipped"


@pytest.mark.parametrize("kind", short_of(sorted(KINDS[Verb.PUT]), FEW_WRITES))
def test_a_fence_that_cannot_be_written_well_bars_all_the_same(played, kind):
    told = played(FENCED, fences=f"put {kind}@9")
    assert {("get", Kind.FLIPPED), ("put", kind)} <= told.struck
    assert Miss.CORRUPT in told.misses


@pytest.mark.parametrize(
    "kind", short_of(sorted(KINDS[Verb.GET] - {Kind.STALLED, Kind.OLDER}), FEW_READS)
)
def test_a_fence_that_cannot_be_read_well_bars_all_the_same(played, kind):
    told = played(FENCED, fences=f"get {kind}@9")
    assert told.struck
    assert told.misses & {Miss.CORRUPT, Miss.TIER_ERROR}


@pytest.mark.parametrize("kind", short_of(sorted(KINDS[Verb.PUT]), {Kind.FULL, Kind.FLIPPED}))
def test_what_cannot_be_kept_aside_is_gone_all_the_same(played, kind):
    told = played(FENCED, quarantine=f"put {kind}")
    assert {("get", Kind.FLIPPED), ("put", kind)} <= told.struck
    assert Miss.CORRUPT in told.misses
    # A writer that is stuck there may keep all that comes later from being stored.
    assert Miss.QUARANTINED in told.misses or kind is Kind.STALLED


@pytest.mark.parametrize("seed", [*range(6), *short_of(range(6, 60), ())])
def test_faults_drawn_at_random_cost_no_token(played, seed):
    schedule = Schedule.drawn(seed, faults=12, operations=300)
    kept = (one for one in str(schedule).split("; ") if not ("list" in one or "head" in one))
    played(
        "; ".join(kept) if seed % 3 else str(schedule).replace(Kind.STALLED, Kind.SLOW),
        ram_bytes=(0, SOME_RAM_BYTES, AMPLE)[seed % 3],
        ssd_bytes=SMALL_BYTES if seed % 2 else AMPLE,
        forgetful=seed % 3 == 0,
    )


def test_an_older_version_of_a_record_is_behind_the_fence_that_it_fell_by(tmp_path, cold):
    house = House(subject(), tmp_path / "store")
    first = play_talk(house)
    house.cache.quarantine(house.blocks("talk 0")[0].name, Reason.BY_HAND, "for a test")
    house.settle()
    assert play_talk(house).bits == first.bits  # stored anew, by the same names
    tier = tier_of_records(house)
    tier.schedule = Schedule.read(f"get[{PARTS}] older")
    again = play_talk(house)
    assert {one.kind for one in tier.struck} == {Kind.OLDER}
    assert again.bits == first.bits == cold[0].bits
    assert (again.receipt.miss_reason, again.receipt.restored_tokens) == (Miss.QUARANTINED, 0)
    house.lift()
    house.check_later_plans()
    house.close()


def play_talk(house):
    return house.ask("talk 0", script.said(script.SYSTEM, script.QUESTIONS[0]))


def tier_of_records(house):
    return next(tier for tier in reversed(house.tiers) if tier._root.name == RECORDS)


@pytest.mark.parametrize(
    ("kind", "miss"),
    [
        ("short", Miss.CORRUPT),
        ("flipped@1000", Miss.CORRUPT),
        ("swapped", Miss.CORRUPT),
        ("broken", Miss.TIER_ERROR),
        ("evicted", Miss.EVICTED),
        ("slow", Miss.DEADLINE),
        ("stalled", Miss.DEADLINE),
    ],
)
def test_eight_requests_are_not_held_up_by_the_one_that_is_struck(tmp_path, kind, miss):
    talks = crowd_of(CROWD)
    alone = House(subject(), None, mode=CacheMode.BYPASS)
    cold = alone.crowd(talks)
    alone.close()
    house = House(
        subject(),
        tmp_path / "store",
        ram_bytes=AMPLE,
        floor_s=FLOOR_S if kind == "stalled" else WAIT_S,
    )
    house.crowd(talks)
    house.restart()
    *others, (label, _) = talks
    for one, talk in others:
        house.ask(one, talk)  # from SSD, and into RAM
    struck = tier_of_records(house)
    names = {block.name.hex() for block in house.blocks(label)}
    struck.schedule = Schedule.read(f"get[{'|'.join(sorted(names))}] {kind}")
    warm = house.crowd(talks)
    assert struck.struck
    assert [one.bits for one in warm] == [one.bits for one in cold]
    assert all(a.units <= b.units for a, b in zip(warm, cold, strict=True))
    *normal, faulted = (one.receipt for one in warm)
    assert (faulted.miss_reason, faulted.restored_tokens) == (miss, 0)
    for one in normal:
        assert (one.miss_reason, one.sources) == (None, {"ram": one.state_tokens})
    house.lift()
    assert house.check_later_plans()
    house.close()
