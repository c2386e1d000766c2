"""Whose turn it is to be audited: the share bounds the work, and no chain is starved by others."""

import pytest
from test_turn_audit import C, Place, prompt

from surefoot.cache.audit import AuditVerdict
from surefoot.chat.request import ChatInput, Image, Message, Role, TokensInput
from surefoot.engine import Sampling
from surefoot.laws import RecurrentSnapshot
from surefoot.testing.fake_engine import GROUPS
from surefoot.turn import Ledger, TurnRequest, turn
from surefoot.turn.audit import audit
from surefoot.turn.audit_share import RESTARTS, TRIES, AuditShare


@pytest.fixture
def place():
    one = Place()
    yield one
    one.cache.close()


def take_turn(place, share, given):
    made = TokensInput(tuple(given)) if isinstance(given, list) else given
    request = TurnRequest(id="t", input=made, sampling=Sampling(), max_tokens=1)
    list(turn(ledger := Ledger(request, place.serving, 0.0)))
    share.earn(ledger)
    return ledger


def finish(place, share, account):
    list(audit(place.serving, account))
    share.spend(account, interrupted=False)


def interrupt(place, share, account, units):
    steps = audit(place.serving, account)
    for _ in range(units):
        next(steps)
    steps.close()
    share.spend(account, interrupted=True)


def test_of_every_hundred_tokens_that_turns_consumed_one_is_audited(place):
    share = AuditShare(place.serving, share=0.01, media_bytes=0)
    computed = 0
    for seed in range(100):
        take_turn(place, share, prompt(5 * C + 1, seed=seed % 7))
        while share.due:
            account = share.take()
            if account is None:
                break
            finish(place, share, account)
            computed += account.computed_tokens
    consumed = 100 * (5 * C + 1)
    assert consumed * 0.01 - 5 * C < computed <= consumed * 0.01


def test_without_a_share_nothing_is_due(place):
    share = AuditShare(place.serving, share=0.0, media_bytes=1 << 20)
    take_turn(place, share, prompt(5 * C + 1))
    assert not share.due


def test_a_model_without_a_cache_is_not_audited(place):
    place.engine.unsupported = "no law"
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    take_turn(place, share, prompt(5 * C + 1))
    assert not share.due


def test_a_long_chain_is_waited_for_and_nothing_shorter_is_let_past(place):
    share = AuditShare(place.serving, share=0.5, media_bytes=0)
    short, long = prompt(2 * C), prompt(9 * C, seed=5)
    take_turn(place, share, short)
    leaf = take_turn(place, share, long).plan.blocks[-1].name
    turns = 0
    while (account := share.take() if share.due else None) is None:
        take_turn(place, share, long)
        turns += 1
        assert turns < 9
    assert account.chain[-1].name == leaf
    assert turns > 0


def test_what_is_earned_ends_at_one_context(place):
    place.engine.context_tokens = 8 * C
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    for seed in range(9):
        take_turn(place, share, prompt(7 * C, seed=seed))
    audits = 0
    while share.due and (account := share.take()):
        finish(place, share, account)
        audits += 1
    assert audits == 1


def test_a_chain_is_audited_once_between_two_turns(place):
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    take_turn(place, share, prompt(2 * C))
    take_turn(place, share, prompt(2 * C))
    finish(place, share, share.take())
    assert share.due
    assert share.take() is None
    assert not share.due
    take_turn(place, share, prompt(2 * C))
    assert share.take() is not None


def test_what_an_interrupted_audit_computed_is_paid_for(place):
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    take_turn(place, share, prompt(5 * C))
    interrupt(place, share, share.take(), 4)
    assert share.take() is None, "12 of 20 tokens are spent"
    assert not share.due


def test_a_chain_that_is_always_interrupted_lets_others_come_first(place):
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    other = take_turn(place, share, prompt(5 * C, seed=3)).plan.blocks[-1].name
    leaf = take_turn(place, share, prompt(5 * C)).plan.blocks[-1].name
    for _ in range(RESTARTS):
        account = share.take()
        assert account.chain[-1].name == leaf
        interrupt(place, share, account, 1)
    account = share.take()
    assert account.chain[-1].name == other
    finish(place, share, account)
    assert share.take().chain[-1].name == leaf, "when no other is left"


def test_a_chain_that_cannot_be_audited_goes_behind_all_others(place):
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    good = take_turn(place, share, prompt(3 * C, seed=3)).plan.blocks
    bad = take_turn(place, share, prompt(5 * C)).plan.blocks
    share._turns.clear()
    for block in bad[:2]:
        for group in GROUPS:
            place.cache._ram.remove((block.name, group.name))
    assert share.take().chain[-1].name == good[-1].name
    assert place.cache.status()["counters"]["audits_unauditable"] == 1


def test_many_chains_that_are_gone_are_looked_up_some_at_a_time(place, monkeypatch):
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    for seed in range(TRIES + 3):
        take_turn(place, share, prompt(2 * C, seed=seed))
    share._turns.clear()
    asked = []
    monkeypatch.setattr(place.cache, "lineage", asked.append)
    assert share.take() is None
    assert (len(asked), share.due) == (TRIES, True)
    assert share.take() is None
    assert (len(asked), share.due) == (TRIES + 3, False)


def test_an_audit_that_broke_is_given_up(place):
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    take_turn(place, share, prompt(3 * C))
    share.spend(share.take(), interrupted=False)  # as after an error: no verdict on the leaf
    take_turn(place, share, prompt(3 * C))
    leaf = place.cache.auditor.leaves()[0]
    assert leaf.audited_at is not None


def test_a_model_of_snapshots_alone_is_audited_while_its_turns_are_at_hand():
    groups = tuple(one for one in GROUPS if isinstance(one.law, RecurrentSnapshot))
    place = Place(groups)
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    ledger = take_turn(place, share, prompt(9 * C + 1))
    assert place.cache.lineage(ledger.plan.blocks[-1].name) is None
    account = share.take()
    assert account.chain == ledger.plan.blocks
    finish(place, share, account)
    assert set(account.verdicts.values()) == {AuditVerdict.AGREED}
    assert share.take() is None, "its other snapshots were audited on the way"
    place.cache.close()


def pictures(*images):
    content = tuple(Image(data, "here") for data in images)
    return ChatInput((Message(role=Role.USER, content=("look, ", *content)),))


def test_the_items_of_the_last_turns_are_at_hand_up_to_so_many_bytes(place):
    share = AuditShare(place.serving, share=1.0, media_bytes=50)
    one, two, three = b"\x03" * 20, b"\x04" * 20, b"\x05" * 20
    for image in (one, two, one, three):  # the second is the one that was seen longest ago
        take_turn(place, share, pictures(image))
    assert [item.data for item in share._media.values()] == [one, three]
    account = share.take()
    finish(place, share, account)
    assert AuditVerdict.UNAUDITABLE not in account.verdicts.values()
    assert account.features


def test_of_an_engine_that_differs_from_itself_nothing_more_is_audited(place):
    share = AuditShare(place.serving, share=1.0, media_bytes=0)
    take_turn(place, share, prompt(5 * C))
    assert share.due
    place.cache.not_repeating("seen")
    assert not share.due
