"""When a code, a picture's answer or a tenant's state is another's, and when it may be chance."""

import pytest
from scenes import COLD_S, WARM_S, Scene

from surefoot.probe.trail import Role
from surefoot.probe.verdicts import Verdict


@pytest.fixture
def scene():
    return Scene()


@pytest.mark.parametrize(
    ("here", "hits", "invented", "verdict"),
    [
        (True, 1, 0, Verdict.CONTAMINATED),
        (True, 1, 3, Verdict.CONTAMINATED),
        (True, 1, 8, Verdict.WRONG),  # one of nine made-up numbers is one of 20 codes: 0.02 %
        (True, 2, 8, Verdict.CONTAMINATED),
        (False, 1, 0, Verdict.WRONG),  # a made-up number is one of the run's 220 codes: 0.02 %
        (False, 2, 0, Verdict.CONTAMINATED),
        (False, 2, 8, Verdict.CONTAMINATED),
    ],
)
def test_one_hit_among_invented_codes_may_be_chance(scene, here, hits, invented, verdict):
    legs = {"elsewhere": 200, "leg": 20 - hits - invented}
    codes = {leg: [scene.plants.code() for _ in range(count)] for leg, count in legs.items()}
    for leg, told in codes.items():
        for code in told:
            scene.plants.told(f"{leg}: {code}", {"messages": [code]})
    planted = codes["leg" if here else "elsewhere"]
    for number in range(hits + invented):
        code = scene.plants.code()
        said = planted[number] if number < hits else f"9{number}0517"
        scene.pair(scene.request(f"A{number}", code), code, warm_text=said)
    assert scene.verdict().verdict is verdict


def test_one_number_in_many_answers_is_made_up_once(scene):
    told = [scene.plants.code() for _ in range(200)]
    for code in told:
        scene.plants.told(f"elsewhere: {code}", {"messages": [code]})
    for number in range(3):
        code = scene.plants.code()
        scene.pair(scene.request(f"A{number}", code), code, warm_text=told[0])
    assert scene.verdict().verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("wides", "talls", "verdict"),
    [
        ((-0.1, -0.3), (-0.1, -0.3), Verdict.CONTAMINATED),
        ((-0.1, -0.3), (-0.1, -0.2), Verdict.CLEAN),  # one pair may be equal by chance
        ((-0.1, -0.3), (-0.2, -0.4), Verdict.CLEAN),
        ((-0.1,), (-0.1,), Verdict.INCONCLUSIVE),
        ((-0.1, -0.1), (-0.1, -0.1), Verdict.INCONCLUSIVE),  # too coarse to tell any apart
        ((0.0, -9999.0), (0.0, -9999.0), Verdict.INCONCLUSIVE),  # certain, or not at all
    ],
)
def test_twins_equal_to_the_last_digit_are_contamination(scene, wides, talls, verdict):
    scene.twins(wides, talls)
    reaching(scene, -0.5, -0.6)
    assert scene.verdict().verdict is verdict


def reaching(scene, one, other):
    """Pictures that share no bytes, and answers to them that differ or do not."""
    scene.trail.reaching.append(
        (
            scene.saw(Role.PLAIN, scene.request("wide"), "Red", logprob=one),
            scene.saw(Role.PLAIN, scene.request("almost the same, tall"), "Red", logprob=other),
        )
    )


def test_twins_prove_nothing_where_what_differs_may_not_reach_the_model(scene):
    scene.twins((-0.1, -0.3), (-0.1, -0.3))
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE
    reaching(scene, -0.5, -0.5)
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE
    scene.trail.reaching.clear()
    reaching(scene, -0.5, -0.6)
    assert scene.verdict().verdict is Verdict.CONTAMINATED


def test_twins_that_differ_without_the_cache_need_no_other_proof(scene):
    for accused in scene.twins((-0.1, -0.3), (-0.1, -0.3)):
        nat = accused.reply.tokens[0].logprob - 0.01
        scene.saw(Role.REFERENCE, accused.request, "Red", logprob=nat)
    assert scene.verdict().verdict is Verdict.CONTAMINATED


@pytest.mark.parametrize(
    ("seconds", "apart", "verdict"),
    [
        (WARM_S, 4, Verdict.CONTAMINATED),
        (COLD_S, 4, Verdict.INCONCLUSIVE),
        (WARM_S, 1, Verdict.INCONCLUSIVE),
    ],
)
def test_a_counter_that_names_one_of_them_lets_time_speak_for_all(seconds, apart, verdict):
    scene = Scene(controls=12)
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code)
    salted = scene.request("A", code, cache_salt="other")
    scene.saw(Role.APART, salted, code, seconds=seconds, cached=512)
    for _ in range(apart - 1):
        scene.saw(Role.APART, salted, code, seconds=seconds)
    assert scene.verdict().verdict is verdict
