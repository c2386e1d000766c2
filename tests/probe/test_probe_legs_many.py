"""Legs of many conversations: what they ask, what they catch, and what they cost."""

import json
from itertools import pairwise

import pytest
from leg_walks import BARE, JUDGED, Walked

from surefoot.probe.legs_many import (
    CROWD_AT_ONCE,
    LANES,
    LANES_AT_ONCE,
    SESSIONS,
    SESSIONS_AGAIN,
    SESSIONS_LEAST,
    SESSIONS_SHARING,
    STRANGERS_AT_ONCE,
)
from surefoot.probe.trail import Role
from surefoot.probe.verdicts import Verdict
from surefoot.testing.broken_engine import BrokenEngine
from surefoot.testing.broken_faults import Behaviour, Fault, Skills

OFFERS = [
    Behaviour(),
    Behaviour(block_tokens=256),
    Behaviour(offers_logprobs=False),
    Behaviour(unsteady=0.4),
    BARE,
]
BLIND = Behaviour(knows_salts=False)  # and so there is no way round its cache


def own(trail):
    return [seen for seen in trail.seen if "proof" not in seen.request.label]


def labelled(trail, beginning, *roles):
    return [
        seen
        for seen in own(trail)
        if seen.request.label.startswith(beginning) and seen.role in (roles or JUDGED)
    ]


def system(seen):
    return seen.request.body["messages"][0]["content"]


# --- against the broken server -------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", OFFERS)
@pytest.mark.parametrize("name", ["sessions", "lanes"])
def test_an_unbroken_server_is_clean(name, behaviour):
    found = Walked(name, behaviour=behaviour, keys=()).judged
    assert found.verdict is Verdict.CLEAN, found.reason


@pytest.mark.parametrize("behaviour", [Behaviour(), BARE])
@pytest.mark.parametrize("fault", [Fault.EVICTED_MIXUP, Fault.EVICTED_WHILE_SHARED])
def test_an_evicted_preamble_is_found_by_what_the_answers_say(fault, behaviour):
    found = Walked("sessions", fault, behaviour, keys=()).judged
    assert found.verdict in (Verdict.CONTAMINATED, Verdict.WRONG), found.reason


@pytest.mark.parametrize("behaviour", [Behaviour(), BARE])
def test_strangers_in_flight_are_found_to_share(behaviour):
    found = Walked("lanes", Fault.STRANGERS_IN_FLIGHT, behaviour, keys=()).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason


@pytest.mark.parametrize("behaviour", [Behaviour(), BARE])
def test_an_entry_that_is_shared_by_many_only_is_found(monkeypatch, behaviour):
    borrow = BrokenEngine._borrow

    def from_eight(engine, run):
        if len(engine._live) >= 7:
            borrow(engine, run)

    monkeypatch.setattr(BrokenEngine, "_borrow", from_eight)
    found = Walked("lanes", Fault.SHARED_ENTRY, behaviour, keys=()).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason
    assert "crowd" in found.reason


# --- sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(skills=Skills(recall_tokens=300))])
def test_some_sessions_share_a_preamble_and_are_told_first_and_asked_last(behaviour):
    walked = Walked("sessions", behaviour=behaviour, keys=())
    walked.tokens = 100_000
    walked.walk()
    shared = [f"session {number}" for number in range(1, SESSIONS_SHARING + 1)]
    told = labelled(walked.trail, "session", Role.COLD, Role.WARM)
    back = labelled(walked.trail, "session", Role.PLAIN)
    assert [seen.request.label for seen in told[:SESSIONS_SHARING]] == shared
    assert {seen.request.label for seen in back[-SESSIONS_SHARING:]} == {*shared}
    first = [seen.role for seen in told[:SESSIONS_SHARING]]
    assert first == [Role.COLD] + [Role.WARM] * (SESSIONS_SHARING - 1)
    sharing, others = told[:SESSIONS_SHARING], told[SESSIONS_SHARING:]
    assert len({system(seen) for seen in sharing}) == 1
    assert len({seen.request.prompt for seen in sharing}) == SESSIONS_SHARING
    assert len({system(seen) for seen in others if seen.role is Role.COLD}) == len(
        {seen.request.expected for seen in others if seen.role is Role.COLD}
    )


def test_the_others_come_back_in_another_order_and_some_of_them_twice():
    trail = Walked("sessions", keys=()).walk().trail
    cold = [seen.request.label for seen in labelled(trail, "session", Role.COLD)][1:]
    back = [seen.request.label for seen in labelled(trail, "session", Role.PLAIN)]
    assert sorted(back[: len(cold)]) == sorted(cold) != back[: len(cold)]
    asked = labelled(trail, "session", Role.PLAIN, Role.WARM)
    twice = [
        one
        for one, other in pairwise(asked)
        if one.request is other.request and other.role is Role.WARM
    ]
    assert len(twice) == SESSIONS_AGAIN


# --- lanes ---------------------------------------------------------------------------------------


def test_a_crowd_shares_a_block_and_is_asked_at_once(monkeypatch):
    live = []
    taken_up = BrokenEngine._taken_up

    def counting(engine, turn):
        run = taken_up(engine, turn)
        live.append((len(engine._live) + 1, run.plan.tokens))
        return run

    monkeypatch.setattr(BrokenEngine, "_taken_up", counting)
    trail = Walked("lanes", keys=()).walk().trail
    assert len({system(seen) for seen in labelled(trail, "one of a crowd")}) == 1
    assert max(live)[0] == CROWD_AT_ONCE
    assert max(live)[1] >= Behaviour().block_tokens


def test_no_crowd_is_asked_where_blocks_are_large():
    trail = Walked("lanes", behaviour=Behaviour(block_tokens=256), keys=()).walk().trail
    assert not labelled(trail, "one of a crowd")
    assert labelled(trail, "one that comes during a story")


def test_lanes_are_asked_at_once_before_they_are_alone():
    trail = Walked("lanes", keys=()).walk().trail
    half = LANES_AT_ONCE // 2
    lanes = labelled(trail, "lane")
    assert len({system(seen) for seen in lanes}) == 1
    roles = [seen.role for seen in lanes]
    assert roles == [Role.PLAIN] * (half + LANES_AT_ONCE) + [Role.WARM] * LANES_AT_ONCE
    codes = [seen.request.expected for seen in lanes]
    assert set(codes[:half]) < set(codes[half : half + LANES_AT_ONCE])
    assert codes[half : half + LANES_AT_ONCE] == codes[half + LANES_AT_ONCE :]


def test_strangers_share_no_beginning():
    trail = Walked("lanes", keys=()).walk().trail
    beginnings = {" ".join(system(seen).split()[:2]) for seen in labelled(trail, "stranger")}
    assert len(beginnings) == STRANGERS_AT_ONCE


def test_a_request_comes_while_another_is_being_answered(monkeypatch):
    turns, met = [], []
    taken_up = BrokenEngine._taken_up

    def recording(engine, turn):
        met.extend((turn, other, other.said_tokens) for other in turns if other.said_tokens)
        turns.append(turn)
        return taken_up(engine, turn)

    monkeypatch.setattr(BrokenEngine, "_taken_up", recording)
    Walked("lanes", keys=()).walk()
    joined = [turn for turn, other, said in met if said < other.said_tokens]
    assert len(joined) == 1


@pytest.mark.parametrize(("behaviour", "times"), [(Behaviour(), 1), (BLIND, 2)])
def test_what_was_asked_at_once_is_asked_alone_where_there_is_no_other_reference(behaviour, times):
    trail = Walked("lanes", behaviour=behaviour, keys=()).walk().trail
    for beginning in ("one of a crowd 2", "stranger 1", "one that comes"):
        assert len(labelled(trail, beginning)) == times


def test_a_story_is_the_same_to_the_byte_and_not_judged_by_what_it_says():
    trail = Walked("lanes", keys=()).walk().trail
    story = labelled(trail, "a story")
    assert {seen.request.expected for seen in story} == {None}
    assert len({json.dumps(seen.request.body) for seen in story}) == 1


# --- costs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour", [Behaviour(), Behaviour(block_tokens=256), Behaviour(block_tokens=128), BLIND]
)
@pytest.mark.parametrize("leg", [SESSIONS, LANES])
def test_a_leg_says_about_what_it_costs(leg, behaviour):
    walked = Walked(leg.name, behaviour=behaviour, keys=())
    walked.tokens = SESSIONS_LEAST * 10_000  # few sessions
    walked.walk()
    spent = sum(
        seen.reply.prompt_tokens or 0
        for seen in own(walked.trail)
        if seen.role is not Role.REFERENCE and seen.request.label != "control"
    )
    assert spent == pytest.approx(leg.cost(walked.facts), rel=0.15)
