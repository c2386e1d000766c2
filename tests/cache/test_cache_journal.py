"""The journal keeps the last receipts, costs no turn anything, and may be lost alone."""

import json
import sqlite3
from contextlib import closing

import pytest

from surefoot import identity
from surefoot.cache import journal as room
from surefoot.cache.evidence import versions
from surefoot.cache.journal import JOURNAL, Journal, forget, journal_reader
from surefoot.errors import SetupError, TierError
from surefoot.testing.cache_kit import ROWS_ONLY, Bench, feature_name_of, image_of
from surefoot.testing.evidence_kit import COUNTERS, take_turn

SECRET = b"s" * 32
SETTINGS = {"ram_bytes": 1, "threads": 2}
CANARY = [0x11223344, 0x55667788, 0x99AABBCC, 0x0DDEEFF0]


@pytest.fixture
def cache():
    with Bench(None, ROWS_ONLY).open() as made:
        yield made


@pytest.fixture
def path(tmp_path):
    return tmp_path / JOURNAL


def opened(path, *, secret=SECRET, **changes):
    return Journal(path, secret=secret, settings=SETTINGS | changes.pop("settings", {}), **changes)


def enter(journal, told, *, at=5.0, counters=COUNTERS):
    journal.enter(*told, counters=counters, at=at)


def read(path, receipt_id):
    with journal_reader(path) as reader:
        return reader.entry(receipt_id)


def rows(path, table):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_an_entry_is_found_whole_after_a_restart(cache, path):
    receipt, evidence = take_turn(cache, range(11), "a", media=[(5, image_of(1, tokens=2))])
    journal = opened(path)
    enter(journal, (receipt, evidence))
    journal.close()
    found = read(path, "a")
    assert found.at == 5.0
    assert found.receipt == json.loads(json.dumps(receipt.to_json()))
    assert found.evidence == json.loads(json.dumps(evidence.to_json()))
    assert found.counters == COUNTERS
    assert found.process == {"settings": SETTINGS, "versions": versions()}
    assert found.token_digests == identity.token_digests(SECRET, evidence.ids)
    assert read(path, "b") is None


def test_of_two_entries_with_one_id_the_latest_is_found(cache, path):
    journal = opened(path)
    for at in (1.0, 2.0):
        enter(journal, take_turn(cache, range(5), "a"), at=at)
    assert read(path, "a").at == 2.0


def test_the_digests_of_a_block_are_kept_once_for_all_turns_that_share_it(cache, path):
    journal = opened(path)
    first, second = range(10), [*range(10), 90, 91, 92]
    enter(journal, take_turn(cache, first, "a"))
    assert rows(path, "chains") == 2
    enter(journal, take_turn(cache, second, "b"))
    assert rows(path, "chains") == 3
    for receipt_id, tokens in (("a", first), ("b", second)):
        ids = identity_ids(tokens)
        assert read(path, receipt_id).token_digests == identity.token_digests(SECRET, ids)


def identity_ids(tokens):
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def test_no_token_is_in_the_file(cache, path):
    journal = opened(path)
    enter(journal, take_turn(cache, [*CANARY, *CANARY, 7], "a"))
    written = b"".join(one.read_bytes() for one in path.parent.iterdir())
    assert b'"id":"a"' in written
    for token in CANARY:
        for order in ("little", "big"):
            raw = token.to_bytes(4, order)
            assert not any(
                form in written for form in (raw, raw.hex().encode(), str(token).encode())
            )


def test_the_file_is_this_users_alone(cache, path):
    enter(opened(path), take_turn(cache, range(5), "a"))
    assert {one.stat().st_mode & 0o777 for one in path.parent.iterdir()} == {0o600}


def test_it_stays_within_its_bytes_and_the_oldest_leave_first(cache, path):
    limit, turns = 250_000, 30
    journal = opened(path, limit_bytes=limit)
    shared = list(range(1000, 1100))
    for number in range(turns):
        own = range(number * 200, number * 200 + 100)
        enter(journal, take_turn(cache, [*shared, *own], str(number)), at=float(number))
        assert path.stat().st_size <= limit + 50_000
        assert len(read(path, str(number)).token_digests) == 8 * 200
    journal.close()
    kept = [number for number in range(turns) if read(path, str(number))]
    assert kept == list(range(kept[0], turns))
    assert 4 <= len(kept) <= turns // 2
    assert all(len(read(path, str(one)).token_digests) == 8 * 200 for one in kept)
    # A chain leaves with its last user: those of the shared prefix stay, others do not pile up.
    assert rows(path, "chains") == 25 + 25 * len(kept)
    assert rows(path, "processes") == 1


def test_one_entry_larger_than_all_its_room_stays_alone(cache, path):
    journal = opened(path, limit_bytes=1)
    for receipt_id in ("a", "b", "c"):
        enter(journal, take_turn(cache, range(50), receipt_id))
    with journal_reader(path) as reader:
        assert reader.extent() == (1, 5.0)
        assert reader.entry("c")
    assert journal.failed == 0


def test_what_touched_a_name_is_found_newest_first_and_bounded(cache, path):
    journal = opened(path)
    item = image_of(3)
    told = {
        "text": take_turn(cache, range(9), "text"),
        "longer": take_turn(cache, [*range(9), 40, 41, 42, 43], "longer"),
        "seen": take_turn(cache, [77] * 9, "seen", media=[(4, item)]),
    }
    for one in told.values():
        enter(journal, one)
    blocks = [block.name for block in told["longer"][1].blocks]
    wanted = {
        told["text"][1].root: ["seen", "longer", "text"],
        blocks[0]: ["longer", "text"],
        blocks[2]: ["longer"],
        feature_name_of(item): ["seen"],
        b"n" * 32: [],
    }
    with journal_reader(path) as reader:
        for name, ids in wanted.items():
            assert [one.receipt["id"] for one in reader.touching(name, 5)] == ids
            assert [one.receipt["id"] for one in reader.touching(name, 1)] == ids[:1]


def test_processes_write_one_journal_and_each_says_how_it_was_started(cache, path):
    journals = [opened(path, settings={"threads": threads}) for threads in (1, 2, 3)]
    for turn in range(12):
        enter(journals[turn % 3], take_turn(cache, range(9 + turn), str(turn)))
    assert [one.failed + one.dropped for one in journals] == [0, 0, 0]
    for turn in range(12):
        assert read(path, str(turn)).process["settings"]["threads"] == turn % 3 + 1


def test_a_turn_while_another_process_writes_is_counted_and_not_waited_for(
    cache, path, monkeypatch
):
    monkeypatch.setattr(room, "_WAIT_S", 0.0)
    journal = opened(path)
    enter(journal, take_turn(cache, range(5), "a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        enter(journal, take_turn(cache, range(5), "b"))
        assert (journal.entered, journal.failed) == (1, 1)
        other.execute("ROLLBACK")
    # It was busy, not damaged: what was in it is still there.
    enter(journal, take_turn(cache, range(5), "c"))
    assert read(path, "a")
    assert read(path, "b") is None
    assert read(path, "c")


def test_a_write_that_hangs_makes_no_second_one_wait(cache, path):
    class Held:
        def acquire(self, *, blocking):
            assert not blocking
            return False

    journal = opened(path)
    journal._lock = Held()
    enter(journal, take_turn(cache, range(5), "a"))
    assert (journal.entered, journal.dropped) == (0, 1)


def damage_nothing(path):
    path.write_bytes(b"not a database" * 400)


def damage_schema(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE chains")


def damage_version(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 99")


def damage_pages(path):
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [damage_nothing, damage_schema, damage_version, damage_pages],
    ids=lambda one: one.__name__,
)
def test_a_damaged_journal_is_made_anew(cache, path, damage):
    journal = opened(path)
    enter(journal, take_turn(cache, range(9), "a"))
    journal.close()
    damage(path)
    journal = opened(path)
    for receipt_id in ("b", "c"):
        enter(journal, take_turn(cache, range(9), receipt_id))
    assert journal.failed <= 1
    assert read(path, "a") is None
    assert read(path, "c")


def test_a_journal_damaged_while_it_is_open_is_made_anew(cache, path):
    journal = opened(path)
    enter(journal, take_turn(cache, range(9), "a"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage_schema(path)
    for receipt_id in ("b", "c"):
        enter(journal, take_turn(cache, range(9), receipt_id))
    assert journal.failed == 1
    assert read(path, "c")


def test_a_journal_that_was_deleted_while_it_is_open_is_made_anew(cache, path):
    journal = opened(path)
    enter(journal, take_turn(cache, range(9), "a"))
    for one in path.parent.iterdir():
        one.unlink()
    enter(journal, take_turn(cache, range(9), "b"))
    assert journal.failed == 0
    assert read(path, "b")


def test_another_secret_begins_another_journal(cache, path):
    enter(opened(path), take_turn(cache, range(9), "a"))
    enter(opened(path, secret=b"t" * 32), take_turn(cache, range(9), "b"))
    assert read(path, "a") is None
    found = read(path, "b").token_digests
    assert found == identity.token_digests(b"t" * 32, identity_ids(range(9)))


def test_a_place_that_cannot_be_written_costs_the_entry_and_no_more(cache, path):
    path.mkdir()
    journal = opened(path)
    enter(journal, take_turn(cache, range(9), "a"))
    assert (journal.entered, journal.failed) == (0, 1)
    assert path.is_dir()


@pytest.mark.parametrize("column", ["text", "tail"])
def test_an_entry_that_is_not_what_was_written_is_not_believed(cache, path, column):
    journal = opened(path)
    enter(journal, take_turn(cache, range(9), "a"))
    journal.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (value,) = connection.execute(f"SELECT {column} FROM entries").fetchone()
        other = value.replace("computed", "restored", 1) if column == "text" else value[:-1] + b"\0"
        assert other != value
        connection.execute(f"UPDATE entries SET {column} = ?", (other,))
    with pytest.raises(SetupError, match="damaged"):
        read(path, "a")
    with journal_reader(path) as reader:
        assert reader.touching(cache_root(cache), 5) == []


def cache_root(cache):
    return identity.root_name(cache.model, identity.salt_of(None, None))


def test_digests_that_are_not_what_was_written_end_where_they_are_wrong(cache, path):
    journal = opened(path)
    enter(journal, take_turn(cache, range(9), "a"))
    journal.close()
    second = identity.token_digests(SECRET, identity_ids(range(8)), 4)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE chains SET digests = ? WHERE digests = ?", (second[::-1], second)
        )
    assert len(read(path, "a").token_digests) == 4 * 8


def test_a_prompt_without_a_whole_block_has_its_digests_too(cache, path):
    enter(opened(path), take_turn(cache, range(3), "a"))
    assert read(path, "a").token_digests == identity.token_digests(SECRET, identity_ids(range(3)))


def test_forgetting_leaves_the_entries_of_the_roots_that_are_kept(cache, path):
    mine, theirs = (identity.salt_of(None, text) for text in ("mine", "theirs"))
    journal = opened(path)
    told = {
        name: take_turn(cache, tokens, name, salt=salt)
        for name, tokens, salt in (
            ("mine", range(13), mine),
            ("mine later", range(17), mine),
            ("theirs", range(50, 63), theirs),
            ("short", range(90, 92), theirs),
        )
    }
    for one in told.values():
        enter(journal, one)
    digests = {name: read(path, name).token_digests for name in told}
    assert forget(path, [told["mine"][1].root]) == 2
    assert read(path, "theirs") is None
    assert read(path, "short") is None
    for name in ("mine", "mine later"):
        assert read(path, name).token_digests == digests[name]
    # Not only unlisted: the bytes are gone, though a server has the file open.
    left = b"".join(one.read_bytes() for one in path.parent.iterdir())
    assert told["mine"][1].root in left
    assert told["theirs"][1].root not in left
    assert digests["mine"][:32] in left
    assert digests["theirs"][:32] not in left
    assert digests["short"] not in left
    enter(journal, told["theirs"])
    assert read(path, "theirs")
    assert forget(path, []) == 3
    assert rows(path, "chains") == 0


def test_forgetting_waits_for_nobody_and_says_so(cache, path, monkeypatch):
    monkeypatch.setattr(room, "_WAIT_S", 0.0)
    enter(opened(path), take_turn(cache, range(9), "a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TierError, match="cannot be purged"):
            forget(path, [])
        other.execute("ROLLBACK")
    assert read(path, "a")


def test_a_damaged_journal_is_forgotten_whole(tmp_path, path):
    path.write_bytes(b"not a database" * 400)
    assert forget(path, []) == 0
    assert not path.exists()
    assert forget(path, []) == 0


def test_reading_a_store_without_a_journal_is_a_sentence(tmp_path):
    with pytest.raises(SetupError, match="no server has answered"), journal_reader(tmp_path / "j"):
        pass


def test_reading_changes_nothing(cache, path):
    journal = opened(path)
    enter(journal, take_turn(cache, range(9), "a"))
    journal.close()
    before = path.read_bytes()
    assert read(path, "a")
    assert path.read_bytes() == before


def test_reading_what_is_no_journal_is_a_sentence(path):
    path.write_bytes(b"not a database" * 400)
    with pytest.raises(SetupError, match="cannot be read"):
        read(path, "a")
