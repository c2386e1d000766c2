"""Planted lies: records whose seal is valid, and which hold another conversation's state (I8).

No verification can tell. An audit does: it blames the first block that differs, everything that was
computed on top goes with it, from RAM and from SSD, and answers are the cold ones again.
"""

import pytest
from planting import RAM, SSD, C, Place, picture_of, prompt, state_of

from surefoot.cache import content
from surefoot.cache.audit import AuditVerdict
from surefoot.cache.fences import Reason
from surefoot.receipt import Miss
from surefoot.record import key
from surefoot.testing.cache_kit import spoiled, spoiled_features
from surefoot.testing.fake_engine import FakeEngine
from surefoot.turn import CacheMode

pytestmark = pytest.mark.usefixtures("patience")

MINE, OTHERS = prompt(6 * C + 2), prompt(6 * C + 2, seed=9)
LIES = [("rows-0", 2), ("window-0", 3), ("snapshot-0", 5)]


@pytest.fixture
def place(tmp_path):
    one = Place(tmp_path / "store")
    yield one
    one.close()


def planted(place, group, index, **how):
    """Ask, plant a lie in the stored block, and return the cold answer and the blocks."""
    cold, _ = place.cold(MINE)
    place.ask(MINE)
    chain = place.chain(MINE)
    lie = state_of(place.engine, OTHERS, chain[index], group)
    place.plant(chain[index], group, lie, **how)
    return cold, chain


def check_caught(place, chain, index, group, account):
    """The first wrong block is blamed, and it and all that follows is held nowhere any more."""
    names = [block.name for block in chain]
    assert account.fence.name == names[index]
    assert account.fence.reason is Reason.AUDITED
    assert group in account.finding
    assert names[index].hex() in account.finding
    assert account.verdicts[names[index]] is AuditVerdict.DIFFERED
    assert {account.verdicts[name] for name in names[:index]} <= {AuditVerdict.AGREED}
    assert not account.verdicts.keys() & set(names[index + 1 :])
    for held in place.stored().values():
        assert not {one for one in held for name in names[index:] if one.startswith(name.hex())}
    kept = place.stored()[SSD] if place.store else place.stored()[RAM]
    assert {one.partition(".")[0] for one in kept} >= {name.hex() for name in names[:index]}


def check_healed(place, cold, index):
    """The next answer computes from below the lie; those after it are warm again, and true."""
    again, receipt = place.ask(MINE)
    assert again == cold
    assert receipt.restored_tokens <= index * C
    assert receipt.miss_reason is Miss.QUARANTINED
    warm, receipt = place.ask(MINE)
    assert warm == cold
    assert receipt.restored_tokens == 6 * C
    verdicts = {one for account in place.audit() for one in account.verdicts.values()}
    assert verdicts == {AuditVerdict.AGREED}


@pytest.mark.parametrize("where", [(RAM,), (SSD,), (RAM, SSD)], ids="+".join)
@pytest.mark.parametrize(("group", "index"), LIES)
def test_a_lie_in_any_tier_is_caught_and_takes_what_stands_on_it(place, group, index, where):
    cold, chain = planted(place, group, index, where=where)
    (account,) = place.audit()
    check_caught(place, chain, index, group, account)
    assert all(tier in account.finding for tier in where)
    assert not [tier for tier in {RAM, SSD} - set(where) if f"in {tier}" in account.finding]
    check_healed(place, cold, index)


@pytest.mark.parametrize("lose_index", [False, True], ids=["index", "index-lost"])
@pytest.mark.parametrize(("group", "index"), LIES)
def test_a_lie_is_caught_after_a_restart(place, group, index, lose_index):
    cold, chain = planted(place, group, index)
    place.restart(lose_index=lose_index)
    (account,) = place.audit()
    check_caught(place, chain, index, group, account)
    place.restart(lose_index=lose_index)
    check_healed(place, cold, index)


def test_such_a_lie_is_served_until_it_is_caught(place):
    """What the tests above plant is no idle threat: no check on the way to an answer sees it."""
    cold, _ = planted(place, "snapshot-0", 5)
    false, receipt = place.ask(MINE)
    assert false != cold
    assert receipt.verified
    assert receipt.restored_tokens == 6 * C


@pytest.mark.parametrize(("group", "index"), LIES)
def test_a_lie_without_a_store_is_caught(group, index):
    place = Place(None)
    cold, chain = planted(place, group, index, where=(RAM,))
    (account,) = place.audit()
    check_caught(place, chain, index, group, account)
    check_healed(place, cold, index)
    place.close()


@pytest.mark.parametrize(("group", "index"), LIES)
def test_a_record_that_states_the_true_content_over_false_bytes_is_caught(place, group, index):
    cold, chain = planted(place, group, index)
    true = content(state_of(place.engine, MINE, chain[index], group))
    lie = state_of(place.engine, OTHERS, chain[index], group)
    place.plant(chain[index], group, lie, stated=true)
    (account,) = place.audit()
    check_caught(place, chain, index, group, account)
    assert "holds other bytes" in account.finding
    check_healed(place, cold, index)


def test_a_record_that_states_a_false_content_over_true_bytes_is_caught(place):
    """Its receipt would give a digest that no cold answer has."""
    cold, chain = planted(place, "rows-0", 2)
    true = state_of(place.engine, MINE, chain[2], "rows-0")
    place.plant(chain[2], "rows-0", true, stated=b"x" * 32)
    (account,) = place.audit()
    check_caught(place, chain, 2, "rows-0", account)
    assert "states a content that its bytes do not have" in account.finding
    check_healed(place, cold, 2)


def test_of_two_lies_the_first_is_blamed(place):
    cold, chain = planted(place, "rows-0", 4)
    place.plant(chain[1], "window-0", state_of(place.engine, OTHERS, chain[1], "window-0"))
    (account,) = place.audit()
    check_caught(place, chain, 1, "window-0", account)
    check_healed(place, cold, 1)


def test_a_branch_falls_with_the_block_it_leaves_and_stays_if_it_leaves_before(place):
    low, high = MINE[: 2 * C] + OTHERS[2 * C :], MINE[: 4 * C] + OTHERS[4 * C :]
    place.ask(low)
    place.ask(high)
    lows, highs = place.chain(low), place.chain(high)
    _, chain = planted(place, "rows-0", 3)
    place.audit()
    held = set().union(*place.stored().values())
    assert not {one for one in held for block in highs[3:] if one.startswith(block.name.hex())}
    assert {key(block.name, "rows-0") for block in lows} <= held
    assert place.ask(low)[1].restored_tokens == len(low) // C * C
    cold, _ = place.cold(high)
    assert place.ask(high)[0] == cold
    assert chain[3] in highs


# --- what a vision tower made ---------------------------------------------------------------------

PICTURE, OTHER_PICTURE = bytes([5]) * 20, bytes([5]) * 19 + b"?"


@pytest.mark.parametrize("where", [(RAM,), (SSD,), (RAM, SSD)], ids="+".join)
def test_false_features_are_caught_and_every_block_that_consumed_them_goes(place, where):
    first, second = picture_of("what is this, ", PICTURE), picture_of("and that, ", PICTURE)
    cold, _ = place.cold(second)
    place.ask(first)
    (name,) = place.ledger.features.values()
    place.cold(picture_of("other", OTHER_PICTURE))
    (item,) = place.ledger.media
    place.plant_features(name, place.engine.encode(item), where=where)
    if RAM in where:
        false, receipt = place.ask(second)
        assert false != cold
        assert [one.feature_hit for one in receipt.media] == [True]
    accounts = place.audit()
    (caught,) = [one for one in accounts if one.fence is not None]
    assert caught.fence.name == name
    assert caught.features == {name: AuditVerdict.DIFFERED}
    assert not [one for one in place.stored()[SSD] if one.startswith(name.hex())]
    again, receipt = place.ask(second)
    assert again == cold
    assert [one.feature_hit for one in receipt.media] == [False]
    assert place.ask(second)[0] == cold
    found = place.audit()
    assert {one for account in found for one in account.verdicts.values()} == {AuditVerdict.AGREED}
    assert {one for account in found for one in account.features.values()} == {AuditVerdict.AGREED}


@pytest.mark.parametrize("where", [RAM, SSD])
def test_features_that_state_the_true_content_over_false_bytes_are_caught(place, where):
    place.ask(picture_of("what is this, ", PICTURE))
    (name,), (mine,) = place.ledger.features.values(), place.ledger.media
    place.cold(picture_of("other", OTHER_PICTURE))
    (other,) = place.ledger.media
    true = content(place.engine.encode(mine))
    place.plant_features(name, place.engine.encode(other), where=[where], stated=true)
    (account,) = place.audit()
    assert account.features == {name: AuditVerdict.DIFFERED}
    assert f"in {where} holds other bytes" in account.finding


def test_without_the_item_what_consumed_it_is_unauditable_and_what_came_before_is_not(place):
    asked = picture_of("a long text comes first, ", PICTURE)
    place.ask(asked)
    blocks = place.chain(asked)
    (account,) = place.audit(media=False)
    first = next(at for at, block in enumerate(blocks) if block.spans)
    assert first > 2
    wanted = [AuditVerdict.AGREED] * first + [AuditVerdict.UNAUDITABLE] * (len(blocks) - first)
    assert [account.verdicts[block.name] for block in blocks] == wanted
    assert account.computed_tokens == first * C


# --- an engine that does not repeat itself --------------------------------------------------------


class Fickle(FakeEngine):
    """Gives, for one block, another state in every run."""

    __slots__ = ("runs", "steady")

    def begin(self, *given):
        run = super().begin(*given)
        self.runs = getattr(self, "runs", 0) + 1
        cut, tries = run.cut, self.runs

        def fickle(start, groups):
            parts = cut(start, groups)
            odd = start == 2 * C and tries % 2 and not getattr(self, "steady", False)
            return tuple(spoiled(part) if odd else part for part in parts)

        run.cut = fickle
        return run


@pytest.fixture
def fickle(tmp_path):
    one = Place(tmp_path / "store", engine=Fickle(block_tokens=C))
    yield one
    one.close()


@pytest.mark.parametrize("runs", [0, 1], ids=["stored-odd", "stored-even"])
def test_an_engine_that_differs_from_itself_quarantines_nothing_and_is_numeric(fickle, runs):
    fickle.engine.runs = runs
    _, receipt = fickle.ask(MINE)
    assert receipt.exact == "bitwise"
    blocks, held = fickle.ledger.plan.blocks, fickle.stored()
    fickle.engine.runs = runs + 1  # the audit's first run is unlike what is stored
    (account,) = fickle.audit()
    assert account.verdicts[blocks[2].name] is AuditVerdict.UNREPEATABLE
    assert account.fence is None
    assert fickle.stored() == held
    status = fickle.cache.status()
    assert (status["exact"], status["fences"], status["counters"]["quarantines"]) == (
        "numeric",
        0,
        0,
    )
    assert status["counters"]["audits_unrepeatable"] == 1
    assert fickle.ask(MINE)[1].exact == "numeric"
    fickle.restart()
    assert fickle.ask(MINE)[1].exact == "numeric"


class FickleTower(FakeEngine):
    """Makes other features of an item each time."""

    __slots__ = ()

    def encode(self, item):
        made = super().encode(item)
        return spoiled_features(made) if len(self.encoded) % 2 else made


def test_a_tower_that_differs_from_itself_quarantines_nothing_and_is_numeric(tmp_path):
    place = Place(tmp_path / "store", engine=FickleTower(block_tokens=C))
    place.ask(picture_of("what is this, ", PICTURE))
    (name,) = place.ledger.features.values()
    (account,) = place.audit()
    assert account.features == {name: AuditVerdict.UNREPEATABLE}
    assert account.fence is None
    assert place.cache.exact == "numeric"
    place.close()


def test_what_an_engine_got_wrong_once_is_quarantined(fickle):
    """One run that went wrong, and an engine that repeats itself since: the record is the lie."""
    cold, _ = fickle.cold(MINE)
    fickle.engine.runs = 0
    fickle.ask(MINE)
    fickle.engine.steady = True
    (account,) = fickle.audit()
    assert account.fence.name == fickle.ledger.plan.blocks[2].name
    assert fickle.cache.exact == "bitwise"
    assert fickle.ask(MINE)[0] == cold


def test_of_an_engine_known_to_differ_from_itself_nothing_is_blamed(place):
    _, chain = planted(place, "rows-0", 2)
    place.cache.not_repeating("seen elsewhere")
    (account,) = place.audit()
    assert account.verdicts[chain[2].name] is AuditVerdict.UNREPEATABLE
    assert account.fence is None


# --- a free audit: a name that is held is committed again -----------------------------------------


def test_committing_what_is_held_changes_nothing_if_it_is_the_same(place):
    place.ask(MINE)
    held = place.stored()
    _, receipt = place.ask(MINE, CacheMode.WRITE)
    assert receipt.committed_tokens == 0
    assert place.stored() == held
    assert place.cache.status()["fences"] == 0
    assert place.cache.status()["counters"]["disagreements"] == 0


@pytest.mark.parametrize("where", [(RAM,), (SSD,), (RAM, SSD)], ids="+".join)
def test_committing_what_is_held_fences_both_results_if_it_differs(place, where):
    cold, chain = planted(place, "rows-0", 2, where=where)
    if RAM not in where:
        place.ram_bytes = 0
        place.restart()
    place.ask(MINE, CacheMode.WRITE)
    counters = place.cache.status()["counters"]
    assert counters["disagreements"] == 1
    assert place.cache.status()["fences"] == 1
    held = set().union(*place.stored().values())
    assert not {one for one in held for block in chain[2:] if one.startswith(block.name.hex())}
    again, receipt = place.ask(MINE)
    assert again == cold
    assert receipt.restored_tokens <= 2 * C
    assert place.ask(MINE)[0] == cold
