"""Legs of pictures, tenants, tools, reasoning and restarts: what they ask, and what they catch."""

import json

import httpx
import pytest
from leg_walks import BARE, JUDGED, KEYS, Refusing, Walked

from surefoot.probe import legs_around, legs_tenants
from surefoot.probe.legs import Facts
from surefoot.probe.legs_around import AROUND_LEGS
from surefoot.probe.legs_images import IMAGE_LEGS
from surefoot.probe.legs_tenants import NOTE_KEYS, TENANT_LEGS
from surefoot.probe.proofs import PROOFS
from surefoot.probe.trail import (
    BudgetEnded,
    NotApplicable,
    Role,
    Unsettled,
)
from surefoot.probe.verdicts import Verdict
from surefoot.testing.broken_faults import Behaviour, Fault, Skills

LEGS = {leg.name: leg for leg in (*IMAGE_LEGS, *TENANT_LEGS, *AROUND_LEGS)}
IMAGES = [leg.name for leg in IMAGE_LEGS]


# --- against the broken server -------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(block_tokens=256), BARE])
@pytest.mark.parametrize("name", LEGS)
def test_an_unbroken_server_is_clean(name, behaviour):
    if name == "salts" and not behaviour.knows_salts:
        pytest.skip("it has none")
    found = Walked(name, behaviour=behaviour).judged
    assert found.verdict is Verdict.CLEAN, found.reason


CAUGHT = [
    ("image-swap", Fault.KEY_IGNORES_MEDIA, Verdict.CONTAMINATED),
    ("image-swap", Fault.WRONG_BOUNDARY, Verdict.WRONG),
    ("image-bytes", Fault.DIGEST_IGNORES_DIMENSIONS, Verdict.CONTAMINATED),
    ("image-bytes", Fault.KEY_IGNORES_MEDIA, Verdict.CONTAMINATED),
    ("image-later", Fault.KEY_IGNORES_MEDIA, Verdict.CONTAMINATED),
    ("image-removed", Fault.REMOVED_IMAGE_KEPT, Verdict.CONTAMINATED),
    ("image-order", Fault.KEY_IGNORES_MEDIA, Verdict.CONTAMINATED),
    ("user", Fault.DONOR_LENGTH, Verdict.CONTAMINATED),
    ("keys", Fault.EMPTY_ON_HIT, Verdict.WRONG),
    ("tools", Fault.TOOLS_IGNORED_IN_KEY, Verdict.WRONG),
    ("reasoning", Fault.THINKING_IGNORED_IN_KEY, Verdict.WRONG),
    ("restart", Fault.STALE_AFTER_RESTART, Verdict.CONTAMINATED),
    ("restart", Fault.OTHER_WEIGHTS, Verdict.WRONG),
]
SALTS = [
    (name, fault)
    for name in ("salts", "restart")
    for fault in (Fault.SALT_IGNORED, Fault.SALT_IGNORED_ON_DISK)
]


@pytest.mark.parametrize("behaviour", [Behaviour(), BARE])
@pytest.mark.parametrize(("name", "fault", "verdict"), CAUGHT)
def test_each_leg_catches_the_faults_it_is_for(name, fault, verdict, behaviour):
    found = Walked(name, fault, behaviour).judged
    assert found.verdict is verdict, found.reason


@pytest.mark.parametrize(("name", "fault"), SALTS)
def test_tenants_that_share_are_found(name, fault):
    found = Walked(name, fault).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason


def test_tenants_that_share_are_found_by_time_alone():
    found = Walked("salts", Fault.SALT_IGNORED, Behaviour(offers_counters=False)).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason


@pytest.mark.parametrize("fault", [Fault.COUNTER_ZERO, Fault.COUNTER_TOO_HIGH])
@pytest.mark.parametrize("name", ["image-swap", "user", "tools", "reasoning", "restart"])
def test_a_counter_that_lies_proves_nothing(name, fault):
    assert Walked(name, fault).judged.verdict is Verdict.INCONCLUSIVE


def test_a_model_that_cannot_tell_wide_from_tall_is_judged_by_its_bits():
    weak = Behaviour(skills=Skills(shape=False))
    assert Walked("image-bytes", behaviour=weak).judged.verdict is Verdict.CLEAN
    walked = Walked("image-bytes", Fault.DIGEST_IGNORES_DIMENSIONS, weak)
    assert walked.judged.verdict is Verdict.CONTAMINATED
    assert all(accused.request.expected is None for accused, _, _ in walked.trail.twins)


# --- where a leg does not apply ------------------------------------------------------------------

NO_IMAGES = Behaviour(sees_images=False)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        *((name, {"behaviour": NO_IMAGES}, "the server takes no images") for name in IMAGES),
        ("salts", {"behaviour": Behaviour(knows_salts=False)}, "does not know the field"),
        ("keys", {"keys": KEYS[:1]}, "give --api-key twice"),
        ("tools", {"behaviour": Behaviour(knows_tools=False)}, "tools are not supported"),
        ("reasoning", {"behaviour": Behaviour(knows_thinking=False)}, "changes nothing"),
        ("user", {"refuses": lambda body: "user" in body}, "no such thing here"),
        (
            "image-order",
            {"refuses": lambda body: json.dumps(body).count("data:image") > 1},
            "no such thing here",
        ),
    ],
)
def test_a_leg_that_does_not_apply_says_why(name, changes, reason):
    walked = Walked(name, **changes)
    with pytest.raises(NotApplicable, match=reason):
        walked.walk()


def test_without_a_restart_command_nothing_is_asked():
    walked = Walked("restart")
    walked.can_restart = False
    with pytest.raises(NotApplicable, match="--restart-cmd"):
        walked.walk()
    assert walked.trail.seen == []


@pytest.mark.parametrize("name", ["image-swap", "image-later", "image-order", "image-bytes"])
def test_a_blind_model_settles_nothing(name):
    blind = Behaviour(skills=Skills(colour=False, shape=False))
    walked = Walked(name, behaviour=blind)
    with pytest.raises(Unsettled, match="a stronger model settles it"):
        walked.walk()


def test_a_budget_that_ends_is_not_taken_for_a_model_that_cannot():
    walked = Walked("image-bytes")
    walked.tokens = 1
    with pytest.raises(BudgetEnded):
        walked.walk()


# --- proofs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*IMAGES, "tools", "reasoning"])
def test_proofs_are_fresh_and_accuse_nobody(name):
    walked = Walked(name).walk()
    proofs = [one for one in walked.of(Role.COLD) if one.label.startswith("proof")]
    count = PROOFS * (2 if name == "image-later" else 1)  # there an earlier turn is proven too
    assert len(proofs) == count
    assert len({one.label for one in proofs}) == count
    starts = {json.dumps(one.body["messages"])[:60] for one in proofs}
    assert len(starts) == count
    assert all(one.others == () and one.expected for one in proofs)
    assert walked.trail.fresh is not None
    control = walked.trail.fresh()
    assert control.others == ()
    assert control.body != walked.trail.fresh().body


# --- tenants -------------------------------------------------------------------------------------


def without(request, field):
    return json.dumps({name: value for name, value in request.body.items() if name != field})


def test_salted_bodies_differ_in_their_salt_only():
    walked = Walked("salts").walk()
    judged = walked.of(*JUDGED)
    bodies = {without(one, "cache_salt") for one in judged}
    assert len(bodies) == legs_tenants.SALT_PROMPTS + 1  # and a picture
    sent = set()
    for seen in walked.trail.seen:
        salt = seen.request.body.get("cache_salt")
        pair = (without(seen.request, "cache_salt"), salt)
        if seen.role is Role.APART:
            assert pair not in sent
            assert any(body == pair[0] for body, _ in sent)
        if seen.role is Role.WARM:
            assert pair in sent
        sent.add(pair)
    assert [salt for body, salt in sent if body in bodies].count(None) == 1


def test_memory_is_short_between_two_halves_of_the_tenants():
    walked = Walked("salts").walk()
    roles = [seen.role for seen in walked.trail.seen]
    apart = [place for place, role in enumerate(roles) if role is Role.APART]
    half = len(apart) // 2
    fillers = [
        seen
        for seen in walked.trail.seen[apart[half - 1] : apart[half]]
        if seen.role is Role.COLD and "filler" in seen.request.label
    ]
    pressing = sum(seen.reply.prompt_tokens for seen in fillers)
    assert len(apart) % 2 == 0
    assert legs_tenants.PRESSURE_TOKENS * 0.9 <= pressing <= 6_000
    assert len({seen.request.body["cache_salt"] for seen in fillers}) == len(fillers)


@pytest.mark.parametrize(
    ("behaviour", "note"),
    [
        (Behaviour(api_keys=KEYS), "shared: 3 of 3"),
        (Behaviour(api_keys=KEYS, keys_apart=True), "not shared: 0 of 3"),
        (Behaviour(api_keys=KEYS, offers_counters=False), "perhaps shared"),
        (Behaviour(api_keys=KEYS, keys_apart=True, offers_counters=False), "not shared, as far"),
    ],
)
def test_whether_keys_share_is_noted_and_not_judged(behaviour, note):
    walked = Walked("keys", behaviour=behaviour)
    assert walked.judged.verdict is Verdict.CLEAN
    assert walked.facts.notes[NOTE_KEYS].startswith(note)
    plain = walked.of(Role.PLAIN)
    assert {one.key for one in plain} == {1}
    cold = [one.body for one in walked.of(Role.COLD)[-legs_tenants.KEY_PROMPTS :]]
    assert [one.body for one in plain] == cold


def test_users_have_secrets_of_their_own_and_one_borrows_a_body():
    walked = Walked("user").walk()
    rounds = walked.of(Role.PLAIN)
    for place, first in enumerate(walked.of(Role.COLD)[-legs_tenants.USER_TEXTS :]):
        own, borrowed = rounds[2 * place : 2 * place + 2]
        assert own.body["user"] == borrowed.body["user"] != first.body["user"]
        assert without(borrowed, "user") == without(first, "user")
        assert own.expected != first.expected == borrowed.expected
        assert own.body["messages"][0] == first.body["messages"][0]


# --- around --------------------------------------------------------------------------------------


def test_lists_of_tools_change_under_the_same_messages():
    walked = Walked("tools").walk()
    judged = walked.of(Role.PLAIN, Role.WARM)
    messages = {json.dumps(one.body["messages"]) for one in judged}
    assert len(messages) == len(legs_around.TOOL_ROUNDS)
    lists = {json.dumps(one.body.get("tools")) for one in judged}
    assert len(lists) == 1 + sum(len(names) - 1 for names in legs_around.TOOL_ROUNDS)
    assert all(one.expected for one in judged)


def test_tools_are_offered_without_a_call_where_calls_are_refused():
    def calls(body):
        return "tools" in body and body.get("tool_choice") != "none"

    walked = Walked("tools", refuses=calls)
    assert walked.judged.verdict is Verdict.CLEAN
    choices = [one.body.get("tool_choice") for one in walked.of() if "tools" in one.body]
    assert set(choices) == {"none"}


def test_a_template_without_tools_is_left():
    class Deaf(Refusing):
        async def handle_async_request(self, request):
            content = await request.aread()
            body = json.loads(content or "{}")
            body.pop("tools", None)
            again = httpx.Request(
                request.method,
                request.url,
                content=json.dumps(body) if content else b"",
                extensions=request.extensions,
            )
            return await self.inner.handle_async_request(again)

    walked = Walked("tools")
    walked.transport = Deaf(walked.transport, None)
    with pytest.raises(NotApplicable, match="renders no tools"):
        walked.walk()


def test_reasoning_goes_on_and_off_in_both_orders():
    walked = Walked("reasoning").walk()
    starts = [
        one.body["chat_template_kwargs"]["enable_thinking"] for one in walked.of(Role.COLD)[-3:]
    ]
    assert starts == [True, False, True]
    for one in walked.of():
        thinks = one.body["chat_template_kwargs"]["enable_thinking"]
        assert (one.expected is None) is thinks
        assert one.body["max_tokens"] == legs_around.SHORT_ANSWER_TOKENS


def test_reasoning_by_another_field_is_tried_where_the_first_is_refused():
    walked = Walked("reasoning", refuses=lambda body: "chat_template_kwargs" in body)
    with pytest.raises(NotApplicable, match="changes nothing"):
        walked.walk()
    walked = Walked(
        "reasoning", refuses=lambda body: body.keys() & {"chat_template_kwargs", "reasoning_effort"}
    )
    with pytest.raises(NotApplicable, match="no such thing here"):
        walked.walk()


def test_only_what_is_asked_after_the_restart_is_a_witness():
    walked = Walked("restart").walk()
    at, again = walked.restarts
    before, after = walked.trail.seen[:at], walked.trail.seen[at:again]
    assert {seen.role for seen in before} == {Role.COLD, Role.PLAIN}
    assert after[0].role is Role.COLD
    known = {json.dumps(seen.request.body) for seen in before if seen.role is Role.PLAIN}
    warm = [seen.request for seen in after if seen.role is Role.WARM]
    unknown = [one for one in warm if json.dumps(one.body) not in known]
    assert [one.label for one in unknown] == ["a sibling of prompt 1"]
    order = [one.label for one in warm[: legs_around.RESTART_PROMPTS]]
    once_more = [seen.request.label for seen in after if seen.role is Role.PLAIN]
    assert sorted(order) == sorted(once_more)
    apart = [seen.request for seen in after if seen.role is Role.APART]
    assert len({(one.label, one.body["cache_salt"]) for one in apart}) == 4


def test_a_sibling_shares_most_of_a_prompt_and_keeps_its_code():
    walked = Walked("restart").walk()
    every = {one.label: one for one in walked.of()}
    one, sibling = every["prompt 1"], every["a sibling of prompt 1"]
    texts = [ask.body["messages"][0]["content"].split() for ask in (one, sibling)]
    shared = round(len(texts[0]) * legs_around.SIBLING_SHARE)
    assert texts[0][:shared] == texts[1][:shared]
    assert texts[0] != texts[1]
    assert len(texts[0]) == len(texts[1])
    assert sibling.expected == one.expected


@pytest.mark.parametrize("behaviour", [Behaviour(), BARE])
def test_a_server_that_forgets_all_at_a_restart_shows_no_reuse(behaviour):
    walked = Walked("restart", behaviour=behaviour)
    walked.forgets = True
    assert walked.judged.verdict is Verdict.INCONCLUSIVE


# --- costs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEGS)
def test_a_leg_says_about_what_it_costs(name):
    walked = Walked(name).walk()
    told = LEGS[name].cost(walked.facts)
    spent = sum(
        seen.reply.prompt_tokens
        for seen in walked.trail.seen
        if seen.role is not Role.REFERENCE and not seen.request.label.startswith("proof")
    )
    assert spent == pytest.approx(told, rel=0.15)


def test_a_leg_that_does_not_apply_costs_nothing():
    facts = Facts(images=False, salts=False)
    assert [LEGS[name].cost(facts) for name in (*IMAGES, "salts")] == [0] * 6


def test_the_legs_run_in_this_order():
    assert [*LEGS] == [
        *("image-swap", "image-bytes", "image-later", "image-removed", "image-order"),
        *("salts", "keys", "user", "tools", "reasoning", "restart"),
    ]
