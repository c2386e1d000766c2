"""The leg of long prompts: forks, hang-ups and other salts at the length that was proven."""

import pytest
from leg_walks import BARE, JUDGED, Walked

from surefoot.probe.legs_length import APART_MORE, ENDS, LEAVES, LONG, LONG_ORDER
from surefoot.probe.proofs import PROOFS
from surefoot.probe.trail import Role
from surefoot.probe.verdicts import Verdict
from surefoot.testing import broken_engine
from surefoot.testing.broken_faults import Behaviour, Fault, Skills

ASKED = (Role.WARM, Role.PLAIN)
WEAK = Behaviour(skills=Skills(recall_tokens=3_200))


def system(seen):
    return seen.request.body["messages"][0]["content"]


def walked(fault=None, behaviour=None):
    return Walked("long", fault, behaviour, keys=()).walk().trail


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(),
        WEAK,
        BARE,
        Behaviour(context=2048),
        Behaviour(block_tokens=256),
        Behaviour(offers_logprobs=False),
        Behaviour(offers_counters=False),
        Behaviour(unsteady=0.4),
    ],
)
def test_an_unbroken_server_is_clean(behaviour):
    found = Walked("long", behaviour=behaviour, keys=()).judged
    assert found.verdict is Verdict.CLEAN, found.reason


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        (Fault.DONOR_LENGTH, Verdict.CONTAMINATED),
        (Fault.POISONED, Verdict.WRONG),
        (Fault.SALT_IGNORED, Verdict.CONTAMINATED),
        (Fault.WINDOW_LOST, Verdict.WRONG),
    ],
)
def test_faults_of_long_prompts_are_found(fault, verdict):
    found = Walked("long", fault, keys=()).judged
    assert found.verdict is verdict, found.reason


def test_a_lying_counter_proves_nothing():
    for fault in (Fault.COUNTER_ZERO, Fault.COUNTER_TOO_HIGH):
        assert Walked("long", fault, keys=()).judged.verdict is Verdict.INCONCLUSIVE


def test_the_newest_proof_is_replayed_first_and_each_twice():
    trail = walked(behaviour=WEAK)
    proofs = [seen for seen in trail.of(Role.COLD) if " at 3,000" in seen.request.label]
    again = [seen for seen in trail.of(*ASKED) if " at 3,000" in seen.request.label]
    assert len(proofs) == PROOFS
    assert len(again) == 2 * len(LONG_ORDER)
    assert [seen.role for seen in again] == [Role.WARM, Role.WARM, Role.PLAIN, Role.WARM]
    assert again[0].request is again[1].request is proofs[-1].request
    assert again[2].request is again[3].request is proofs[-2].request
    for seen in again:
        place = system(seen).index(seen.request.expected)
        assert len(system(seen)[:place].split()) < 60


def test_a_fork_leaves_a_long_text_at_half_and_knows_nothing_of_its_end():
    trail = walked()
    donor = next(seen for seen in trail.of(Role.COLD) if "ends with" in seen.request.label)
    leavers = [seen for seen in trail.of(*ASKED) if "leaves" in seen.request.label]
    place = trail.seen.index(donor)
    assert trail.seen[place + 1 : place + 3] == leavers
    assert [seen.role for seen in leavers] == [Role.WARM] * 2
    long, short = system(donor).split(), system(leavers[0]).split()
    alike = next(n for n, pair in enumerate(zip(long, short, strict=False)) if len({*pair}) > 1)
    assert alike == pytest.approx(LEAVES * len(long), rel=0.02)
    assert len(short) == pytest.approx(ENDS * len(long), rel=0.02)
    assert leavers[0].request.expected in system(donor)
    assert donor.request.expected is None
    assert donor.reply.prompt_tokens == pytest.approx(3_000, rel=0.05)


def test_a_long_prompt_is_left_before_it_is_answered_and_then_asked():
    trail = walked()
    (left,) = trail.of(Role.LEFT)
    place = trail.seen.index(left)
    after = trail.seen[place + 1 : place + 3]
    assert not left.reply.said
    assert [seen.role for seen in after] == [Role.PLAIN, Role.WARM]
    assert {seen.request.prompt for seen in after} == {left.request.prompt}
    assert after[0].reply.prompt_tokens == pytest.approx(3_000, rel=0.05)


@pytest.mark.parametrize(
    ("behaviour", "fault", "count"),
    [
        (Behaviour(), None, 1),
        (Behaviour(), Fault.SALT_IGNORED, 1 + APART_MORE),
        (Behaviour(knows_salts=False), None, 0),
    ],
)
def test_more_salts_are_asked_with_only_if_the_first_counts_as_shared(behaviour, fault, count):
    apart = walked(fault, behaviour).of(Role.APART)
    assert len({seen.request.body["cache_salt"] for seen in apart}) == len(apart) == count
    assert len({seen.request.prompt for seen in apart}) <= 1


@pytest.mark.parametrize("salts", [True, False])
@pytest.mark.parametrize(("context", "rung"), [(1_300, 1_000), (2_048, 1_500)])
def test_it_says_about_what_it_costs(context, rung, salts):
    behaviour = Behaviour(knows_salts=salts, context=context)
    leg = Walked("long", behaviour=behaviour, keys=()).walk()
    spent = sum(
        seen.reply.prompt_tokens
        for seen in leg.trail.of(Role.COLD, *JUDGED)
        if "phrasing" not in seen.request.label
    )
    least = LONG.cost(leg.facts)  # of the shortest rung
    assert spent * 1_000 == pytest.approx(least * rung, rel=0.15)


@pytest.mark.parametrize(("compute_s", "rung"), [(0.001, 3_000), (0.003, 1_000), (0.02, 1_000)])
def test_a_slow_server_is_asked_the_shortest_at_least(monkeypatch, compute_s, rung):
    monkeypatch.setattr(broken_engine, "COMPUTE_S", compute_s)
    leg = Walked("long", keys=())
    assert leg.judged.verdict is Verdict.CLEAN
    proofs = leg.trail.of(Role.COLD)[-PROOFS - 1 : -1]
    assert [one.request.label for one in proofs][-1] == f"proof {PROOFS} at {rung:,} tokens"
