"""The write budget: a bucket of one hour's bytes that fills evenly."""

from surefoot.cache.write_budget import HOUR_S, WriteBudget, unlimited
from surefoot.testing.cache_kit import Clock


def test_an_hours_bytes_may_be_written_at_once_and_come_back_evenly():
    clock = Clock()
    budget = WriteBudget(1000, clock)
    assert budget.allows(1000)
    budget.spend(1000)
    assert not budget.allows(1)
    clock.pass_(HOUR_S / 4)
    assert budget.allows(250)
    assert not budget.allows(251)
    clock.pass_(10 * HOUR_S)
    assert budget.allows(1000)
    budget.spend(1)
    assert not budget.allows(1000)  # idle hours are not saved up


def test_what_is_larger_than_the_bucket_waits_until_it_is_full_and_is_paid_back():
    clock = Clock()
    budget = WriteBudget(1000, clock)
    assert budget.allows(5000)
    budget.spend(5000)
    clock.pass_(4 * HOUR_S)
    assert not budget.allows(1)
    clock.pass_(HOUR_S)
    assert budget.allows(1000)


def test_no_limit_allows_everything():
    budget = unlimited()
    for _ in range(3):
        assert budget.allows(1 << 60)
        budget.spend(1 << 60)
