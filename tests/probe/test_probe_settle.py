"""What is asked after a leg: what failed, what accuses, what is missing; and nothing else."""

import asyncio
from dataclasses import replace

import pytest
from scenes import COUNTED, RATE, Scene

from surefoot.probe.legs import Run, WayRound
from surefoot.probe.settle import AGAIN, FAILED_MOST, OWN_MISTAKES, STAGE_CONTROLS, settle
from surefoot.probe.tasks import Tasks
from surefoot.probe.trail import Role

ROUND = WayRound("a way round", fields=lambda: {"round": True})


class Answering:
    """Stands for a server that answers every code right."""

    patience_s = 30.0
    spent_tokens = 0

    def __init__(self, scene):
        self.scene = scene

    def clock(self):
        return 0.0

    async def ask(self, body, *, key=0, headers=None):
        code = body["messages"][0]["content"].split()[-1].rstrip(".")
        reply = self.scene.saw(Role.COLD, self.scene.request("x"), code).reply
        self.scene.trail.seen.pop()
        return reply


def settled(scene, *, way_round=None, whole=True):
    """Settle what a scene saw, and return the roles and labels of what was asked for that."""
    scene.trail.asker = asker = Answering(scene)
    facts = type(COUNTED)(counters=COUNTED.counters, noise_nat=0.0, way_round=way_round)
    run = Run(asker, scene.plants, Tasks(scene.plants), facts)
    before = len(scene.trail.seen)
    asyncio.run(settle(run, scene.trail, RATE, whole=whole))
    return [(seen.role, seen.request.label) for seen in scene.trail.seen[before:]]


@pytest.fixture
def scene():
    made = Scene()
    code = made.plants.code()
    made.pair(made.request("A", code), code, times=4)
    return made


def test_a_leg_that_is_clean_asks_only_for_references(scene):
    scene.saw(Role.PLAIN, scene.request("B", code := scene.plants.code()), code)
    assert settled(scene) == []
    assert settled(scene, way_round=ROUND) == [(Role.REFERENCE, "B")]


def test_what_failed_is_asked_once_more_even_after_half_a_walk(scene):
    failed = [scene.request(f"F{number}", scene.plants.code()) for number in range(FAILED_MOST + 1)]
    for request in (*failed, failed[0]):
        scene.saw(Role.WARM, request, "", error="500: boom")
    first = [(Role.PLAIN, request.label) for request in failed[:FAILED_MOST]]
    assert settled(scene, way_round=ROUND, whole=False) == first


def test_what_was_refused_for_being_too_many_is_not_asked_again(scene):
    seen = scene.saw(Role.WARM, scene.request("B", scene.plants.code()), "", error="429: later")
    scene.trail.seen[-1] = replace(seen, reply=replace(seen.reply, status=429))
    assert settled(scene, whole=False) == []


def test_a_reference_that_accuses_is_asked_once_more(scene):
    code = scene.plants.code()
    request = scene.request("B", code)
    scene.saw(Role.COLD, request, code)
    for _ in range(3):
        scene.saw(Role.WARM, request, code, cached=512, logprob=-1.9)
    assert settled(scene) == []
    assert settled(scene, way_round=ROUND) == [(Role.REFERENCE, "B")]


def test_without_logprobs_both_sides_are_asked_some_times():
    scene = Scene(logprobs=False)
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code)
    request = scene.request("B", code := scene.plants.code())
    scene.saw(Role.COLD, request, code)
    scene.saw(Role.WARM, request, "no", cached=512)
    once = [(Role.REFERENCE, "B"), (Role.PLAIN, "B")]
    assert settled(scene, way_round=ROUND) == once * AGAIN


def test_without_a_way_round_the_models_own_mistakes_are_counted(scene):
    scene.trail.fresh = lambda: scene.request("fresh", scene.plants.code())
    assert settled(scene) == []
    scene.saw(Role.PLAIN, scene.request("B", scene.plants.code()), "no")
    assert settled(scene)[:OWN_MISTAKES] == [(Role.COLD, "fresh")] * OWN_MISTAKES


def test_time_that_shows_too_little_gets_a_second_stage():
    scene = Scene(controls=2)
    scene.trail.fresh = lambda: scene.request("fresh", scene.plants.code())
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code)
    asked = settled(scene)
    assert asked == [(Role.COLD, "fresh")] * STAGE_CONTROLS + [(Role.WARM, "A")] * 3
