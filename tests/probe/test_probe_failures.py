"""When a warm path that fails is a fault, and when it may be an accident, a choice or a clock."""

import pytest
from scenes import COUNTED, RATE, Scene

from surefoot.probe.asking import NEVER, Reply, Token
from surefoot.probe.failures import suspect
from surefoot.probe.trail import Role, Seen
from surefoot.probe.verdicts import Verdict


@pytest.fixture
def scene():
    return Scene()


def chosen(scene, request, role, *tokens):
    """An answer of tokens: each its text, its logprob and that of the other choice."""
    shown = tuple(
        Token(text, logprob, ((text, logprob), (other, nat)))
        for text, logprob, other, nat in tokens
    )
    text = "".join(token.text for token in shown)
    reply = Reply(
        status=200,
        text=text,
        finish="stop",
        prompt_tokens=700,
        counters={"cached_tokens": 512 if role is Role.WARM else 0},
        tokens=shown,
        ttft_s=scene.time(0.1 if role is Role.WARM else 1.0),
    )
    scene.trail.seen.append(Seen(request, reply, role))


@pytest.mark.parametrize(
    ("logprob", "other", "verdict"),
    [
        (-0.70, -0.69, Verdict.DRIFT),  # a tie that went the other way
        (-2.0, -0.2, Verdict.DRIFT),  # drawn, from the very same likelihoods
        (-0.2, -3.0, Verdict.WRONG),  # certain of something else
    ],
)
def test_a_lost_code_is_wrong_only_where_the_choice_was_another(scene, logprob, other, verdict):
    for number in range(4):
        code = scene.plants.code()
        scene.pair(scene.request(f"B{number}", code), code)
    request = scene.request("A", mine := scene.plants.code())
    nats = (-2.0, -0.2) if logprob == -2.0 else (-0.70, -0.69)
    chosen(scene, request, Role.COLD, ("", -0.01, "x", -6.0), (mine, nats[1], "no", nats[0]))
    chosen(scene, request, Role.WARM, ("", -0.01, "x", -6.0), ("no", logprob, mine, other))
    assert scene.verdict().verdict is verdict


def test_without_logprobs_one_lost_code_may_be_chance_and_one_that_stays_lost_is_none():
    scene = Scene(logprobs=False)
    code = scene.plants.code()
    request = scene.request("A", code)
    scene.pair(request, code)
    scene.saw(Role.WARM, request, "no", cached=512)
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE
    assert "p = " in scene.verdict().reason
    scene = Scene(logprobs=False)
    request = scene.request("A", code)
    scene.saw(Role.COLD, request, code)
    for _ in range(5):
        scene.saw(Role.WARM, request, "no", cached=512)
        scene.saw(Role.REFERENCE, request, code)
    assert scene.verdict().verdict is Verdict.WRONG


@pytest.mark.parametrize("error", [NEVER, "500: boom"])
def test_an_error_is_no_chance_though_there_are_no_logprobs(error):
    scene = Scene(logprobs=False)
    code = scene.plants.code()
    request = scene.request("A", code)
    scene.pair(request, code, times=8)
    assert scene.verdict().verdict is Verdict.CLEAN
    scene.saw(Role.WARM, request, "", cached=512, error=error)
    assert scene.verdict().verdict is Verdict.WRONG


@pytest.mark.parametrize("error", [NEVER, "500: boom", "409: another request is processed"])
def test_what_fails_and_is_answered_when_asked_again_is_an_accident(scene, error):
    code = scene.plants.code()
    scene.pair(scene.request("B", code), code)
    first, second = (scene.request(f"A{number}", scene.plants.code()) for number in (1, 2))
    for request in (first, second):
        scene.saw(Role.PLAIN, request, "", error=error)
        scene.saw(Role.REFERENCE, request, request.expected)
    assert scene.verdict().verdict is Verdict.WRONG
    scene.saw(Role.PLAIN, first, first.expected)
    judged = scene.verdict()  # the second one failed in the same way
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "asked again it was answered" in judged.reason


@pytest.mark.parametrize(("cold", "warm"), [(None, "500: boom"), ("500: boom", None)])
def test_what_was_not_answered_is_no_suspect(scene, cold, warm):
    code = scene.plants.code()
    request = scene.request("A", code)
    scene.saw(Role.COLD, request, "" if cold else code, error=cold)
    scene.saw(Role.WARM, request, "" if warm else "no", cached=512, error=warm)
    assert suspect(scene.trail, COUNTED, RATE) is None


def test_a_refusal_without_a_reference_says_nothing_of_the_cache(scene):
    code = scene.plants.code()
    scene.pair(scene.request("B", code), code)
    longer = scene.request("A", scene.plants.code())
    reply = Reply(status=400, error="400: the prompt has 909 tokens, the longest has 768")
    scene.trail.seen.append(Seen(longer, reply, Role.PLAIN))
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("tokens", "verdict"), [(700, Verdict.WRONG), (1_000, Verdict.INCONCLUSIVE)]
)
def test_prompts_longer_than_any_that_was_answered_right_accuse_nobody(scene, tokens, verdict):
    scene.cold_answers(right=30)
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code)
    for number in range(4):
        request = scene.request(f"long {number}", scene.plants.code())
        reply = Reply(status=200, text="no", finish="stop", prompt_tokens=tokens)
        scene.trail.seen.append(Seen(request, reply, Role.PLAIN))
    assert scene.verdict().verdict is verdict


def test_one_code_that_is_lost_in_three_prompts_is_lost_once(scene):
    scene.cold_answers(right=30)
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code)
    lost = scene.plants.code()
    for number in range(3):
        scene.saw(Role.PLAIN, scene.request(f"B{number}", lost, note=str(number)), "no")
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE
    for number in range(2):
        scene.saw(Role.PLAIN, scene.request(f"C{number}", scene.plants.code()), "no")
    assert scene.verdict().verdict is Verdict.WRONG


def test_a_reference_that_does_not_repeat_itself_accuses_nobody(scene):
    code = scene.plants.code()
    request = scene.request("A", code)
    scene.saw(Role.COLD, request, code)
    assert suspect(scene.trail, COUNTED, RATE) is None
    warm, *_ = [scene.saw(Role.WARM, request, code, cached=512, logprob=-1.5) for _ in range(3)]
    assert suspect(scene.trail, COUNTED, RATE) is warm
    assert scene.verdict().verdict is Verdict.WRONG
    scene.saw(Role.REFERENCE, request, code)
    assert scene.verdict().verdict is Verdict.WRONG
    scene.saw(Role.REFERENCE, request, code, logprob=-1.4)
    judged = scene.verdict()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "does not repeat itself" in judged.reason
