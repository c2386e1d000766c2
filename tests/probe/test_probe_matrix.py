"""The probe on broken and on honest servers: what it must say of them, by one seed in short."""

import asyncio

import pytest

from surefoot.testing.broken_faults import Behaviour, Fault
from surefoot.testing.probe_matrix import FAULTS, Row, broken, honest, matrix, probed, table

BROKEN = broken(Behaviour())
SHORT = {
    Fault.DONOR_LENGTH: "fork",
    Fault.WRONG_BOUNDARY: "interleave",
    Fault.SHARED_ENTRY: "lanes",
    Fault.POISONED: "cancelled",
    Fault.EVICTED_MIXUP: "sessions",
    Fault.COUNTER_ZERO: "fork",
    Fault.COUNTER_TOO_HIGH: "fork",
    Fault.ANSWER_SHIFTED: "turns",
    Fault.DONOR_LENGTH_BEYOND_1024: "long",
    Fault.KEY_FIRST_PICTURE_ONLY: "image-order",
    Fault.TOOLS_KEYED_BY_NAMES: "tools",
    Fault.SALT_FIRST_16_CHARACTERS: "salts",
    Fault.SALT_CASE_FOLDED: "salts",
    Fault.REWOUND: "turns",
    Fault.PICTURE_NUMBER_AFTER_RESTART: "restart",
    Fault.EVICTED_WHILE_SHARED: "sessions",
    Fault.STRANGERS_IN_FLIGHT: "lanes",
    Fault.SHARED_ENTRY_FROM_8: "lanes",
    Fault.LONG_ANSWER_OVERWRITES: "image-later",
    Fault.POISONED_IN_DECODE: "cancelled",
}


def misjudged(subjects, seeds=(1,), legs=()):
    rows = matrix(subjects, seeds, legs)
    return [(row.subject.name, row.misses, row.alarms) for row in rows if row.misses or row.alarms]


@pytest.mark.parametrize("fault", SHORT)
def test_a_leg_finds_the_fault_that_it_is_for(fault):
    one = [subject for subject in BROKEN if subject.fault is fault]
    assert misjudged(one, legs=[SHORT[fault]]) == []


@pytest.mark.parametrize(
    "like", ["plain", "no counters, no logprobs", "noise of 0.02 nat", "no cache"]
)
def test_an_honest_server_is_not_accused(like):
    one = [subject for subject in honest() if subject.name == like]
    assert misjudged(one, legs=["interleave", "fork"]) == []


@pytest.mark.long
def test_every_fault_is_found_and_no_honest_server_is_accused():
    assert misjudged([*BROKEN, *honest()]) == []


def test_every_fault_has_a_row_and_an_expected_verdict():
    assert {subject.fault for subject in BROKEN} == set(Fault) == set(FAULTS)


def test_the_same_seed_is_the_same_run():
    plain = next(subject for subject in honest() if subject.name == "plain")
    one, other = (asyncio.run(probed(plain, 3, ["fork"])).to_json() for _ in range(2))
    assert one == other


def test_a_miss_and_a_false_alarm_are_counted_where_they_happen():
    fault, plain = BROKEN[0], next(one for one in honest() if one.name == "plain")
    clean = asyncio.run(probed(plain, 1, ["fork"]))
    dirty = asyncio.run(probed(BROKEN[2], 1, ["fork"]))
    missed, accused = Row(fault), Row(plain)
    missed.add(clean)
    accused.add(dirty)
    assert missed.misses == [1]
    assert list(accused.alarms) == [1]
    assert "| 1 of 1 | 0 of 1 |" in table([missed], 1)
    assert "| 1 of 1 | 1 of 1 |" in table([accused], 1)
