"""The RAM tier keeps the contract and counts its bytes."""

import pytest

from surefoot.testing.tier_contract import TierContract
from surefoot.tiers import Tier
from surefoot.tiers.ram import RamTier


class TestRamTier(TierContract):
    @pytest.fixture
    def tier(self) -> Tier:
        return RamTier()


def test_used_bytes_are_the_sum_of_the_values():
    tier = RamTier()
    for key, data in (("abc", b"12345"), ("abd", b"1"), ("abc", b"12"), ("abe", b"")):
        tier.put(key, data)
        assert tier.used_bytes == sum(nbytes for _, nbytes in tier.list())
    assert tier.used_bytes == 3
    tier.delete("abc")
    tier.delete("abc")
    assert tier.used_bytes == 1


def test_a_listing_is_not_disturbed_by_what_comes_after_its_first_step():
    tier = RamTier()
    for key in ("abc", "abd"):
        tier.put(key, b"1")
    listing = tier.list()
    first = next(listing)
    tier.delete("abd")
    tier.put("abe", b"1")
    assert {first, *listing} == {("abc", 1), ("abd", 1)}


def test_ram_is_not_durable():
    assert (RamTier().name, RamTier().durable) == ("ram", False)
