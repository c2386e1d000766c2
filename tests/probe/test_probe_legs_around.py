"""Legs of tools and of restarts: lists that are nearly alike, and pictures over a restart."""

import json

import pytest
from leg_walks import Walked

from surefoot.probe import legs_around
from surefoot.probe.trail import Role
from surefoot.probe.verdicts import Verdict
from surefoot.testing import broken_store
from surefoot.testing.broken_faults import Behaviour
from surefoot.testing.broken_state import Recurrent
from surefoot.testing.broken_store import Store

# --- tools ---------------------------------------------------------------------------------------


def functions(request):
    return [tool["function"] for tool in request.body.get("tools", ())]


def names(request):
    return [function["name"] for function in functions(request)]


def test_lists_are_alike_in_all_but_one_thing():
    walked = Walked("tools").walk()
    plain = {one.label: one for one in walked.of(Role.PLAIN)}
    assert len(plain) == sum(len(lists) - 1 for lists in legs_around.TOOL_ROUNDS)
    one, otherwise, other = (
        plain[f"prompt 1 with {name}"] for name in ("tool A", "tool A told otherwise", "tool B")
    )
    assert names(one) == names(otherwise) != names(other)
    assert functions(one) != functions(otherwise)
    assert len(names(one)) == len(names(other))
    there, back = (plain[f"prompt 2 with {name}"] for name in ("tools B and C", "tools C and B"))
    assert functions(there) == functions(back)[::-1] != functions(back)


def test_every_list_begins_like_no_other_prompts_list():
    walked = Walked("tools").walk()
    drawn = {}
    for one in walked.of(Role.COLD, Role.PLAIN):
        for function in functions(one):
            assert function["description"].startswith("File ")
            drawn.setdefault(function["description"].split(".")[0], set()).add(
                json.dumps(one.body["messages"])
            )
    assert len(drawn) > len(legs_around.TOOL_ROUNDS)
    assert all(len(messages) == 1 for messages in drawn.values())


ROOTS = {
    "names": lambda tools: tuple(tool["function"]["name"] for tool in tools),
    "count": len,
    "sorted": lambda tools: tuple(sorted(json.dumps(tool) for tool in tools)),
}


@pytest.mark.parametrize("kept", ROOTS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_keys_that_hold_too_little_of_the_tools_are_found(monkeypatch, kept, seed):
    def root_told(prompt, _):
        if not prompt.preface:
            return 0, ()
        listed = json.loads("".join(prompt.bare[1 : prompt.preface - 1]))
        return prompt.preface, ROOTS[kept](listed)

    monkeypatch.setattr(broken_store, "root_told", root_told)
    found = Walked("tools", seed=seed).judged
    assert found.verdict is Verdict.WRONG, found.reason


def test_a_fault_of_short_prefixes_leaves_the_proofs_alone(monkeypatch):
    whole = Store.restore

    def restore(store, plan, prompt, tenant):
        state, blocks = whole(store, plan, prompt, tenant)
        if 0 < plan.tokens <= 64:
            state.recurrent = blocks[-2].snapshot if len(blocks) > 1 else Recurrent()
        return state, blocks

    monkeypatch.setattr(Store, "restore", restore)
    assert Walked("tools").judged.verdict is not Verdict.INCONCLUSIVE


def test_one_list_is_asked_by_two_tenants_and_is_as_long_as_other_prompts():
    walked = Walked("tools").walk()
    apart = walked.trail.of(Role.APART)
    assert [one.request.body["cache_salt"][-8:] for one in apart] == [*legs_around.TOOL_TENANTS]
    assert len({one.request.prompt for one in apart}) == 1
    for one in apart:
        assert one.reply.prompt_tokens == pytest.approx(walked.facts.length, rel=0.05)


def test_without_salts_no_list_is_asked_by_tenants():
    walked = Walked("tools", behaviour=Behaviour(knows_salts=False)).walk()
    assert walked.of(Role.APART) == []


# --- a restart -----------------------------------------------------------------------------------


def test_the_first_picture_after_each_restart_is_another():
    walked = Walked("restart").walk()
    (_, once), again = walked.restarts, walked.trail.seen[walked.restarts[1] :]
    before = walked.trail.seen[once - 1]
    assert before.role is Role.COLD
    pictured = [one.request for one in again if one.role is Role.PLAIN]
    assert len(pictured) + 1 == legs_around.RESTART_PICTURE_ASKS
    assert pictured[-1].body == before.request.body
    assert pictured[0].expected != before.request.expected


def test_a_server_without_pictures_is_restarted_once():
    walked = Walked("restart", behaviour=Behaviour(sees_images=False)).walk()
    assert len(walked.restarts) == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pictures_that_are_numbered_anew_are_found(monkeypatch, seed):
    def contents_told(prompt, _, numbers):
        return [
            token
            if isinstance(token, str)
            else (token.place, numbers.setdefault(token.picture, len(numbers)))
            for token in prompt.tokens
        ]

    monkeypatch.setattr(broken_store, "contents_told", contents_told)
    found = Walked("restart", seed=seed).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason
