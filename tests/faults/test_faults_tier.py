"""A faulty tier does what its schedule says, says what it did, and is an honest tier otherwise."""

import threading
from threading import Event

import pytest

from surefoot.errors import TierError
from surefoot.testing.cache_kit import Clock
from surefoot.testing.faulty import (
    FEATURES,
    KINDS,
    PARTS,
    SLOW_S,
    STALL_S,
    Fault,
    FaultyTier,
    Kind,
    Schedule,
    Verb,
)
from surefoot.testing.tier_contract import TierContract
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ram import RamTier
from surefoot.tiers.ssd import SsdTier

VALUE = b"first value"
EVERY = [Fault(verb, kind) for verb in Verb for kind in sorted(KINDS[verb])]


class TestFaultyTierWithoutFaults(TierContract):
    @pytest.fixture
    def tier(self, tmp_path):
        tier = SsdTier(tmp_path / "tier", RealDisk(), "writer")
        return FaultyTier(tier, Schedule(), pass_time=pytest.fail)


def faulty(text, clock=None):
    tier = FaultyTier(RamTier(), Schedule.read(text), pass_time=clock.pass_ if clock else float)
    tier._tier.put("other", b"other value")
    return tier


def struck(tier):
    return [(one.verb, one.kind) for one in tier.struck]


@pytest.mark.parametrize("fault", EVERY, ids=str)
def test_what_a_fault_prints_is_read_back(fault):
    for text in (str(fault), f"{fault.verb}#7[^a.(b)$] {fault.kind}@19"):
        assert str(Fault.read(text)) == text
    schedule = Schedule.of(fault, Fault.read(f"{fault.verb}#3[x y] {fault.kind}"))
    assert Schedule.read(str(schedule)) == schedule


def test_a_seed_gives_its_schedule_again_and_another_seed_another():
    drawn = [Schedule.drawn(seed, faults=6, operations=40) for seed in range(50)]
    assert drawn == [Schedule.drawn(seed, faults=6, operations=40) for seed in range(50)]
    assert len(set(drawn)) == 50
    assert {one.kind for schedule in drawn for one in schedule.faults} == set(Kind)
    assert all(Schedule.read(str(schedule)) == schedule for schedule in drawn)


def test_keys_of_parts_and_of_features_are_told_apart():
    name = "ab" * 32
    tier = faulty(f"get[{PARTS}] broken; put[{FEATURES}] full")
    tier.put(f"{name}.rows-0", VALUE)
    with pytest.raises(TierError, match="input/output"):
        tier.get(f"{name}.rows-0")
    with pytest.raises(TierError, match="no space"):
        tier.put(f"{name}.media.features", VALUE)
    assert tier.get(f"{name}.media.features") is None


def test_a_number_counts_the_operations_of_its_verb_and_keys_alone():
    tier = faulty("get#1[key] flipped@3")
    tier.put("key", VALUE)
    seen = [tier.get(key) for key in ("key", "other", "key", "key")]
    assert [one == VALUE for one in seen] == [True, False, False, True]
    assert seen[2] == bytes([VALUE[0] ^ 8]) + VALUE[1:]
    assert struck(tier) == [(Verb.GET, Kind.FLIPPED)]


@pytest.mark.parametrize("kind", [Kind.BROKEN, Kind.FULL, Kind.READ_ONLY, Kind.UNDONE])
def test_a_write_that_fails_did_not_happen(kind):
    tier = faulty(f"put {kind}")
    with pytest.raises(TierError):
        tier.put("key", VALUE)
    assert tier.get("key") is None
    assert struck(tier) == [(Verb.PUT, kind)]


def test_a_lost_acknowledgement_of_what_happened(tmp_path):
    tier = faulty("put done; delete#1 done")
    with pytest.raises(TierError):
        tier.put("key", VALUE)
    assert tier.get("key") == VALUE
    tier.delete("other")
    with pytest.raises(TierError):
        tier.delete("key")
    assert tier.get("key") is None


@pytest.mark.parametrize("kind", [Kind.BROKEN, Kind.READ_ONLY, Kind.UNDONE])
def test_a_removal_that_fails_did_not_happen(kind):
    tier = faulty(f"delete {kind}")
    with pytest.raises(TierError):
        tier.delete("other")
    assert tier.get("other") == b"other value"


def test_what_is_only_claimed_to_be_done_is_not():
    tier = faulty("put claimed; delete claimed")
    assert tier.put("key", VALUE) == len(VALUE)
    tier.delete("other")
    assert (tier.get("key"), tier.get("other")) == (None, b"other value")


def test_what_is_done_twice_is_done():
    tier = faulty("put twice; delete twice")
    calls = []
    for name in ("put", "delete"):
        honest = getattr(tier._tier, name)
        setattr(tier._tier, name, lambda *one, honest=honest: calls.append(one) or honest(*one))
    assert tier.put("key", VALUE) == len(VALUE)
    tier.delete("other")
    assert calls == [("key", VALUE)] * 2 + [("other",)] * 2
    assert (tier.get("key"), tier.get("other")) == (VALUE, None)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("get short@4", VALUE[:4]),
        ("get swapped", b"other value"),
        ("get older", b"very first"),
        ("get evicted", None),
        ("get vanished", None),
    ],
)
def test_a_read_lies_as_told(fault, seen):
    tier = faulty(fault)
    tier.put("key", b"very first")
    tier.put("key", VALUE)
    tier._seen["other"] = None
    assert tier.get("key") == seen
    assert tier._tier.get("key") == (VALUE if seen is not None else None)
    assert (tier._tier.get("other") is None) == ("vanished" in fault)


def test_what_would_change_nothing_is_no_strike():
    tier = faulty("get older")
    tier.put("key", VALUE)
    assert tier.get("key") == VALUE
    assert struck(tier) == []


def test_the_first_bytes_of_a_value_lie_likewise(tmp_path):
    tier = FaultyTier(
        SsdTier(tmp_path / "tier", RealDisk(), "writer"),
        Schedule.read("head#0 short@2; head#1 flipped; head#2 swapped; head#3 evicted"),
        pass_time=float,
    )
    tier.put("one", b"11111111")
    tier.put("two", b"22222222")
    assert [tier.head("one", 4) for _ in range(4)] == [b"11", b"0111", b"2222", None]


@pytest.mark.parametrize("kind", [Kind.SHORT, Kind.VANISHED])
def test_a_listing_misses_keys(kind):
    tier = faulty(f"list#0 {kind}@1")
    tier.put("key", VALUE)
    listed = dict(tier.list())
    assert listed == ({"key": len(VALUE)} if kind is Kind.SHORT else {})
    assert len(dict(tier.list())) == (2 if kind is Kind.SHORT else 0)


@pytest.mark.parametrize("verb", [Verb.GET, Verb.PUT, Verb.DELETE, Verb.LIST])
def test_what_is_slow_is_done_when_time_has_passed(verb):
    clock = Clock()
    before = clock()
    tier = faulty(f"{verb} slow", clock)
    operate(tier, verb)
    assert clock() - before == SLOW_S


@pytest.mark.parametrize("verb", [Verb.GET, Verb.PUT, Verb.DELETE, Verb.LIST])
def test_what_stalls_is_done_when_released_and_says_that_it_stalls(verb):
    clock, ended = Clock(), Event()
    before = clock()
    tier = faulty(f"{verb} stalled", clock)
    thread = threading.Thread(target=lambda: (operate(tier, verb), ended.set()))
    thread.start()
    assert tier.halted.wait(10)
    assert (clock() - before, ended.is_set()) == (STALL_S, False)
    tier.lift()
    assert ended.wait(10)
    thread.join()
    operate(tier, verb)  # nothing goes wrong any more
    assert struck(tier) == [(verb, Kind.STALLED)]


def operate(tier, verb):
    match verb:
        case Verb.GET:
            assert tier.get("other") == b"other value"
        case Verb.PUT:
            tier.put("key", VALUE)
            assert tier._tier.get("key") == VALUE
        case Verb.DELETE:
            tier.delete("other")
            assert tier._tier.get("other") is None
        case Verb.LIST:
            assert dict(tier.list()) == {"other": 11}
