"""Legs of tenants: salts that are nearly alike, tenants at once, and a cache key for all users."""

import asyncio
import itertools
import json

import pytest
from leg_walks import Walked

from surefoot.probe import legs_tenants, tasks
from surefoot.probe.trail import Role
from surefoot.probe.verdicts import Verdict
from surefoot.testing import broken_server
from surefoot.testing.broken_engine import BrokenEngine
from surefoot.testing.broken_faults import Behaviour
from surefoot.testing.broken_store import Store
from surefoot.testing.probe_matrix import honest, probed


def salt_of(request):
    return request.body.get("cache_salt")


def keyed_by(monkeypatch, told):
    """Have the keys hold what is told of a prompt's salt."""
    whole = Store.rungs

    def rungs(store, prompt, tenant):
        key, salt = tenant
        return whole(store, prompt, (key, salt and told(prompt, salt)))

    monkeypatch.setattr(Store, "rungs", rungs)


# --- cache_salt ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["salts", "tools", "restart"])
def test_salts_are_long_and_alike_but_for_their_last_letter(name):
    salts = {salt_of(one) for one in Walked(name).walk().of() if salt_of(one)}
    assert len(salts) >= 2
    for one, other in itertools.combinations(salts, 2):
        assert len(one) >= 40
        assert one[:-1] == other[:-1]


@pytest.mark.parametrize("name", ["salts", "restart"])
def test_some_salts_differ_in_their_case_only(name):
    salts = {salt_of(one) for one in Walked(name).walk().of() if salt_of(one)}
    assert len({salt.casefold() for salt in salts}) < len(salts)


@pytest.mark.parametrize(
    "told",
    [
        lambda _, salt: salt[:16],
        lambda _, salt: salt[:32],
        lambda _, salt: len(salt),
        lambda _, salt: salt.casefold(),
        lambda prompt, salt: None if len(prompt.bare) < len(prompt.tokens) else salt,
    ],
    ids=["first 16", "first 32", "length", "case", "with pictures"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_keys_that_hold_too_little_of_a_salt_are_found(monkeypatch, told, seed):
    keyed_by(monkeypatch, told)
    found = Walked("salts", seed=seed).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason
    assert "only another tenant had sent" in found.reason


def test_salts_that_are_ignored_beside_tools_are_found(monkeypatch):
    keyed_by(monkeypatch, lambda prompt, salt: None if prompt.preface else salt)
    plain = honest()[0]
    legs = asyncio.run(probed(plain, 1, ("salts", "tools"))).legs
    verdicts = {leg.name: leg.verdict for leg in legs}
    assert verdicts == {"salts": Verdict.CLEAN, "tools": Verdict.CONTAMINATED}


def test_tenants_at_once_who_append_to_one_entry_are_found(monkeypatch):
    whole = BrokenEngine._taken_up

    def taken_up(engine, turn):
        run = whole(engine, turn)
        for other in engine._live:
            run.state.rows, run.state.pooled = other.state.rows, other.state.pooled
        return run

    monkeypatch.setattr(BrokenEngine, "_taken_up", taken_up)
    found = Walked("salts").judged
    assert found.verdict is Verdict.WRONG, found.reason


def test_tenants_at_once_send_what_has_a_cold_answer():
    walked = Walked("salts").walk()
    cold = {one.prompt for one in walked.of(Role.COLD)}
    stem = tasks.SALT_STEM
    salts = {stem + tenant for tenant in legs_tenants.AT_ONCE}
    at_once = [one for one in walked.of() if salt_of(one) in salts]
    assert len({one.prompt for one in at_once}) == 1
    assert {one.prompt for one in at_once} <= cold
    assert len({salt_of(one) for one in at_once}) == len(at_once) == len(salts)


@pytest.mark.parametrize(("sees", "asks"), [(True, legs_tenants.PICTURE_ASKS), (False, 0)])
def test_a_picture_is_asked_under_three_salts_where_it_is_taken(sees, asks):
    walked = Walked("salts", behaviour=Behaviour(sees_images=sees)).walk()
    shown = [one for one in walked.of(Role.COLD, Role.APART) if "image_url" in json.dumps(one.body)]
    assert len({salt_of(one) for one in shown}) == len(shown) == asks
    assert len({one.prompt for one in shown}) == min(1, asks)
    assert all(one.expected is None for one in shown)


# --- user ----------------------------------------------------------------------------------------


def cache_keys(walked):
    return [one.body.get("prompt_cache_key") for one in walked.of()]


def test_users_share_a_cache_key_under_the_last_text_only():
    asked = Walked("user").walk().of()
    keyed = [one for one in asked if "prompt_cache_key" in one.body]
    assert {one.body["prompt_cache_key"] for one in keyed} == {*legs_tenants.CACHE_KEY.values()}
    texts = {one.body["messages"][0]["content"] for one in keyed}
    assert len(texts) == 1
    assert len(keyed) * legs_tenants.USER_TEXTS == len(asked)
    assert {one.body["user"] for one in keyed} == set(legs_tenants.USERS)


def test_a_server_that_refuses_cache_keys_is_asked_without():
    walked = Walked("user", refuses=lambda body: "prompt_cache_key" in body)
    assert walked.judged.verdict is Verdict.CLEAN
    assert set(cache_keys(walked)) == {None}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slot_for_each_cache_key_is_found(monkeypatch, seed):
    """The slot's newest prompt is taken for one that begins like it."""
    whole, slots = broken_server.read_ask, {}

    def read_ask(body, *rest, **more):
        ask = whole(body, *rest, **more)
        key = json.loads(body).get("prompt_cache_key")
        own = ask.turn.prompt
        if key in slots and slots[key].tokens[:32] == own.tokens[:32]:
            ask.turn.prompt = slots[key]
        if key:
            slots[key] = own
        return ask

    monkeypatch.setattr(broken_server, "read_ask", read_ask)
    found = Walked("user", seed=seed).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason
