"""Audits in a running server: only while nothing waits, told apart, ended by whoever comes."""

import threading

import pytest
from scheduler_house import WAIT_S, C, wait_for

from surefoot.cache.audit import AuditVerdict
from surefoot.errors import EngineError
from surefoot.receipt import Kind
from surefoot.record import key, seal, unseal
from surefoot.testing.cache_kit import spoiled


@pytest.fixture
def audits(house):
    """A house that audits as much as its turns consume, and keeps the accounts."""

    def build(**limits):
        one = house(**({"audit_share": 1.0} | limits))
        one.audits = []
        one.scheduler._on_audit = one.audits.append
        return one

    return build


def settled(one):
    wait_for(one, lambda: not one.scheduler.status()["auditing"])
    assert one.scheduler.status()["idle_work"] == 0


def counters(one):
    return one.cache.status()["counters"]


def test_what_a_turn_stored_is_audited_once_nothing_waits(audits):
    one = audits()
    watch = one.submit(5 * C)
    one.scheduler.start()
    watch.end()
    settled(one)
    assert counters(one)["audits_agreed"] == 5
    assert [set(account.verdicts.values()) for account in one.audits] == [{AuditVerdict.AGREED}]
    assert [receipt.kind for receipt in one.receipts] == [Kind.TURN], "an audit has no receipt"
    assert one.bugs == []


def test_without_a_share_nothing_is_audited(audits):
    one = audits(audit_share=0.0)
    watch = one.submit(5 * C)
    one.scheduler.start()
    watch.end()
    assert one.scheduler.status()["auditing"] == 0
    assert one.scheduler.stop(WAIT_S)
    assert one.audits == []


def test_an_audit_is_listed_apart_before_the_answer_ends(audits):
    one = audits()
    seen = []
    watch = one.submit(5 * C)
    deliver = watch.deliver

    def look(event):
        seen.append(one.scheduler.status())
        deliver(event)

    watch.ticket.deliver = look
    one.scheduler.start()
    watch.end()
    assert (seen[-1]["auditing"], seen[-1]["idle_work"]) == (1, 0)
    settled(one)


def test_idle_work_comes_before_audits(audits):
    one = audits(audit_share=2.0)
    auditing = []
    one.hooks.append(lambda *unit: auditing.append(one.scheduler.status()["idle_work"]))
    watch = one.submit(0, text="tell me something", seed=5)
    one.scheduler.start()
    watch.end()
    settled(one)
    assert [receipt.kind for receipt in one.receipts] == [Kind.TURN, Kind.IDLE]
    (account,) = one.audits
    ran = account.computed_tokens // C
    assert auditing[-ran:] == [0] * ran, "no idle work was left when the audit ran"
    assert account.chain[-1].end == one.receipts[1].prompt_tokens, "idle work's blocks included"


def test_an_audit_ends_at_the_end_of_a_unit_when_a_request_comes_and_starts_over_later(audits):
    one = audits()
    late = []

    def arrive(kind, start, end):
        third = kind == "prefill" and start == 2 * C
        if third and not late and one.scheduler.status()["running"] == 0:
            late.append(one.submit(9, seed=8))
            one.arrived_at = len(one.units)

    one.hooks.append(arrive)
    first = one.submit(9 * C + 2, seed=6)
    one.scheduler.start()
    first.end()
    wait_for(one, lambda: late and not one.scheduler.status()["auditing"])
    late[0].end()
    assert one.units[one.arrived_at] == ("prefill", 0, C), "the request's first block comes next"
    assert one.engine.open_runs == 0
    settled(one)
    again = one.submit(9 * C + 2, seed=6)
    again.end()
    settled(one)
    assert max(account.computed_tokens for account in one.audits) == 9 * C


def test_a_lie_is_found_while_the_server_idles_and_the_next_answer_is_cold(audits):
    one = audits()
    cold = one.submit(6 * C + 1)
    one.scheduler.start()
    cold.end()
    settled(one)
    tier, (block, _, _) = one.cache._ram._tier, one.cache._ram.items()[6]
    at = key(block.name, "rows-0")
    header, part = unseal(tier.get(at), name=block.name, group="rows-0")
    tier.put(at, seal(block, spoiled(part), content=header.content, fence=0))
    one.submit(6 * C + 1, seed=3).end()
    settled(one)
    one.submit(6 * C + 1, seed=3).end()
    settled(one)
    (caught,) = [account for account in one.audits if account.fence]
    assert caught.fence.name == block.name
    assert counters(one)["audits_differed"] == 1
    again = one.submit(6 * C + 1)
    assert again.end().receipt.restored_tokens == block.start
    assert [e.text for e in again.events[:-1]] == [e.text for e in cold.events[:-1]]


@pytest.mark.parametrize("error", [EngineError("out of memory"), ZeroDivisionError("a bug")])
def test_an_audit_that_breaks_is_reported_once_and_turns_go_on(audits, error):
    one = audits()

    def breaks(kind, start, end):
        if kind == "prefill" and one.scheduler.status()["running"] == 0:
            raise error

    one.hooks.append(breaks)
    watch = one.submit(5 * C)
    one.scheduler.start()
    watch.end()
    settled(one)
    assert one.bugs == [error]
    one.hooks.clear()
    assert one.submit(5 * C).end().receipt.restored_tokens > 0
    settled(one)


def test_a_chain_that_needs_more_than_sequences_may_hold_is_not_audited(audits):
    one = audits(live_bytes=1)
    watch = one.submit(5 * C)
    one.scheduler.start()
    watch.end()
    settled(one)
    assert counters(one)["audits_agreed"] == 0
    assert one.units[-1][0] == "decode", "nothing was computed after the answer"


def test_stopping_ends_an_audit_at_the_end_of_its_unit(audits):
    one = audits()
    inside, go_on = threading.Event(), threading.Event()

    def hold(kind, start, end):
        if kind == "prefill" and one.scheduler.status()["running"] == 0:
            inside.set()
            assert go_on.wait(WAIT_S)

    one.hooks.append(hold)
    watch = one.submit(5 * C)
    one.scheduler.start()
    watch.end()
    assert inside.wait(WAIT_S)
    units = len(one.units)
    assert not one.scheduler.stop(0.01)
    go_on.set()
    assert one.scheduler.stop(WAIT_S)
    assert len(one.units) == units
    assert one.audits == []
