"""Trails made by hand, one for each way to each verdict."""

import pytest
from scenes import COLD_S, COUNTED, UNCOUNTED, WARM_S, Scene

from surefoot.probe.asking import NEVER
from surefoot.probe.failures import FAR_LEAST_NAT
from surefoot.probe.legs import Facts
from surefoot.probe.trail import Request, Role
from surefoot.probe.verdicts import Verdict


@pytest.fixture
def scene():
    return Scene()


def test_equal_answers_and_two_witnesses_are_clean(scene):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code)
    judged = scene.verdict()
    assert judged.verdict is Verdict.CLEAN
    assert judged.reuse.shown_by == ("cached_tokens", "ttft")
    assert judged.reuse.tokens == 512
    assert "equal" in judged.reason


def test_time_alone_is_enough_where_a_server_counts_nothing(scene):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code, cached=0)
    assert scene.verdict(UNCOUNTED).verdict is Verdict.CLEAN


def test_a_code_of_another_request_is_contamination(scene):
    mine, theirs = scene.plants.code(), scene.plants.code()
    a, b = scene.request("A", mine), scene.request("B", theirs)
    scene.pair(a, mine)
    scene.pair(b, theirs, warm_text=mine)
    judged = scene.verdict()
    assert judged.verdict is Verdict.CONTAMINATED
    accused, donor = judged.evidence[0].shown
    assert (accused.label, donor.label) == ("B", "A")
    assert mine in accused.answer
    assert mine in judged.reason


def test_contamination_of_a_never_seen_prompt_counts_too(scene):
    mine, theirs = scene.plants.code(), scene.plants.code()
    scene.pair(scene.request("A", mine), mine)
    scene.saw(Role.COLD, scene.request("B", theirs), mine)
    assert scene.verdict().verdict is Verdict.CONTAMINATED


def test_a_foreign_code_that_the_answer_without_the_cache_holds_too_proves_nothing(scene):
    mine, theirs = scene.plants.code(), scene.plants.code()
    scene.pair(scene.request("A", mine), mine)
    b = scene.request("B", theirs)
    scene.saw(Role.PLAIN, b, mine)
    scene.saw(Role.REFERENCE, b, mine)
    assert scene.verdict().verdict is not Verdict.CONTAMINATED


def test_a_code_of_ones_own_request_is_no_contamination(scene):
    mine, theirs = scene.plants.code(), scene.plants.code()
    scene.pair(scene.request("A", mine), mine)
    both = scene.request("both", theirs, note=f"not {mine}")
    scene.pair(both, f"{theirs}, not {mine}")
    assert scene.verdict().verdict is Verdict.CLEAN


def colours(scene, answers, *, reference=None):
    words = ("red", "green", "blue")
    for word, answer in zip(words, answers, strict=True):
        others = tuple(other for other in words if other != word)
        body = {"messages": [{"role": "user", "content": word}]}
        request = Request(f"picture {word}", body, expected=word, others=others)
        scene.saw(Role.PLAIN, request, answer)
        for _ in range(3):
            scene.saw(Role.WARM, request, answer, cached=512)
        if reference is not None:
            scene.saw(Role.REFERENCE, request, reference(word))


def test_another_pictures_answer_is_contamination_where_the_reference_is_right(scene):
    colours(scene, ("Red", "Red", "Blue"), reference=str.capitalize)
    judged = scene.verdict()
    assert judged.verdict is Verdict.CONTAMINATED
    assert [one.label for one in judged.evidence[0].shown] == ["picture green", "picture red"]


def test_one_mistaken_picture_without_a_reference_may_be_the_models_own(scene):
    colours(scene, ("Red", "Red", "Blue"))
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE


def test_two_mistaken_pictures_are_no_accident_for_a_model_that_knows_colours(scene):
    colours(scene, ("Red", "Red", "Red"))
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE
    scene.cold_answers(right=40)
    assert scene.verdict().verdict is Verdict.CONTAMINATED


def test_a_model_that_mostly_guesses_accuses_nobody_with_a_word(scene):
    colours(scene, ("Red", "Red", "Blue"), reference=str.capitalize)
    scene.cold_answers(right=1, wrong=2)
    assert scene.verdict().verdict is Verdict.WRONG  # it changed, whatever the word


def test_a_mistake_that_the_reference_makes_too_is_the_models(scene):
    colours(
        scene, ("Red", "Red", "Blue"), reference=lambda word: "Blue" if word == "blue" else "Red"
    )
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE


def test_a_lost_fact_is_wrong(scene):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code, warm_text="I do not know.")
    judged = scene.verdict()
    assert judged.verdict is Verdict.WRONG
    assert "lost" in judged.reason


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [("", None, "nothing"), ("", NEVER, "never answered"), ("", "500: boom", "boom")],
)
def test_silence_and_failures_on_the_warm_path_are_wrong(scene, text, error, words):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code, warm_text=text, error=error)
    judged = scene.verdict()
    assert judged.verdict is Verdict.WRONG
    assert words in judged.reason


def test_a_fact_that_was_lost_cold_too_is_the_models(scene):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), "I do not know.")
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE


def test_first_tokens_far_apart_are_wrong_and_near_ones_drift(scene):
    code = scene.plants.code()
    request = scene.request("A", code)
    scene.pair(request, code, logprob=-0.1 - FAR_LEAST_NAT * 1.01)
    assert scene.verdict().verdict is Verdict.WRONG
    near = Scene()
    near.pair(near.request("A", code), code, logprob=-0.11)
    judged = near.verdict()
    assert judged.verdict is Verdict.DRIFT
    assert "3 of 3" in judged.reason
    assert "0.0100 nat" in judged.reason
    assert "(0 in text)" in judged.reason


def test_what_is_far_grows_with_the_servers_own_noise_up_to_a_limit(scene):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code, logprob=-1.9)
    assert scene.verdict(Facts(counters=("cached_tokens",), noise_nat=0.2)).verdict is Verdict.DRIFT
    scene = Scene()
    scene.pair(scene.request("A", code), code, logprob=-4.5)
    noisy = Facts(counters=("cached_tokens",), noise_nat=50.0)
    assert scene.verdict(noisy).verdict is Verdict.WRONG


def test_a_model_that_fails_by_itself_is_not_the_servers_fault(scene):
    lone_failures(scene, 3, 4)
    scene.cold_answers(right=12, wrong=8)
    assert scene.verdict().verdict is Verdict.INCONCLUSIVE


def test_right_answers_are_not_claimed_where_most_are_wrong(scene):
    for number in range(4):
        code = scene.plants.code()
        text = code if number else "I do not know."
        scene.pair(scene.request(f"A{number}", code), text)
    judged = scene.verdict()
    assert judged.verdict is Verdict.CLEAN
    assert "3 of them wrong with and without" in judged.reason
    code = scene.plants.code()
    scene.pair(scene.request("A5", code), "I do not know.")
    judged = scene.verdict()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "2 of 5" in judged.reason


def lone_failures(scene, failures, of):
    for number in range(of):
        code = scene.plants.code()
        text = "I do not know." if number < failures else code
        scene.saw(Role.WARM, scene.request(f"B{number}", code), text, cached=512)


@pytest.mark.parametrize(
    ("failures", "of", "verdict"),
    [
        (0, 4, Verdict.CLEAN),
        (1, 4, Verdict.INCONCLUSIVE),
        (3, 4, Verdict.WRONG),
        (2, 4, Verdict.INCONCLUSIVE),
        (2, 6, Verdict.INCONCLUSIVE),
        (1, 1, Verdict.INCONCLUSIVE),
    ],
)
def test_without_references_most_must_fail_and_more_than_one(scene, failures, of, verdict):
    lone_failures(scene, failures, max(of, 1))
    scene.cold_answers(right=20)
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code)
    assert scene.verdict().verdict is verdict


def test_a_counter_alone_proves_nothing(scene):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code, seconds=COLD_S)
    judged = scene.verdict()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "lies" in judged.reason
    assert judged.reuse.shown_by == ("cached_tokens",)


def test_what_all_templates_begin_with_is_no_reuse(scene):
    """Some servers count the few tokens that every prompt of a template shares."""
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code, cached=20)
    assert scene.verdict().reuse.shown_by == ("ttft",)
    scene = Scene(controls=20)
    apart(scene, seconds=COLD_S, cached=20)
    assert scene.verdict().verdict is Verdict.CLEAN


def test_time_against_the_counters_word_proves_nothing(scene):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code, cached=0)
    judged = scene.verdict()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "the counter lies" in judged.reason


def test_no_reuse_is_inconclusive_even_where_answers_differ(scene):
    code = scene.plants.code()
    scene.pair(scene.request("A", code), code, cached=0, seconds=COLD_S, logprob=-0.2)
    judged = scene.verdict()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.reuse.shown_by == ()


def test_a_never_sent_prompt_that_is_counted_as_reused_is_noticed(scene):
    code = scene.plants.code()
    request = scene.request("A", code)
    scene.saw(Role.COLD, request, code, cached=690)
    for _ in range(3):
        scene.saw(Role.WARM, request, code, cached=690)
    judged = scene.verdict()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "seed" in judged.reason


def test_a_server_that_does_not_repeat_itself_is_accused_of_contamination_only(scene):
    restless = Facts(counters=("cached_tokens",), repeats=False)
    code, other = scene.plants.code(), scene.plants.code()
    scene.pair(scene.request("A", code), code, warm_text="I do not know.")
    judged = scene.verdict(restless)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "repeat" in judged.reason
    scene.pair(scene.request("B", other), other, warm_text=code)
    assert scene.verdict(restless).verdict is Verdict.CONTAMINATED


def test_an_early_end_is_its_reason_unless_a_fault_was_proven(scene):
    mine, theirs = scene.plants.code(), scene.plants.code()
    scene.pair(scene.request("A", mine), mine)
    judged = scene.verdict(unsettled="the budget ended")
    assert (judged.verdict, judged.reason) == (Verdict.INCONCLUSIVE, "the budget ended")
    scene.pair(scene.request("B", theirs), theirs, warm_text=mine)
    assert scene.verdict(unsettled="the budget ended").verdict is Verdict.CONTAMINATED


def apart(scene, *, seconds, cached, times=4):
    code = scene.plants.code()
    scene.pair(scene.request("A", code, cache_salt="a"), code)
    for number in range(times):
        request = scene.request(f"salt {number}", code, cache_salt=f"b{number}")
        scene.saw(Role.APART, request, code, seconds=seconds, cached=cached)
        scene.saw(Role.REFERENCE, request, code)


@pytest.mark.parametrize(
    ("seconds", "cached", "facts", "verdict"),
    [
        (WARM_S, 512, COUNTED, Verdict.CONTAMINATED),
        (COLD_S, 0, COUNTED, Verdict.CLEAN),
        (COLD_S, 512, COUNTED, Verdict.INCONCLUSIVE),
        (WARM_S, 0, COUNTED, Verdict.INCONCLUSIVE),
        (COLD_S, 0, UNCOUNTED, Verdict.CLEAN),
    ],
)
def test_state_shared_with_another_tenant_needs_two_witnesses(seconds, cached, facts, verdict):
    scene = Scene(controls=20)
    apart(scene, seconds=seconds, cached=cached)
    assert scene.verdict(facts).verdict is verdict


def test_time_alone_accuses_of_sharing_only_beyond_doubt():
    scene = Scene(controls=30)
    apart(scene, seconds=WARM_S, cached=0)
    # Of other legs, when the server may have been busier, no control counts against it.
    assert scene.verdict(UNCOUNTED).verdict is Verdict.INCONCLUSIVE
    scene.cold_answers(right=20)
    assert scene.verdict(UNCOUNTED).verdict is Verdict.CONTAMINATED
    scene = Scene(controls=4)
    apart(scene, seconds=WARM_S, cached=0, times=2)
    assert scene.verdict(UNCOUNTED).verdict is not Verdict.CONTAMINATED
