"""What every tier keeps, as a pytest suite: subclass ``TierContract`` and give it one fixture."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from surefoot.tiers import Tier

KEYS = ("abc", "abd", "b.c-d", "0" * 64 + ".full", "z" * 200)
NOT_KEYS = ("", "ab", "AbC", "a/bc", "..c", ".bc", "a bc", "abc\n", "z" * 201)
ROUNDS = 20


class TierContract:
    """The suite; a subclass overrides the fixture ``tier`` with a new, empty tier for each test."""

    @pytest.fixture
    def tier(self) -> Tier:
        """Return a new, empty tier."""
        raise NotImplementedError

    def test_an_absent_key_is_none(self, tier: Tier) -> None:
        """A miss is a value, not an error."""
        assert tier.get("abc") is None
        assert list(tier.list()) == []

    @pytest.mark.parametrize("data", [b"", b"\0", b"abc", bytes(range(256)) * 4096])
    def test_what_was_put_is_what_comes_back(self, tier: Tier, data: bytes) -> None:
        """Whole, whatever the bytes and however many."""
        tier.put("abc", data)
        assert tier.get("abc") == data
        assert type(tier.get("abc")) is bytes

    def test_every_key_has_its_own_value(self, tier: Tier) -> None:
        """The longest key and the shortest, with every kind of character."""
        for key in KEYS:
            tier.put(key, key.encode())
        assert {key: tier.get(key) for key in KEYS} == {key: key.encode() for key in KEYS}

    def test_the_last_put_wins(self, tier: Tier) -> None:
        """A longer and a shorter value replace the first alike."""
        for data in (b"first", b"the second", b"3"):
            tier.put("abc", data)
            assert tier.get("abc") == data
        assert [key for key, _ in tier.list()] == ["abc"]

    def test_a_deleted_key_is_absent_and_the_others_stay(self, tier: Tier) -> None:
        """Its neighbours in name and in folder are untouched."""
        for key in KEYS:
            tier.put(key, b"value")
        tier.delete("abc")
        assert tier.get("abc") is None
        assert {key for key, _ in tier.list()} == set(KEYS) - {"abc"}
        tier.put("abc", b"again")
        assert tier.get("abc") == b"again"

    def test_deleting_an_absent_key_is_a_no_op(self, tier: Tier) -> None:
        """Twice, and before anything was stored."""
        tier.delete("abc")
        tier.put("abd", b"value")
        tier.delete("abc")
        assert tier.get("abd") == b"value"

    def test_put_and_list_agree_on_the_bytes_taken(self, tier: Tier) -> None:
        """And no value takes up less than it holds."""
        taken = {key: tier.put(key, key.encode() * 1000) for key in KEYS}
        assert dict(tier.list()) == taken
        assert all(nbytes >= len(key) * 1000 for key, nbytes in taken.items())

    @pytest.mark.parametrize("key", NOT_KEYS)
    def test_what_is_no_key_is_a_bug(self, tier: Tier, key: str) -> None:
        """No key reaches outside the tier's own folder."""
        for act in (lambda: tier.put(key, b""), lambda: tier.get(key), lambda: tier.delete(key)):
            with pytest.raises(AssertionError):
                act()

    def test_threads_that_put_one_key_leave_one_whole_value(self, tier: Tier) -> None:
        """No reader ever sees a mixture, and no writer's leftovers are listed."""
        values = [bytes([one]) * 10_000 for one in range(4)]
        together = Barrier(len(values), timeout=60)

        def work(data: bytes) -> list[bytes | None]:
            together.wait()
            seen = []
            for _ in range(ROUNDS):
                tier.put("abc", data)
                seen.append(tier.get("abc"))
            return seen

        with ThreadPoolExecutor(len(values)) as pool:
            seen = [value for one in pool.map(work, values) for value in one]
        assert set(seen) <= set(values)
        assert [key for key, _ in tier.list()] == ["abc"]

    def test_threads_with_keys_of_their_own_do_not_meet(self, tier: Tier) -> None:
        """Puts and deletes of neighbours in one folder."""
        together = Barrier(4, timeout=60)

        def work(thread: int) -> None:
            together.wait()
            for one in range(ROUNDS):
                key = f"ab{thread}-{one}"
                tier.put(key, key.encode())
                if one % 2:
                    tier.delete(key)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        kept = {f"ab{thread}-{one}" for thread in range(4) for one in range(0, ROUNDS, 2)}
        assert {key for key, _ in tier.list()} == kept
        assert all(tier.get(key) == key.encode() for key in kept)
