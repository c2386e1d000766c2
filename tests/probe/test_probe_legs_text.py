"""The text legs make the exchanges they claim, and catch the faults they are meant for."""

import json
import re
from dataclasses import replace

import httpx
import pytest
from leg_walks import BARE, Model, Walked, labelled, own, system, walked

from surefoot.probe import legs_text
from surefoot.probe.legs import Facts
from surefoot.probe.legs_length import REPLAYS, WITNESS_REPLAYS
from surefoot.probe.legs_many import SESSIONS_LEAST, SESSIONS_MOST
from surefoot.probe.legs_text import TEXT_LEGS
from surefoot.probe.proofs import PROOFS
from surefoot.probe.trail import Budget, NotApplicable, Role, Unsettled
from surefoot.probe.verdicts import Verdict
from surefoot.probe.witnesses import Timed
from surefoot.testing.broken_faults import Behaviour, Fault, Skills

LEGS = {leg.name: leg for leg in TEXT_LEGS}
ASKED = (Role.WARM, Role.PLAIN)


# --- against the broken server -------------------------------------------------------------------


def judged(name, fault=None, behaviour=None, seed=1):
    return Walked(name, fault, behaviour, seed=seed, keys=()).judged


@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(block_tokens=256), BARE])
@pytest.mark.parametrize("name", LEGS)
def test_an_unbroken_server_is_clean(name, behaviour):
    found = judged(name, behaviour=behaviour)
    assert found.verdict is Verdict.CLEAN, found.reason


CAUGHT = [
    ("boundaries", Fault.LAST_TOKEN_TWICE, Verdict.WRONG),
    ("boundaries", Fault.WRONG_BOUNDARY, Verdict.WRONG),
    ("boundaries", Fault.EMPTY_ON_HIT, Verdict.WRONG),
    ("boundaries", Fault.COUNTER_ZERO, Verdict.INCONCLUSIVE),
    ("boundaries", Fault.COUNTER_TOO_HIGH, Verdict.INCONCLUSIVE),
    ("interleave", Fault.WRONG_BOUNDARY, Verdict.WRONG),
    ("fork", Fault.DONOR_LENGTH, Verdict.CONTAMINATED),
    ("turns", Fault.REWOUND, Verdict.CONTAMINATED),
    ("sessions", Fault.EVICTED_MIXUP, Verdict.CONTAMINATED),
    ("lanes", Fault.SHARED_ENTRY, Verdict.CONTAMINATED),
    ("edits", Fault.DONOR_LENGTH, Verdict.CONTAMINATED),
    ("cancelled", Fault.POISONED, Verdict.WRONG),
    ("long", Fault.WINDOW_LOST, Verdict.WRONG),
]


@pytest.mark.parametrize(("name", "fault", "verdict"), CAUGHT)
def test_each_leg_catches_the_faults_it_is_for(name, fault, verdict):
    found = judged(name, fault)
    assert found.verdict is verdict, found.reason


@pytest.mark.parametrize(
    ("name", "fault", "verdict"), [row for row in CAUGHT if row[2] is not Verdict.INCONCLUSIVE]
)
def test_it_does_so_on_servers_that_offer_nothing_but_answers(name, fault, verdict):
    found = judged(name, fault, BARE)
    assert found.verdict is verdict, found.reason


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("turns", Fault.ANSWER_SHIFTED),
        ("cancelled", Fault.POISONED_IN_DECODE),
    ],
)
def test_a_state_that_damages_no_code_shows_in_logprobs(name, fault):
    found = judged(name, fault)
    assert found.verdict is Verdict.WRONG, found.reason


@pytest.mark.parametrize("when", legs_text.HANG_UPS)
def test_a_hang_up_at_any_time_shows_a_poisoned_state(monkeypatch, when):
    monkeypatch.setattr(legs_text, "HANG_UPS", (when,))
    assert judged("cancelled", Fault.POISONED).verdict is Verdict.WRONG


# --- the exchanges -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEGS)
def test_what_is_asked_again_is_the_same_to_the_byte_and_was_cold_before_it_was_warm(name):
    trail, _ = walked(name)
    known = []
    for seen in trail.seen:
        before = [one for one in known if one.request.prompt == seen.request.prompt]
        assert seen.role is not Role.COLD or not before
        assert all(json.dumps(one.request.body) == json.dumps(seen.request.body) for one in before)
        known.append(seen)
    assert any(seen.role is Role.WARM for seen in trail.seen)


@pytest.mark.parametrize("name", LEGS)
def test_texts_differ_from_their_first_words_on_unless_they_share_a_beginning_on_purpose(name):
    trail, _ = walked(name)
    cold = [json.dumps(seen.request.body) for seen in trail.of(Role.COLD)]
    assert len({re.findall(r"File \w+\.", body)[0] for body in cold}) == len(cold)


@pytest.mark.parametrize("name", LEGS)
def test_a_leg_asks_for_about_what_it_says(name):
    facts = Facts(length=600, block_tokens=16, context_tokens=1_300)
    budget = Budget(12 * 2 * SESSIONS_LEAST * 600, 600.0, 0.0)  # few sessions
    trail, _ = walked(name, facts=facts, budget=budget)
    proofs = {"long": 0, "turns": 2 * PROOFS}.get(name, PROOFS)
    asked = trail.asker.spent_tokens - proofs * facts.length
    assert 0.8 * LEGS[name].cost(facts) < asked < 1.25 * LEGS[name].cost(facts)


@pytest.mark.parametrize(
    "model",
    [
        Model(),
        Model(uneven="BCDFGH"),
        Model(uneven="BCDFGH", wide=("yes",)),
        Model(uneven="BCDFGH", wide=("ferry", "and")),
    ],
)
@pytest.mark.parametrize("block", [1, 16, 100, 256])
def test_boundaries_are_hit_to_the_token(model, block):
    trail, _ = walked("boundaries", model, Facts(length=600, block_tokens=block))
    unit = block * round(256 / block)
    wanted = {k * unit + more for k in (1, 2) for more in (-1, 0, 1)}
    again = [seen for seen in own(trail) if seen.role in ASKED]
    times = {length: sum(s.reply.prompt_tokens == length for s in again) for length in wanted}
    assert sum(times.values()) == len(again)
    assert set(times.values()) <= {REPLAYS, WITNESS_REPLAYS}
    for seen in again:
        assert f"({seen.reply.prompt_tokens} long)" in seen.request.label
        whole = (seen.reply.prompt_tokens - 1) // block * block
        assert (seen.role is Role.WARM) == (whole >= 0.75 * seen.reply.prompt_tokens)
    tried = [seen for seen in labelled(trail, "prompt for") if seen.role is Role.COLD]
    assert len(tried) == len(wanted)  # the first try hits


def test_boundaries_come_near_the_usual_length_where_that_is_far():
    trail, _ = walked("boundaries", facts=Facts(length=1_400, block_tokens=256))
    lengths = {seen.reply.prompt_tokens for seen in own(trail) if seen.role in ASKED}
    assert lengths == {255, 256, 257, 511, 512, 513, 1_279, 1_280, 1_281}


def test_boundaries_missed_three_times_are_asked_as_they_are():
    class Odd(Model):
        def tokens(self, text):
            return super().tokens(text) // 2 * 2  # a tokenizer that knows even lengths only

    trail, _ = walked("boundaries", Odd())
    missed = labelled(trail, "prompt for 255 tokens")
    assert [seen.role for seen in missed] == [Role.COLD] * 3 + [Role.WARM] * WITNESS_REPLAYS
    assert f"({missed[-1].reply.prompt_tokens} long)" in missed[-1].request.label


def test_boundaries_without_counted_tokens_are_lengths_in_a_row():
    trail, _ = walked("boundaries", Model(counts=False), Facts(length=600))
    words = [len(system(seen).split()) for seen in labelled(trail, "prompt for")]
    assert len(words) == 2 * 3 + 4 * REPLAYS + 2 * WITNESS_REPLAYS
    for lengths in (sorted(set(words))[:3], sorted(set(words))[3:]):
        assert lengths == [lengths[0], lengths[0] + 1, lengths[0] + 2]


def test_boundaries_have_controls_of_their_own_length():
    trail, _ = walked("boundaries", Model(uneven="BCDFGH"))
    control = Model().tokens(json.dumps(trail.fresh().body))
    assert control == pytest.approx(512, abs=15)


def test_interleave_takes_turns_and_then_both_at_once():
    trail, model = walked("interleave")
    turns = [(seen.request.label, seen.role) for seen in own(trail)]
    a, b, (cold, warm, plain) = "A1", "B1", (Role.COLD, Role.WARM, Role.PLAIN)
    assert turns[: len(turns) // 2] == [
        *((a, cold), (a, warm), (b, plain), (a, warm), (b, plain), (a, plain), (a, warm))
    ]
    assert model.most_at_once == 2
    one, other = labelled(trail, "A1")[0], labelled(trail, "B1")[0]
    assert system(other).startswith(f"{system(one)} ")
    assert len(system(other)) > 1.4 * len(system(one))
    assert other.request.body["max_tokens"] == legs_text.LONG_ANSWER_TOKENS


@pytest.mark.parametrize(("block", "least"), [(None, 0.1), (256, 0.527), (400, 0.767)])
def test_forks_leave_a_longer_text_at_two_depths_each_for_the_first_time(block, least):
    trail, _ = walked("fork", facts=Facts(length=600, block_tokens=block))
    for number, depths in enumerate(legs_text.FORK_DEPTHS, 1):
        donor = labelled(trail, f"A{number}")[0]
        whole = system(donor).split()
        branches = [
            next(seen for seen in own(trail) if seen.request.label == label)
            for label in (f"B{number}", f"B{number} from earlier on")
        ]
        for branch, depth in zip(branches, depths, strict=True):
            words = system(branch).split()
            shared = next(i for i in range(len(words)) if words[i] != whole[i])
            assert shared > (block or 0)
            assert shared == pytest.approx(max(depth, least) * len(words), abs=5)
            assert len(words) == pytest.approx(585, abs=5)  # as long as its controls
            assert branch.role is Role.WARM
            assert donor.request.expected not in json.dumps(branch.request.body)
        assert len(whole) > 1.4 * 600


@pytest.mark.parametrize(
    ("tokens", "seconds", "cold_s", "count"),
    [
        (10**7, 1e9, 0.1, SESSIONS_MOST),
        (600_000, 1e9, 0.1, 20),
        (10**7, 600.0, 1.5, 17),
        (100_000, 1e9, 0.1, SESSIONS_LEAST),
    ],
)
def test_sessions_are_as_many_as_the_budget_allows(tokens, seconds, cold_s, count):
    controls = [Timed(600, cold_s)]
    budget = Budget(tokens, seconds, 0.0)
    trail, _ = walked("sessions", budget=budget, controls=controls)
    sessions = {seen.request.label for seen in labelled(trail, "session")}
    assert len(sessions) == pytest.approx(count, abs=1)


class OneTurn(Model):
    """Finds no code past an assistant's turn."""

    async def __call__(self, request):
        reply = await super().__call__(request)
        if "assistant" in request.content.decode():
            return httpx.Response(200, json={"choices": [{"message": {"content": "Well."}}]})
        return reply


def test_edits_replace_a_code_by_one_as_long_and_go_back():
    trail, _ = walked("edits")
    first = own(trail)[:8]
    original, edited = first[0], first[2]
    swapped = json.dumps(original.request.body).replace(
        original.request.expected, edited.request.expected
    )
    assert swapped == json.dumps(edited.request.body)
    names = [seen.request.label.split(" with")[0] for seen in first]
    assert names == ["original 1"] * 2 + ["edit 1", "original 1"] + ["edit 1"] * 3 + ["original 1"]
    anew = [seen.request.body["messages"] for seen in first[5:7]]
    assert [turns[2]["content"] for turns in anew] == [*legs_text.ANSWERS]
    assert all(turns[:2] == edited.request.body["messages"][:2] for turns in anew)


@pytest.mark.parametrize("model", [Model(), OneTurn()])
def test_edits_end_with_the_same_words_in_other_case_and_by_another_role(model):
    trail, _ = walked("edits", model)
    original = [seen for seen in own(trail) if seen.request.label == "original 1"][-1]
    recased, by_user = own(trail)[-legs_text.SPELLINGS :]
    assert (recased.role, by_user.role) == (Role.PLAIN, Role.PLAIN)
    first, *others = recased.request.body["messages"]
    assert others == original.request.body["messages"][1:]
    assert first["content"] != system(original)
    assert first["content"].lower() == system(original).lower()
    half = len(system(original)) // 3
    assert first["content"][:half] == system(original)[:half]
    turns = by_user.request.body["messages"]
    assert [one["role"] for one in turns] == ["user", "assistant", "user"]
    assert turns[0]["content"] == system(original)
    assert (recased.request.expected, by_user.request.expected) == (
        original.request.expected,
        None,
    )


def test_edits_of_a_code_at_the_beginning_are_no_witness_of_reuse():
    trail, _ = walked("edits", OneTurn())
    edited = labelled(trail, "edit 1")
    assert [seen.role for seen in edited] == [Role.PLAIN, *[Role.WARM] * 3]
    anew = [seen.request for seen in edited if " with " in seen.request.label]
    assert [request.expected for request in anew] == [None, None]
    assert all(request.body["messages"][-1]["role"] == "user" for request in anew)


def test_cancelled_asks_whole_what_it_left():
    trail, model = walked("cancelled")
    for number in range(1, len(legs_text.HANG_UPS) + 1):
        left, first, *_ = labelled(trail, f"left {number}")
        assert (left.role, first.role) == (Role.LEFT, Role.PLAIN)
        wire = [body["messages"] for body in model.bodies]
        messages = first.request.body["messages"]
        assert wire.count(messages) == 4
        sibling = labelled(trail, f"sibling {number}")[0]
        assert system(sibling) == system(first)
        assert sibling.request.expected != first.request.expected
        before = wire[wire.index(messages) + 1 :]
        assert before[0] == messages  # nothing came between leaving it and asking it
    stories = [body for body in model.bodies if legs_text.STORY in json.dumps(body)]
    assert len(stories) == len(legs_text.HANG_UPS) + 1


def test_cancelled_goes_on_from_the_last_story_that_it_left():
    trail, _ = walked("cancelled")
    left, gone_on = labelled(trail, "story 3")
    assert (left.role, gone_on.role) == (Role.LEFT, Role.WARM)
    *told, answer, turn = gone_on.request.body["messages"]
    assert told == left.request.body["messages"]
    assert answer == {"role": "assistant", "content": left.reply.said}
    assert turn["content"] == legs_text.STORY
    assert own(trail)[-1] is gone_on


def test_cancelled_goes_on_from_a_stand_in_where_nothing_came():
    class Silent(Model):
        def answer(self, body):
            story = legs_text.STORY in json.dumps(body)
            return "" if story else super().answer(body)

    trail, _ = walked("cancelled", Silent())
    gone_on = own(trail)[-1].request.body["messages"]
    assert gone_on[-2]["content"] == legs_text.ANSWERS[0]


def test_cancelled_hangs_up_before_the_answer_begins():
    _, model = walked("cancelled", controls=[Timed(600, 0.0)])
    assert model.left == sum(when is None for when in legs_text.HANG_UPS)


# --- the ladder ----------------------------------------------------------------------------------


def rungs(trail):
    """The rungs that were tried, with how many proofs each took."""
    found = [seen for seen in trail.of(Role.COLD) if " at " in seen.request.label]
    lengths = [round(seen.reply.prompt_tokens, -2) for seen in found]
    return {length: lengths.count(length) for length in dict.fromkeys(lengths)}


def test_long_takes_the_first_rung_that_the_model_can_do_and_leaves_the_others_at_once():
    trail, _ = walked("long", Model(recall_tokens=3_500))
    # Two phrasings are tried on a rung, each up to its first wrong answer.
    assert rungs(trail) == {6_000: 2, 4_000: 2, 3_000: PROOFS}


@pytest.mark.parametrize(
    ("context", "first"),
    [(8_192, 6_000), (4_200, 4_000), (4_127, 3_000), (2_228, 2_100), (1_700, 1_500)],
)
def test_long_stays_within_the_context(context, first):
    facts = Facts(length=600, context_tokens=context)
    trail, _ = walked("long", facts=facts)
    assert rungs(trail) == {first: PROOFS}


def test_long_does_not_apply_where_no_rung_fits():
    with pytest.raises(NotApplicable, match="fits"):
        walked("long", facts=Facts(length=600, context_tokens=1_100))


def test_long_is_unsettled_where_the_model_can_do_no_rung():
    with pytest.raises(Unsettled, match=r"6,000: the model misses the fact; .*2,100"):
        walked("long", Model(recall_tokens=700))


@pytest.mark.parametrize(
    ("per_token_s", "first"), [(0.000_88, 4_000), (0.0011, 3_000), (0.0016, 2_100), (0.0023, 1_500)]
)
def test_long_skips_rungs_that_take_too_long(per_token_s, first):
    trail, _ = walked("long", controls=[Timed(600, 600 * per_token_s)] * 9 + [Timed(50, 5.0)] * 9)
    assert rungs(trail) == {first: PROOFS}


def test_long_is_not_stopped_by_one_prompt_that_was_held_up():
    trail, _ = walked("long", controls=[Timed(600, 0.3), Timed(600, 0.3), Timed(600, 60.0)])
    assert rungs(trail) == {6_000: PROOFS}


def test_long_skips_rungs_beyond_its_share_of_the_budget():
    trail, _ = walked("long", budget=Budget(3 * 13 * 3_000 + 9_000, 600.0, 0.0))
    assert rungs(trail) == {3_000: PROOFS}
    with pytest.raises(Unsettled, match=r"1,000: it asks for about 13,200 tokens"):
        walked("long", budget=Budget(36_000, 600.0, 0.0))


def test_weak_models_get_the_shapes_they_know():
    weak = replace(Behaviour(), skills=Skills(recall_tokens=300))
    for name in ("boundaries", "sessions", "edits"):
        assert judged(name, behaviour=weak).verdict is Verdict.CLEAN
