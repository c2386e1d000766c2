"""The index's table of features: rows, sums apart from the parts', and what opening sets right."""

import sqlite3
from dataclasses import replace

import pytest

from surefoot.cache.feature_rows import NAMES_PER_QUERY, Held
from surefoot.cache.inventory import open_inventory
from surefoot.cache.lifecycle import FileRow, State, Verdict
from surefoot.errors import TierError
from surefoot.identity import FeatureName, MediaName
from surefoot.record import FeatureHeader, Header
from surefoot.testing.cache_kit import MODEL, blocks_of


def header(number, *, content=b"c" * 32, tokens=4):
    name = FeatureName(number.to_bytes(32, "big"))
    return FeatureHeader(name, MODEL, MediaName(b"i" * 32), tokens, content)


ONE, TWO, THREE = header(1), header(2), header(3)


@pytest.fixture
def inventory(tmp_path):
    made = open_inventory(tmp_path / "inventory.sqlite")
    yield made
    made.close()


@pytest.fixture
def rows(inventory):
    return inventory.features


def stage(rows, one, *, owner="me", nbytes=10, tick=1.0, cover=0):
    return rows.stage(one, owner=owner, nbytes=nbytes, tick=tick, cover=cover)


def store(rows, one, *, nbytes=10, tick=1.0):
    assert stage(rows, one, nbytes=nbytes, tick=tick) is Verdict.STAGED
    assert rows.publish(one.name, content=one.content, nbytes=nbytes)


def test_staged_features_are_counted_and_not_held(rows):
    assert stage(rows, ONE, nbytes=7) is Verdict.STAGED
    assert rows.held([ONE.name]) == {}
    assert list(rows.rows()) == []
    assert rows.used() == (7, 1)
    assert rows.publish(ONE.name, content=ONE.content, nbytes=9)
    assert rows.held([ONE.name, TWO.name]) == {ONE.name: Held(ONE.content, 0)}
    assert rows.used() == (9, 1)


def test_features_are_staged_once_and_their_content_compared(rows):
    stage(rows, ONE)
    assert stage(rows, ONE) is Verdict.HELD
    assert stage(rows, replace(ONE, content=b"d" * 32)) is Verdict.DIFFERENT
    assert stage(rows, TWO) is Verdict.STAGED


def test_stored_features_behind_a_fence_are_in_the_way_and_staged_ones_are_their_writers(rows):
    store(rows, replace(ONE, fence=3))
    assert stage(rows, ONE, cover=3) is Verdict.HELD
    assert stage(rows, replace(ONE, content=b"d" * 32), cover=4) is Verdict.BARRED
    stage(rows, TWO)
    assert stage(rows, TWO, cover=4) is Verdict.LEAVING
    assert stage(rows, replace(TWO, content=b"d" * 32), cover=4) is Verdict.LEAVING


def test_publishing_what_was_dropped_or_is_other_content_says_so(rows):
    stage(rows, ONE)
    assert not rows.publish(ONE.name, content=b"d" * 32, nbytes=1)
    rows.drop([ONE.name])
    assert not rows.publish(ONE.name, content=ONE.content, nbytes=1)
    assert rows.used() == (0, 0)


def test_features_that_another_process_has_staged_are_written_by_this_one_too(rows):
    stage(rows, ONE, nbytes=7)
    assert stage(rows, ONE, owner="other", nbytes=8) is Verdict.STAGED
    rows.drop_staged({ONE.name: FileRow(State.STAGED, "me", 7)})
    rows.retract(ONE.name, owner="me", delete=pytest.fail)
    assert rows.publish(ONE.name, content=ONE.content, nbytes=9)
    rows.retract(ONE.name, owner="other", delete=pytest.fail)
    assert rows.used() == (9, 1)
    deleted = []
    stage(rows, TWO)
    rows.retract(TWO.name, owner="me", delete=lambda: deleted.append(TWO.name))
    stage(rows, TWO, owner="dead")
    rows.drop_staged({TWO.name: FileRow(State.STAGED, "dead", 10)})
    assert (rows.used(), deleted) == ((9, 1), [TWO.name])


def test_the_sums_of_parts_and_features_are_apart(inventory, rows):
    (block,) = blocks_of(range(4))
    inventory.adopt([(Header(block, "rows", b"c" * 32, ()), 5)], tick=0.0)
    store(rows, ONE, nbytes=7)
    assert (inventory.used(), rows.used()) == ((5, 1), (7, 1))
    rows.drop([ONE.name, TWO.name])
    assert (inventory.used(), rows.used()) == ((5, 1), (0, 0))


def test_rows_come_the_least_recently_used_first_and_uses_only_rise(rows):
    for one, tick in ((ONE, 3.0), (TWO, 1.0), (THREE, 3.0)):
        store(rows, one, tick=tick)
    assert [row.name for row in rows.rows()] == [TWO.name, ONE.name, THREE.name]
    rows.touch({TWO.name: 5.0, ONE.name: 2.0, header(9).name: 9.0})
    assert [(row.name, row.tick) for row in rows.rows()] == [
        (ONE.name, 3.0),
        (THREE.name, 3.0),
        (TWO.name, 5.0),
    ]


def test_adopting_never_replaces_a_row_and_resizing_leaves_staged_ones(rows):
    stage(rows, ONE, nbytes=5)
    rows.adopt([(replace(ONE, content=b"d" * 32), 99), (TWO, 98)], tick=3.0)
    assert rows.files() == {ONE.name: (State.STAGED, "me", 5), TWO.name: (State.STORED, "", 98)}
    rows.resize({ONE.name: 99, TWO.name: 1})
    assert rows.used() == (6, 2)


def test_more_names_than_one_statement_takes_are_asked_for(rows):
    store(rows, ONE)
    names = [header(index).name for index in range(2, NAMES_PER_QUERY * 2)]
    assert rows.held([*names, ONE.name]) == {ONE.name: Held(ONE.content, 0)}


def test_a_model_known_from_its_features_alone_gets_a_row(inventory, rows):
    store(rows, ONE)
    inventory.note_models(at=4.0)
    assert inventory.models()[MODEL] == (4.0, None)


def test_a_failed_write_changes_nothing(rows):
    store(rows, ONE)
    with pytest.raises(TierError):
        rows.adopt([(TWO, 1), (header(3, tokens=0), 1)], tick=object())
    assert rows.used() == (10, 1)
    assert rows.held([TWO.name]) == {}


def test_sums_are_counted_anew_when_opened(tmp_path, inventory, rows):
    store(rows, ONE)
    inventory.close()
    path = tmp_path / "inventory.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE features_used SET bytes = 77, items = 9")
    connection.close()
    again = open_inventory(path)
    assert again.features.used() == (10, 1)
    again.close()
