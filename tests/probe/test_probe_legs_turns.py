"""The leg of a chat that grows by its own answers."""

import json

import httpx
import pytest
from leg_walks import BARE, Model, Walked, labelled, own, said_in, system, walked
from scenes import Scene

from surefoot.probe import legs_turns
from surefoot.probe.legs import Facts, WayRound
from surefoot.probe.plants import codes_in
from surefoot.probe.proofs import PROOFS
from surefoot.probe.trail import Role
from surefoot.probe.verdicts import Verdict
from surefoot.probe.witnesses import Timed
from surefoot.testing.broken_faults import Behaviour, Fault, Skills

TOLD = Facts(length=600, block_tokens=16, way_round=WayRound("a salt"), noise_nat=0.0)


def chat(trail):
    """The messages of the three turns, as they were first asked."""
    return [labelled(trail, f"turn {n}")[0].request.body["messages"] for n in (1, 2, 3)]


def test_every_turn_sends_back_what_the_one_before_was_answered():
    trail, _ = walked("turns", facts=TOLD)
    one, two, three = chat(trail)
    story, second = (labelled(trail, f"turn {n}")[0].reply.said for n in (1, 2))
    assert two[:3] == [*one, {"role": "assistant", "content": story}]
    assert three[:5] == [*two, {"role": "assistant", "content": second}]
    assert [len(messages) for messages in (one, two, three)] == [2, 4, 6]
    assert legs_turns.STORY in one[-1]["content"]


def test_it_goes_on_is_rewound_and_loses_its_first_exchange():
    trail, _ = walked("turns", facts=TOLD)
    asked = [(seen.request.label, seen.role) for seen in own(trail)]
    assert asked == [
        ("turn 1", Role.COLD),
        *[("turn 2", Role.WARM)] * (1 + legs_turns.REPLAYS),
        ("turn 3", Role.WARM),
        ("turn 2", Role.WARM),
        ("turn 1", Role.WARM),
        ("turn 2 without turn 1, one token of its answer", Role.MEASURED),
        ("turn 2 without turn 1", Role.PLAIN),
    ]
    _, two, _ = chat(trail)
    short, whole = own(trail)[-2:]
    assert whole.request.body == {"messages": [two[0], two[-1]]}
    assert short.request.body == whole.request.body | {"max_tokens": 1}


def test_each_turn_has_a_code_and_none_is_asked_for_that_logprobs_make_needless():
    trail, _ = walked("turns", facts=TOLD)
    assert [seen.request.expected for seen in own(trail)] == [None] * (7 + legs_turns.REPLAYS)
    (code,) = codes_in(own(trail)[-1].request.body["messages"][-1]["content"])
    later = chat(trail)[2][-1]["content"]
    assert code not in later
    assert code not in json.dumps(chat(trail)[0])


def test_without_logprobs_the_second_turn_alone_is_asked_for_its_code():
    trail, _ = walked("turns")
    alone = own(trail)[-1].request
    assert alone.expected in alone.body["messages"][-1]["content"]


@pytest.mark.parametrize("said", ["Once.", "Once upon a time there was a harbour. " * 8])
def test_the_second_turn_has_the_usual_length_however_long_the_story_is(said):
    class Teller(Model):
        def answer(self, body):
            story = body["messages"][-1]["content"].endswith(legs_turns.STORY)
            return said if story else super().answer(body)

    trail, _ = walked("turns", Teller(), TOLD)
    second = labelled(trail, "turn 2")[0]
    assert second.reply.prompt_tokens == pytest.approx(600, abs=20)
    chunk = second.request.body["messages"][-1]["content"].split("The secret code")[0]
    assert len(chunk.split()) >= legs_turns.CHUNK_LEAST_TOKENS


def test_what_is_usual_is_as_long_as_the_controls_of_about_that_length():
    scene = Scene(controls=0)
    scene.trail.controls += [Timed(300, 1.0), Timed(2_000, 1.0)]
    assert legs_turns._usual(scene.trail, 600) == 600
    scene.trail.controls += [Timed(tokens, 1.0) for tokens in (588, 590, 600)]
    assert legs_turns._usual(scene.trail, 600) == 590


def test_servers_that_count_no_tokens_get_the_same_chat():
    trail, _ = walked("turns", Model(counts=False), TOLD)
    words = sum(len(one["content"].split()) for one in chat(trail)[1])
    assert words == pytest.approx(600, abs=50)


class Silent(Model):
    """Answers no story."""

    def answer(self, body):
        return " " if legs_turns.STORY in said_in(body) else super().answer(body)


class Failing(Model):
    """Fails at every story."""

    async def __call__(self, request):
        if legs_turns.STORY in request.content.decode():
            return httpx.Response(400, json={"error": {"message": "no stories"}})
        return await super().__call__(request)


@pytest.mark.parametrize("model", [Silent(), Failing()])
def test_the_chat_goes_on_where_nothing_was_answered(model):
    trail, _ = walked("turns", model, TOLD)
    answers = [one["content"] for one in chat(trail)[2] if one["role"] == "assistant"]
    assert answers == [legs_turns.STAND_IN] * 2


class OneTurn(Model):
    """Finds no code past an assistant's turn."""

    def answer(self, body):
        return "Well." if len(body["messages"]) > 2 else super().answer(body)


@pytest.mark.parametrize(("model", "can"), [(Model(), True), (OneTurn(), False)])
def test_where_nothing_else_tells_codes_are_expected_if_fresh_chats_show_the_model_can(model, can):
    trail, _ = walked("turns", model)
    proofs = [seen for seen in trail.seen if "of a chat" in seen.request.label]
    assert [seen.role for seen in proofs] == [Role.COLD] * (PROOFS if can else 1)
    assert all(len(seen.request.body["messages"]) == 6 for seen in proofs)
    assert all(seen.reply.prompt_tokens == pytest.approx(600, abs=20) for seen in proofs)
    expected = [labelled(trail, f"turn {n}")[0].request.expected for n in (1, 2, 3)]
    assert expected[0] is None
    assert [one is not None for one in expected[1:]] == [can] * 2
    for seen in labelled(trail, "turn 3"):
        assert not can or seen.request.expected in seen.request.body["messages"][-1]["content"]
    assert len(trail.fresh().body["messages"]) == (6 if can else 2)
    assert len({system(seen) for seen in proofs}) == len(proofs)


def test_no_proof_is_asked_where_answers_without_the_cache_tell():
    trail, _ = walked("turns", facts=TOLD)
    assert not [seen for seen in trail.seen if "of a chat" in seen.request.label]


# --- against the broken server -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(unsteady=0.4), BARE])
def test_an_honest_server_is_clean_whatever_its_stories_are(behaviour, seed):
    found = Walked("turns", None, behaviour, seed=seed, keys=()).judged
    assert found.verdict is Verdict.CLEAN, found.reason


def test_a_model_that_finds_only_near_codes_is_not_blamed():
    near = Behaviour(skills=Skills(recall_tokens=200), knows_salts=False)
    assert Walked("turns", None, near, keys=()).judged.verdict is Verdict.CLEAN


@pytest.mark.parametrize("behaviour", [Behaviour(), BARE])
def test_a_rewound_chat_that_takes_up_the_longer_one_is_caught(behaviour):
    found = Walked("turns", Fault.REWOUND, behaviour, keys=()).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason


@pytest.mark.parametrize("fault", [Fault.EMPTY_ON_HIT, Fault.WRONG_BOUNDARY])
@pytest.mark.parametrize("behaviour", [Behaviour(), BARE])
def test_turns_that_are_lost_are_wrong(fault, behaviour):
    found = Walked("turns", fault, behaviour, keys=()).judged
    assert found.verdict is Verdict.WRONG, found.reason
