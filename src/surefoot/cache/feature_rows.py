"""The inventory's table of media features: one row for each item's record, staged or stored.

As the table of parts: a hint that the record's header and seal decide about (I2), rebuilt from
headers when it is lost. Features stand alone, so a row needs no block and leaves by age alone.
Their bytes are summed apart (I6), since they have a budget of their own.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

from surefoot.cache.lifecycle import FileRow, State, Verdict
from surefoot.identity import FeatureName, ModelName
from surefoot.record import FeatureHeader

NAMES_PER_QUERY = 16_000  # SQLite takes 32,766 variables in a statement

FEATURE_TABLES = """
CREATE TABLE features (
    name BLOB PRIMARY KEY CHECK (length(name) = 32),
    model BLOB NOT NULL CHECK (length(model) = 32),
    tokens INTEGER NOT NULL CHECK (tokens > 0),
    state TEXT NOT NULL CHECK (state IN ('staged', 'stored')), owner TEXT NOT NULL,
    bytes INTEGER NOT NULL CHECK (bytes >= 0), content BLOB NOT NULL, tick REAL NOT NULL,
    fence INTEGER NOT NULL CHECK (fence >= 0)
) STRICT;
CREATE TABLE features_used (bytes INTEGER NOT NULL, items INTEGER NOT NULL) STRICT;
INSERT INTO features_used VALUES (0, 0);
CREATE TRIGGER features_in AFTER INSERT ON features
    BEGIN UPDATE features_used SET bytes = bytes + new.bytes, items = items + 1; END;
CREATE TRIGGER features_out AFTER DELETE ON features
    BEGIN UPDATE features_used SET bytes = bytes - old.bytes, items = items - 1; END;
CREATE TRIGGER features_sized AFTER UPDATE OF bytes ON features
    BEGIN UPDATE features_used SET bytes = bytes + new.bytes - old.bytes; END;
"""


Read: TypeAlias = Callable[[str, Sequence[object] | Mapping[str, object]], list[Any]]


class Held(NamedTuple):
    """What a row says of a stored record: its content digest, and the fence its writer knew."""

    content: bytes
    fence: int


class FeatureRow(NamedTuple):
    """One item's stored features, as a listing shows them."""

    name: FeatureName
    model: ModelName
    tokens: int
    nbytes: int
    tick: float


class FeatureRows:
    """The table, over the inventory's two connections; any thread may call.

    Raises:
        TierError: from every method, as ``Inventory``.
    """

    def __init__(
        self,
        read: Read,
        write: Callable[[], AbstractContextManager[sqlite3.Connection]],
    ) -> None:
        self._read = read
        self._write = write

    def held(self, names: Sequence[FeatureName]) -> dict[FeatureName, Held]:
        """Return what is said of each item whose features are stored."""
        found: dict[FeatureName, Held] = {}
        for rows in stored_rows(self._read, "SELECT name, content, fence FROM features", names):
            found.update((FeatureName(name), Held(*held)) for name, *held in rows)
        return found

    def used(self) -> tuple[int, int]:
        """Return the bytes and the number of all items, staged ones included (I6)."""
        rows = self._read("SELECT bytes, items FROM features_used", ())
        return rows[0] if rows else (0, 0)

    def rows(self) -> Iterator[FeatureRow]:
        """Yield every stored item, the least recently used first."""
        rows = self._read(
            "SELECT name, model, tokens, bytes, tick FROM features WHERE state = 'stored' "
            "ORDER BY tick, rowid",
            (),
        )
        yield from (FeatureRow(*row) for row in rows)

    def files(self) -> dict[FeatureName, FileRow]:
        """Return every row's state, owner and bytes."""
        rows = self._read("SELECT name, state, owner, bytes FROM features", ())
        return {name: FileRow(State(state), owner, nbytes) for name, state, owner, nbytes in rows}

    def stage(
        self, header: FeatureHeader, *, owner: str, nbytes: int, tick: float, cover: int
    ) -> Verdict:
        """Claim an item for writing, unless it is held; ``nbytes`` counts as used from now on.

        What is held with a number below ``cover`` is barred, and in the way.
        """
        with self._write() as connection:
            row = connection.execute(
                "SELECT content, fence, state, owner FROM features WHERE name = ?", (header.name,)
            ).fetchone()
            if row is not None and not left_staged(row, owner, header.content, cover=cover):
                return standing(Held(*row[:2]), row[2], header.content, cover=cover)
            if row is not None:
                connection.execute("DELETE FROM features WHERE name = ?", (header.name,))
            _insert(connection, header, FileRow(State.STAGED, owner, nbytes), tick)
        return Verdict.STAGED

    def publish(self, name: FeatureName, *, content: bytes, nbytes: int) -> bool:
        """Say that a staged item's file is durable, and its size; false if it was dropped.

        Whoever staged it: several processes may write one item at once, and the first is enough.
        """
        with self._write() as connection:
            cursor = connection.execute(
                "UPDATE features SET state = 'stored', bytes = ? WHERE name = ? AND content = ?",
                (nbytes, name, content),
            )
            return cursor.rowcount > 0

    def retract(self, name: FeatureName, *, owner: str, delete: Callable[[], None]) -> None:
        """Drop what ``owner`` staged and could not write; nobody stages it anew meanwhile."""
        with self._write() as connection:
            if staged_by(connection, "features WHERE name = ?", (name,), owner):
                delete()
                connection.execute("DELETE FROM features WHERE name = ?", (name,))

    def drop_staged(self, rows: Mapping[FeatureName, FileRow]) -> None:
        """Forget items that a dead writer left staged, unless somebody took them over since."""
        with self._write() as connection:
            connection.executemany(
                "DELETE FROM features WHERE name = ? AND owner = ? AND state = 'staged'",
                [(name, row.owner) for name, row in rows.items()],
            )

    def adopt(self, found: Iterable[tuple[FeatureHeader, int]], *, tick: float) -> None:
        """Enter records that lie in the tier without a row, with their bytes on disk."""
        with self._write() as connection:
            for header, nbytes in found:
                _insert(connection, header, FileRow(State.STORED, "", nbytes), tick)

    def seize(self, name: FeatureName, number: int, *, owner: str) -> bool:
        """Take an item for removal that is stored with a number below ``number``, likewise."""
        with self._write() as connection:
            cursor = connection.execute(
                "UPDATE features SET state = 'staged', owner = ? "
                "WHERE name = ? AND fence < ? AND state = 'stored'",
                (owner, name, number),
            )
            return cursor.rowcount > 0

    def drop(self, names: Iterable[FeatureName]) -> None:
        """Forget items."""
        with self._write() as connection:
            connection.executemany("DELETE FROM features WHERE name = ?", [(one,) for one in names])

    def resize(self, sizes: Mapping[FeatureName, int]) -> None:
        """Account stored items with the bytes that their files take up (I6)."""
        with self._write() as connection:
            connection.executemany(
                "UPDATE features SET bytes = ? WHERE name = ? AND state = 'stored'",
                [(nbytes, name) for name, nbytes in sizes.items()],
            )

    def touch(self, ticks: Mapping[FeatureName, float]) -> None:
        """Enter last-used times, many at once."""
        with self._write() as connection:
            connection.executemany(
                "UPDATE features SET tick = max(tick, ?) WHERE name = ?",
                [(tick, name) for name, tick in ticks.items()],
            )


def stored_rows(read: Read, select: str, names: Sequence[bytes]) -> Iterator[list[Any]]:
    """Yield the stored rows of these names, in as few queries as SQLite takes; for both tables."""
    for first in range(0, len(names), NAMES_PER_QUERY):
        some = names[first : first + NAMES_PER_QUERY]
        marks = ",".join("?" * len(some))
        yield read(f"{select} WHERE name IN ({marks}) AND state = 'stored'", some)


def left_staged(row: Sequence[Any], owner: str, content: bytes, *, cover: int) -> bool:
    """Whether a row (content, fence, state, owner) is one that another process staged.

    It may die at it, and then nobody would have written what this one is told was stored: so this
    one takes the row over and writes as well. Both write the same content, and neither is barred.
    """
    same = row[0] == content and row[1] >= cover
    return bool(same and row[2] == State.STAGED and row[3] != owner)


def staged_by(
    connection: sqlite3.Connection, where: str, key: Sequence[object], owner: str
) -> bool:
    """Whether the row is staged, by this owner."""
    found = connection.execute(
        f"SELECT 1 FROM {where} AND owner = ? AND state = 'staged'", (*key, owner)
    )
    return found.fetchone() is not None


def standing(held: Held, state: str, content: bytes, *, cover: int) -> Verdict:
    """Judge a row that stands where a record with this content is to be written."""
    if held.fence < cover:
        return Verdict.BARRED if state == State.STORED else Verdict.LEAVING
    return Verdict.HELD if held.content == content else Verdict.DIFFERENT


def _insert(
    connection: sqlite3.Connection, header: FeatureHeader, file: FileRow, tick: float
) -> None:
    row = (header.name, header.model, header.tokens, *file, header.content, tick, header.fence)
    connection.execute("INSERT OR IGNORE INTO features VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
