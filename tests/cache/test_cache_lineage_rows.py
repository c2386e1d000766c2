"""The index of lineage: what descends from what, what lies aside, whose roots are whose."""

import pytest

from surefoot.cache.fences import FENCE_END
from surefoot.cache.inventory import open_inventory
from surefoot.cache.lineage_rows import Aside, Tenant
from surefoot.errors import TierError
from surefoot.identity import FeatureName
from surefoot.record import FeatureHeader, Header
from surefoot.testing.cache_kit import MODEL, blocks_of, feature_name_of, image_of

TRUNK = blocks_of(range(16))
BRANCH = blocks_of([*range(8), *range(50, 58)])[2:]
OTHER = blocks_of(range(100, 108))
PICTURE = feature_name_of(image_of(1))
ROOT = TRUNK[0].parent


@pytest.fixture
def inventory(tmp_path):
    made = open_inventory(tmp_path / "inventory.sqlite")
    yield made
    made.close()


@pytest.fixture
def rows(inventory):
    return inventory.lineage


def adopt(inventory, *blocks, fence=0, features=()):
    inventory.adopt(
        [(Header(block, "rows", b"c" * 32, tuple(features), fence), 1) for block in blocks],
        tick=0.0,
    )


def adopt_features(inventory, name, *, fence=0):
    header = FeatureHeader(name, MODEL, image_of(1).name, 4, b"c" * 32, fence)
    inventory.features.adopt([(header, 1)], tick=0.0)


def keys(*blocks):
    return {(block.name, "rows") for block in blocks}


def test_below_a_block_are_it_and_all_that_follow_it(inventory, rows):
    adopt(inventory, *TRUNK, *BRANCH, *OTHER)
    assert set(rows.parts_below(TRUNK[2].name, 1)) == keys(*TRUNK[2:])
    assert set(rows.parts_below(TRUNK[1].name, 1)) == keys(*TRUNK[1:], *BRANCH)
    assert rows.parts_below(b"x" * 32, 1) == []


def test_below_a_root_are_all_chains_that_begin_there(inventory, rows):
    adopt(inventory, *TRUNK, *BRANCH, *OTHER)
    assert set(rows.parts_below(ROOT, 1)) == keys(*TRUNK, *BRANCH, *OTHER)


def test_below_features_are_the_blocks_that_consumed_them_and_what_follows(inventory, rows):
    adopt(inventory, TRUNK[0], *TRUNK[2:], *OTHER)
    adopt(inventory, TRUNK[1], features=[PICTURE])
    assert set(rows.parts_below(PICTURE, 1)) == keys(*TRUNK[1:])
    assert rows.consumed_below(ROOT) == rows.consumed_below(TRUNK[1].name) == [PICTURE]
    assert rows.consumed_below(TRUNK[2].name) == []
    inventory.drop(keys(TRUNK[1]))
    assert rows.parts_below(PICTURE, 1) == []
    assert rows.consumed() == set()


def test_what_knew_the_fence_is_not_below_it(inventory, rows):
    adopt(inventory, *TRUNK[:2], fence=3)
    adopt(inventory, TRUNK[2], fence=4)
    adopt(inventory, TRUNK[3], fence=2)
    adopt_features(inventory, PICTURE, fence=3)
    assert set(rows.parts_below(TRUNK[0].name, 4)) == keys(*TRUNK[:2], TRUNK[3])
    assert set(rows.parts_before(3)) == keys(TRUNK[3])
    assert (rows.features_before(3), rows.features_before(4)) == ([], [PICTURE])


def test_the_first_and_last_numbers_are_over_parts_features_and_what_lies_aside(inventory, rows):
    assert (rows.last_number(), rows.first_number() > FENCE_END) == (0, True)
    adopt(inventory, TRUNK[0], fence=5)
    adopt_features(inventory, PICTURE, fence=7)
    assert (rows.first_number(), rows.last_number()) == (5, 7)
    rows.put_aside([Aside("0000000009.x", 9, 4096)])
    assert (rows.first_number(), rows.last_number()) == (5, 9)
    adopt(inventory, TRUNK[1], fence=FENCE_END + 3)
    assert rows.last_number(before=FENCE_END) == 9
    assert rows.last_number() == FENCE_END + 3


def test_what_lies_aside_is_listed_the_oldest_fence_first_and_summed(rows):
    listed = [Aside("b", 2, 10), Aside("a", 10, 5), Aside("c", 2, 1)]
    rows.put_aside(listed)
    rows.put_aside([Aside("c", 2, 3)])
    assert rows.aside() == [Aside("b", 2, 10), Aside("c", 2, 3), Aside("a", 10, 5)]
    assert rows.aside_used() == (18, 3)
    rows.drop_aside(["b", "nothing"])
    assert rows.aside_used() == (8, 2)


def test_a_roots_tenant_is_noted_once(rows):
    rows.note_root(ROOT, Tenant(b"k" * 32, None, b"c" * 32))
    rows.note_root(ROOT, Tenant(None, b"s" * 32, b"c" * 32))
    assert rows.roots() == {ROOT: (b"k" * 32, None, b"c" * 32)}


def test_the_root_of_a_block_is_found_only_through_its_ancestors(inventory, rows):
    adopt(inventory, *TRUNK)
    assert rows.root_of(TRUNK[3].name) == ROOT
    inventory.drop(keys(TRUNK[1]))
    assert rows.root_of(TRUNK[3].name) is None
    assert rows.root_of(TRUNK[0].name) == ROOT
    assert rows.first_blocks() == {ROOT: [TRUNK[0].name], TRUNK[1].name: [TRUNK[2].name]}


def test_a_verdict_stays_with_the_bytes_that_it_is_of(inventory, rows):
    adopt(inventory, TRUNK[0], TRUNK[1])
    rows.judge({TRUNK[0].name: "agreed", TRUNK[1].name: "differed"}, at=3.0)
    assert rows.verdicts() == {TRUNK[0].name: ("agreed", 3.0), TRUNK[1].name: ("differed", 3.0)}
    inventory.drop(keys(*TRUNK[:2]))
    assert rows.verdicts() == {TRUNK[1].name: ("differed", 3.0)}
    adopt(inventory, TRUNK[1])
    assert rows.verdicts() == {}


def test_a_damaged_index_is_a_fault_and_no_answer(inventory, rows):
    inventory.close()
    for ask in (
        rows.last_number,
        rows.aside_used,
        lambda: rows.parts_below(ROOT, 1),
        lambda: rows.put_aside([]),
    ):
        with pytest.raises(TierError):
            ask()


def test_a_name_of_features_is_below_nothing_by_itself(inventory, rows):
    adopt_features(inventory, FeatureName(TRUNK[0].name))
    assert rows.parts_below(TRUNK[0].name, 1) == []
