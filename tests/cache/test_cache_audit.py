"""What an audit asks of the cache: which chains there are, and every copy as it lies there."""

import pytest

from surefoot.cache import content
from surefoot.cache.audit import AuditVerdict, Copies, Copy
from surefoot.cache.fences import Reason
from surefoot.cache.planner import Source
from surefoot.errors import TierError
from surefoot.identity import ModelName
from surefoot.record import key, seal
from surefoot.testing.cache_kit import (
    HYBRID,
    Bench,
    blocks_of,
    commit,
    feature_name_of,
    features_of,
    image_of,
    part_of,
    spoiled,
    take_turn,
)

pytestmark = pytest.mark.usefixtures("patience")

SHARED = list(range(8))
FIRST, SECOND = blocks_of([*SHARED, *range(100, 108)]), blocks_of([*SHARED, *range(200, 208)])
DEADLINE_S = 5.0


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "store", HYBRID)


def leaves(cache):
    return [leaf.name for leaf in cache.auditor.leaves()]


def copies(cache, block, cover=0):
    return cache.auditor.copies(block, cover=cover, deadline_s=DEADLINE_S)


def fill(cache, *chains):
    for blocks in chains:
        for block in blocks:
            commit(cache, block)
    assert cache.drain(60)


# --- which chains there are -----------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["ram", "ssd", "both"])
def test_a_chain_is_known_by_its_last_stored_block(bench, stored, tmp_path):
    bench.folder = None if stored == "ram" else bench.folder
    bench.ram_bytes = 0 if stored == "ssd" else bench.ram_bytes
    with bench.open() as cache:
        fill(cache, FIRST, SECOND[:3])
        assert set(leaves(cache)) == {FIRST[-1].name, SECOND[2].name}
        ends = {leaf.name: leaf.end for leaf in cache.auditor.leaves()}
        assert ends[SECOND[2].name] == SECOND[2].end
        fill(cache, SECOND)
        assert set(leaves(cache)) == {FIRST[-1].name, SECOND[-1].name}


def test_a_block_in_ram_alone_is_no_leaf_if_the_store_goes_on_below_it(bench):
    with bench.open() as cache:
        fill(cache, FIRST)
        for group in HYBRID:
            cache._ram.remove((FIRST[-1].name, group.name))
            cache._ssd.inventory.drop([(FIRST[-2].name, group.name)])
        assert leaves(cache) == [FIRST[-1].name]


def test_a_block_that_only_ram_holds_ends_the_chain_that_the_store_begins(bench):
    with bench.open() as cache:
        fill(cache, FIRST)
        for group in HYBRID:
            cache._ssd.inventory.drop([(FIRST[-1].name, group.name)])
        assert leaves(cache) == [FIRST[-1].name]


def test_another_models_chains_are_left_alone(bench):
    other = ModelName(b"o" * 32)
    with bench.open(model=other) as cache:
        fill(cache, blocks_of(range(8), model=other))
    with bench.open() as cache:
        fill(cache, FIRST)
        assert leaves(cache) == [FIRST[-1].name]


def test_the_longest_unaudited_comes_first_and_among_equals_the_last_used(bench):
    with bench.open() as cache:
        for blocks in (FIRST, SECOND):
            fill(cache, blocks)
            bench.clock.pass_(10)
            bench.wall.pass_(10)
        a, b = FIRST[-1].name, SECOND[-1].name
        assert leaves(cache) == [b, a]
        take_turn(cache, [*SHARED, *range(100, 108), 1])  # uses the first chain
        assert leaves(cache) == [a, b]
        cache.auditor.note({a: AuditVerdict.AGREED})
        assert leaves(cache) == [b, a]
        bench.wall.pass_(10)
        cache.auditor.note({b: AuditVerdict.UNAUDITABLE})
        assert leaves(cache) == [a, b]
        assert cache.drain(60)
    with bench.open() as cache:
        assert leaves(cache) == [a, b], "as written down"


def test_a_large_index_is_looked_at_in_pieces_and_what_left_is_forgotten(bench, monkeypatch):
    monkeypatch.setattr("surefoot.cache.audit.LOOK_BLOCKS", 3)
    bench.ram_bytes = 0
    with bench.open() as cache:
        fill(cache, FIRST, SECOND)
        assert leaves(cache) == [], "three blocks into the first chain"
        assert set(leaves(cache)) == {FIRST[-1].name, SECOND[-1].name}
        assert {leaf.name for leaf in cache.auditor.all_leaves()} == set(leaves(cache))
        cache._ssd.inventory.drop([(SECOND[-1].name, group.name) for group in HYBRID])
        for _ in range(4):
            seen = leaves(cache)
        assert set(seen) == {FIRST[-1].name, SECOND[-2].name}


# --- every copy -----------------------------------------------------------------------------------


def test_both_tiers_are_read_and_digested_anew(bench):
    with bench.open() as cache:
        fill(cache, FIRST)
        found = copies(cache, FIRST[1])
        assert found.found.keys() == {
            (group, source) for group in ("rows", "state") for source in Source
        }
        assert found.groups == {"rows", "state"}
        made = {one.name: content(part_of(one, FIRST[1])) for one in HYBRID}
        assert found.unlike(made) is None
        bench.tier.put(
            key(FIRST[1].name, "rows"),
            seal(FIRST[1], spoiled(part_of(HYBRID[0], FIRST[1])), content=made["rows"], fence=0),
        )
        wrong = copies(cache, FIRST[1]).unlike(made)
        assert wrong == "rows in ssd holds other bytes than were computed"


def test_reading_copies_promotes_nothing_and_notes_no_use(bench):
    bench.ram_bytes = 0
    with bench.open() as cache:
        fill(cache, FIRST)
        ticks = {row.name: row.tick for row in cache._ssd.inventory.rows()}
        bench.wall.pass_(1000)
        assert copies(cache, FIRST[0]).found
        cache._ssd.save_ticks()
        assert {row.name: row.tick for row in cache._ssd.inventory.rows()} == ticks
        assert cache.status()["tiers"]["ram"]["parts"] == 0


def damage(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_copy_that_is_not_what_was_sealed_is_a_fault(bench):
    with bench.open() as cache:
        fill(cache, FIRST)
        bench.tier.mangle = damage
        found = copies(cache, FIRST[0])
        assert found.faults.keys() == {("rows", Source.SSD), ("state", Source.SSD)}
        assert found.found.keys() == {("rows", Source.RAM), ("state", Source.RAM)}
        made = {one.name: content(part_of(one, FIRST[0])) for one in HYBRID}
        assert "rows in ssd the bytes do not digest" in found.unlike(made)


def test_a_record_of_another_shape_or_model_is_a_fault_however_well_it_is_sealed(bench):
    block, made = FIRST[1], part_of(HYBRID[0], FIRST[1])
    longer = part_of(HYBRID[0], blocks_of(range(8))[0]._replace(start=0, end=8))
    with bench.open() as cache:
        fill(cache, FIRST)
        for wrong, part in ((block, longer), (block._replace(model=b"o" * 32), made)):
            data = seal(wrong, part, content=content(part), fence=0)
            bench.tier.put(key(block.name, "rows"), data)
            assert copies(cache, block).faults.keys() == {("rows", Source.SSD)}


@pytest.mark.parametrize("fault", ["absent", "failing", "late"])
def test_a_copy_that_cannot_be_read_is_no_copy(bench, fault):
    with bench.open() as cache:
        fill(cache, FIRST)
        if fault == "absent":
            bench.tier.delete(key(FIRST[0].name, "rows"))
            bench.tier.delete(key(FIRST[0].name, "state"))
        bench.tier.fail_gets = fault == "failing"
        bench.tier.hold = fault == "late"
        deadline_s = 0.0 if fault == "late" else DEADLINE_S
        found = cache.auditor.copies(FIRST[0], cover=0, deadline_s=deadline_s)
        assert not found.faults
        assert {source for _, source in found.found} <= {Source.RAM}


def test_what_a_fence_bars_is_no_copy_and_neither_is_what_follows_it(bench):
    with bench.open() as cache:
        fill(cache, FIRST)
        cache.quarantine(FIRST[1].name, Reason.BY_HAND, "")
        assert copies(cache, FIRST[0]).found
        barred = copies(cache, FIRST[1])
        assert (barred.found, barred.cover) == ({}, 1)
        assert cache.drain(60)
    with bench.open() as cache:  # an older record that came back, say from a backup
        block = FIRST[2]
        data = seal(block, part_of(HYBRID[0], block), content=b"c" * 32, fence=0)
        cache._ram._tier.put(key(block.name, "rows"), data)
        commit(cache, block, groups=["rows"])
        cache._ram._tier.put(key(block.name, "rows"), data)
        assert copies(cache, block, cover=1).found.keys() <= {("rows", Source.SSD)}


def test_while_the_fences_cannot_be_read_nothing_counts_as_a_copy(bench, monkeypatch):
    item = image_of(1)
    name = feature_name_of(item)

    def fails():
        raise TierError("the medium failed")

    with bench.open() as cache:
        fill(cache, FIRST)
        cache.commit_features(name, item, features_of(item))
        assert cache.drain(60)
        monkeypatch.setattr(cache._fences, "refresh", fails)
        assert copies(cache, FIRST[0], cover=3) == Copies(cover=3)
        assert cache.auditor.feature_copies(name, item, deadline_s=DEADLINE_S) == Copies()


def test_a_fence_on_features_bars_the_copies_that_consumed_them(bench):
    name = feature_name_of(image_of(1))
    with bench.open() as cache:
        commit(cache, FIRST[0], features=[name])
        assert cache.drain(60)
        assert copies(cache, FIRST[0]).features == (name,)
        data = bench.tier.get(key(FIRST[0].name, "rows"))
        cache.quarantine(name, Reason.BY_HAND, "")
        assert cache.drain(60)
        commit(cache, FIRST[0])
        assert cache.drain(60)
        bench.tier.put(key(FIRST[0].name, "rows"), data)
        assert ("rows", Source.SSD) not in copies(cache, FIRST[0]).found


def test_features_are_read_from_both_tiers(bench):
    item = image_of(1)
    name = feature_name_of(item)
    with bench.open() as cache:
        cache.commit_features(name, item, features_of(item))
        assert cache.drain(60)
        found = cache.auditor.feature_copies(name, item, deadline_s=DEADLINE_S)
        assert found.found.keys() == {("", Source.RAM), ("", Source.SSD)}
        assert found.unlike({"": content(features_of(item))}) is None
        assert found.unlike({"": b"x" * 32}).startswith("in ram holds other bytes")
        another = cache.auditor.feature_copies(name, image_of(2), deadline_s=DEADLINE_S)
        assert another.faults.keys() == found.found.keys()
        cache.quarantine(name, Reason.BY_HAND, "")
        assert not cache.auditor.feature_copies(name, item, deadline_s=DEADLINE_S).found


def test_a_copy_that_misstates_itself_is_told_from_one_that_holds_other_bytes():
    made = {"rows": b"a" * 32}
    for held, stated, wrong in [
        (b"a" * 32, b"a" * 32, None),
        (b"b" * 32, b"b" * 32, "rows in ram holds other bytes than were computed"),
        (b"b" * 32, b"a" * 32, "rows in ram holds other bytes than were computed"),
        (b"a" * 32, b"b" * 32, "rows in ram states a content that its bytes do not have"),
    ]:
        assert Copies({("rows", Source.RAM): Copy(held, stated, 0)}).unlike(made) == wrong


# --- verdicts -------------------------------------------------------------------------------------


def verdicts(cache):
    return {name: one for name, (one, _) in cache._ssd.inventory.lineage.verdicts().items()}


def test_verdicts_are_counted_and_written_down(bench):
    a, b = FIRST[0].name, FIRST[1].name
    with bench.open() as cache:
        fill(cache, FIRST)
        cache.auditor.note({a: AuditVerdict.AGREED, b: AuditVerdict.DIFFERED})
        cache.auditor.note({a: AuditVerdict.UNAUDITABLE, b"g" * 32: AuditVerdict.UNAUDITABLE})
        assert cache.drain(60)
        counters = cache.status()["counters"]
        assert [counters[f"audits_{one}"] for one in AuditVerdict] == [1, 1, 2, 0]
        assert verdicts(cache) == {a: "agreed", b: "differed"}, "whose bytes were compared"
        cache.auditor.note({FIRST[2].name: AuditVerdict.UNAUDITABLE, b: AuditVerdict.AGREED})
        assert cache.drain(60)
        assert verdicts(cache) == {a: "agreed", b: "agreed", FIRST[2].name: "unauditable"}


def test_a_verdict_goes_with_the_bytes_it_was_of_and_a_difference_stays_until_they_are_anew(bench):
    a, b = FIRST[0].name, FIRST[1].name
    with bench.open() as cache:
        for block in FIRST[:2]:
            commit(cache, block, groups=["rows"])
        assert cache.drain(60)
        cache.auditor.note({a: AuditVerdict.AGREED})
        assert cache.drain(60)
        commit(cache, FIRST[0], groups=["state"])
        assert cache.drain(60)
        assert verdicts(cache) == {}, "there is more under the name than was compared"
        cache.auditor.note({a: AuditVerdict.AGREED, b: AuditVerdict.DIFFERED})
        assert cache.drain(60)
        cache.quarantine(a, Reason.AUDITED, "")
        assert cache.drain(60)
        assert verdicts(cache) == {b: "differed"}
        commit(cache, FIRST[0])
        commit(cache, FIRST[1])
        assert cache.drain(60)
        assert verdicts(cache) == {}
