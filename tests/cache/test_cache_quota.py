"""Who leaves a store of several models: orphans, the dead, the least recently used."""

from math import inf

import pytest

from surefoot.cache.forest import Node, Stored
from surefoot.cache.inventory import ModelRow
from surefoot.cache.quota import ORPHAN_S, decode_laws, encode_laws, leavers, orphans
from surefoot.testing.cache_kit import FAMILIES, HYBRID, ROWS_ONLY

NOW = 10 * ORPHAN_S
ROWS = encode_laws(ROWS_ONLY)
FRESH, STALE, STALER = NOW - 1, NOW - ORPHAN_S - 1, NOW - 2 * ORPHAN_S


def blocks(letter, count, *, tick=0.0, groups=("rows",)):
    names = [letter * 31 + bytes([index]) for index in range(count)]
    return {
        name: Node(
            names[index - 1] if index else letter * 32,
            index * 4,
            index * 4 + 4,
            {group: Stored(10, tick) for group in groups},
        )
        for index, name in enumerate(names)
    }


def leave(trees, models, free, *, open_models=()):
    gone = list(leavers(trees, models, open_models=open_models, free=free, now=NOW))
    return [(name[:1], name[-1]) for name, _ in gone]


@pytest.mark.parametrize("groups", FAMILIES.values(), ids=FAMILIES)
def test_laws_survive_as_text(groups):
    assert decode_laws(encode_laws(groups)) == {one.name: one.law for one in groups}


@pytest.mark.parametrize(
    "text",
    [None, "", "[]", "3", "{", '{"a": 3}', '{"a": ["other"]}', '{"a": ["window"]}', '{"a": []}',
     '{"a": ["window", 0]}', '{"a": ["window", "x"]}', '{"a": ["rows", 1]}'],
)  # fmt: skip
def test_laws_that_cannot_be_read_are_none(text):
    assert not decode_laws(text)


def test_a_model_is_an_orphan_after_a_week_open_nowhere():
    models = {
        b"a": ModelRow(NOW - ORPHAN_S, None),
        b"b": ModelRow(STALE, None),
        b"c": ModelRow(STALER, None),
        b"d": ModelRow(STALER, None),
    }
    assert orphans(models, open_models={b"d"}, now=NOW) == [b"c", b"b"]


def test_orphans_leave_first_and_the_longest_unopened_before_others():
    models = {
        b"a": ModelRow(FRESH, ROWS),
        b"b": ModelRow(STALE, ROWS),
        b"c": ModelRow(STALER, ROWS),
    }

    def trees():
        return {
            b"a": blocks(b"a", 2, tick=1.0),
            b"b": blocks(b"b", 2, tick=9.0),
            b"c": blocks(b"c", 2, tick=9.0),
        }

    assert leave(trees(), models, 0) == []
    assert leave(trees(), models, 15) == [(b"c", 1), (b"c", 0)]
    assert leave(trees(), models, 21) == [(b"c", 1), (b"c", 0), (b"b", 1)]
    assert len(leave(trees(), models, inf)) == 6
    in_use = leave(trees(), models, 15, open_models={b"a", b"b", b"c"})
    assert in_use == [(b"a", 1), (b"a", 0)]


def test_the_dead_go_even_where_orphans_were_enough():
    models = {b"a": ModelRow(FRESH, encode_laws(HYBRID)), b"c": ModelRow(STALER, ROWS)}
    trees = {b"a": blocks(b"a", 2), b"c": blocks(b"c", 1)}
    assert leave(trees, models, 5) == [(b"c", 0), (b"a", 0), (b"a", 1)]


def test_without_laws_each_part_leaves_by_its_age():
    trees = {b"a": blocks(b"a", 3, groups=("rows", "state"))}
    for index, node in enumerate(trees[b"a"].values()):
        node.parts = {group: Stored(10, float(index)) for group in node.parts}
    assert leave(trees, {}, 15) == [(b"a", 0), (b"a", 0)]
    assert len(list(trees[b"a"].values())) == 3


def test_a_pinned_part_of_an_orphan_stays():
    trees = {b"c": blocks(b"c", 2)}
    trees[b"c"][b"c" * 31 + b"\0"].parts["rows"] = Stored(10, 0.0, fast=True)
    assert leave(trees, {b"c": ModelRow(STALER, ROWS)}, inf) == [(b"c", 1)]
