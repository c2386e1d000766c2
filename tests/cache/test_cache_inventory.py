"""The index: rows, sums, and what happens to a damaged file."""

import sqlite3

import pytest

from surefoot.cache.feature_rows import NAMES_PER_QUERY, Held
from surefoot.cache.inventory import CHILDREN_MAX, VERSION, open_inventory
from surefoot.cache.lifecycle import FileRow, State, Verdict
from surefoot.errors import TierError
from surefoot.identity import SpanSlice
from surefoot.prompt import MediaName
from surefoot.record import Header
from surefoot.testing.cache_kit import MODEL, blocks_of

BLOCKS = blocks_of(range(16))
CONTENT = b"c" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "inventory.sqlite"


@pytest.fixture
def inventory(path):
    made = open_inventory(path)
    yield made
    made.close()


def header(block, group="rows", *, content=CONTENT, fence=0, features=()):
    return Header(block, group, content, features, fence)


def stage(
    inventory, block, group="rows", *, owner="me", nbytes=10, content=CONTENT, fence=0, cover=0
):
    one = header(block, group, content=content, fence=fence)
    return inventory.stage(one, owner=owner, nbytes=nbytes, tick=1.0, cover=cover)


def store(inventory, block, group="rows", *, nbytes=10, fence=0):
    assert stage(inventory, block, group, nbytes=nbytes, fence=fence) is Verdict.STAGED
    assert inventory.publish((block.name, group), content=CONTENT, nbytes=nbytes)


def test_a_staged_part_is_counted_and_not_held(inventory):
    assert stage(inventory, BLOCKS[0], nbytes=7) is Verdict.STAGED
    assert inventory.held([BLOCKS[0].name]) == {}
    assert inventory.used() == (7, 1)
    assert list(inventory.rows()) == []
    assert inventory.publish((BLOCKS[0].name, "rows"), content=CONTENT, nbytes=9)
    assert inventory.held([BLOCKS[0].name]) == {(BLOCKS[0].name, "rows"): Held(CONTENT, 0)}
    assert inventory.used() == (9, 1)


def test_a_part_is_staged_once_and_its_content_compared(inventory):
    stage(inventory, BLOCKS[0])
    assert stage(inventory, BLOCKS[0]) is Verdict.HELD
    assert stage(inventory, BLOCKS[0], content=b"d" * 32) is Verdict.DIFFERENT
    assert stage(inventory, BLOCKS[0], "state") is Verdict.STAGED


def test_what_another_process_has_staged_is_written_by_this_one_too(inventory):
    """It may die at it; whichever of the two is done first says so for both."""
    key = (BLOCKS[0].name, "rows")
    stage(inventory, BLOCKS[0], nbytes=7)
    assert stage(inventory, BLOCKS[0], owner="other", nbytes=8) is Verdict.STAGED
    assert inventory.used() == (8, 1)
    inventory.drop_staged({key: FileRow(State.STAGED, "me", 7)})
    inventory.retract(key, owner="me", delete=pytest.fail)
    assert inventory.publish(key, content=CONTENT, nbytes=9)
    assert inventory.publish(key, content=CONTENT, nbytes=9)
    assert stage(inventory, BLOCKS[0], owner="third") is Verdict.HELD
    inventory.retract(key, owner="other", delete=pytest.fail)
    inventory.drop_staged({key: FileRow(State.STAGED, "other", 8)})
    assert inventory.used() == (9, 1)


def test_what_its_writer_gives_up_or_died_at_is_forgotten(inventory):
    key, deleted = (BLOCKS[0].name, "rows"), []
    stage(inventory, BLOCKS[0])
    inventory.retract(key, owner="me", delete=lambda: deleted.append(key))
    assert (inventory.used(), deleted) == ((0, 0), [key])
    stage(inventory, BLOCKS[0], owner="dead")
    inventory.drop_staged({key: FileRow(State.STAGED, "dead", 10)})
    assert inventory.used() == (0, 0)
    assert inventory.block(BLOCKS[0].name) is None


def test_a_stored_part_behind_a_fence_is_in_the_way_and_a_staged_one_is_its_writers(inventory):
    store(inventory, BLOCKS[0], fence=3)
    assert stage(inventory, BLOCKS[0], cover=3) is Verdict.HELD
    assert stage(inventory, BLOCKS[0], cover=4) is Verdict.BARRED
    assert stage(inventory, BLOCKS[0], cover=4, content=b"d" * 32) is Verdict.BARRED
    stage(inventory, BLOCKS[1], fence=3)
    assert stage(inventory, BLOCKS[1], cover=4) is Verdict.LEAVING
    assert stage(inventory, BLOCKS[1], cover=4, content=b"d" * 32) is Verdict.LEAVING


def test_publishing_what_was_dropped_or_is_other_content_says_so(inventory):
    stage(inventory, BLOCKS[0])
    assert not inventory.publish((BLOCKS[0].name, "rows"), content=b"d" * 32, nbytes=1)
    inventory.drop([(BLOCKS[0].name, "rows")])
    assert not inventory.publish((BLOCKS[0].name, "rows"), content=CONTENT, nbytes=1)
    assert inventory.used() == (0, 0)


def test_a_block_is_forgotten_with_its_last_part(inventory):
    store(inventory, BLOCKS[1])
    store(inventory, BLOCKS[1], "state")
    inventory.drop([(BLOCKS[1].name, "rows")])
    assert inventory.children(BLOCKS[0].name) == [BLOCKS[1]]
    inventory.drop([(BLOCKS[1].name, "state"), (BLOCKS[1].name, "state")])
    assert inventory.children(BLOCKS[0].name) == []


def test_blocks_come_back_as_they_were_media_included(inventory):
    spans = (SpanSlice(1, 2, 3, MediaName(b"i" * 32)), SpanSlice(3, 1, 0, MediaName(b"j")))
    block = BLOCKS[2]._replace(spans=spans)
    store(inventory, block)
    assert inventory.children(block.parent) == [block]


def test_children_are_bounded_and_the_latest_come_first(inventory):
    blocks = [blocks_of([1, 2, 3, number])[0] for number in range(CHILDREN_MAX + 5)]
    inventory.adopt([(header(block), 1) for block in blocks], tick=0.0)
    assert inventory.children(blocks[0].parent) == blocks[: -CHILDREN_MAX - 1 : -1]


def test_more_names_than_one_statement_takes_are_asked_for(inventory):
    store(inventory, BLOCKS[0])
    names = [index.to_bytes(32, "big") for index in range(NAMES_PER_QUERY * 2)]
    assert len(inventory.held([*names, BLOCKS[0].name])) == 1


def test_adopting_never_replaces_a_row(inventory):
    stage(inventory, BLOCKS[0], nbytes=5)
    inventory.adopt([(header(BLOCKS[0], content=b"d" * 32), 99)], tick=3.0)
    (row,) = inventory.parts().values()
    assert (row.state, row.owner, row.nbytes) == (State.STAGED, "me", 5)
    inventory.resize({(BLOCKS[0].name, "rows"): 99})
    assert inventory.used() == (5, 1)


def test_use_times_only_rise(inventory):
    store(inventory, BLOCKS[0])
    inventory.touch({(BLOCKS[0].name, "rows"): 5.0})
    inventory.touch({(BLOCKS[0].name, "rows"): 3.0, (BLOCKS[1].name, "rows"): 9.0})
    assert [row.tick for row in inventory.rows()] == [5.0]


def test_models_keep_their_laws_and_newcomers_get_a_row(inventory):
    store(inventory, BLOCKS[0])
    inventory.note_models(at=4.0)
    assert inventory.models()[MODEL] == (4.0, None)
    inventory.open_model(MODEL, at=6.0, laws="{}")
    inventory.note_models(at=9.0)
    assert inventory.models()[MODEL] == (6.0, "{}")


def test_a_failed_write_changes_nothing(inventory):
    store(inventory, BLOCKS[0])
    with pytest.raises(TierError):
        inventory.adopt([(header(BLOCKS[1]), 1), (header(BLOCKS[2]), object())], tick=0.0)
    assert inventory.used() == (10, 1)
    assert inventory.children(BLOCKS[0].name) == []


def test_sums_are_counted_anew_when_opened(path, inventory):
    store(inventory, BLOCKS[0])
    inventory.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE used SET bytes = 77, parts = 9")
    connection.close()
    again = open_inventory(path)
    assert again.used() == (10, 1)
    again.close()


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA user_version = 99",
        "DROP TABLE used",
        "ALTER TABLE models RENAME COLUMN last_open TO mast_open",
        "DROP TRIGGER part_out",
        "DROP TRIGGER features_out",
        f"PRAGMA user_version = {VERSION - 1}; DROP TABLE features; DROP TABLE features_used",
        "PRAGMA ignore_check_constraints = ON; UPDATE parts SET state = 'other'",
        "PRAGMA ignore_check_constraints = ON; UPDATE blocks SET start = end",
        "PRAGMA ignore_check_constraints = ON; UPDATE blocks SET spans = '{'",
    ],
)
def test_a_foreign_or_damaged_file_is_begun_anew(path, inventory, statement):
    store(inventory, BLOCKS[0])
    inventory.close()
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.commit()
    connection.close()
    again = open_inventory(path)
    assert again.used() == (0, 0)
    again.close()


def test_a_file_that_another_holds_is_not_removed(path, inventory, monkeypatch):
    store(inventory, BLOCKS[0])
    monkeypatch.setattr("surefoot.cache.inventory.WAIT_S", 0.01)
    with inventory._write(), pytest.raises(TierError, match="locked"):
        open_inventory(path)
    assert inventory.used() == (10, 1)
