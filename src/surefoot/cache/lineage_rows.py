"""The inventory's tables of lineage: what descends from what, what lies aside, what audits said.

An index like the others: rebuilt from record headers and from the files when it is lost, except for
verdicts and the tenants of roots, which are then unknown.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from surefoot.cache.feature_rows import NAMES_PER_QUERY, Read
from surefoot.cache.lifecycle import PartKey
from surefoot.identity import BlockName, FeatureName, KeyId, ModelName

LINEAGE_TABLES = """
CREATE TABLE consumed (
    feature BLOB NOT NULL CHECK (length(feature) = 32), block BLOB NOT NULL,
    PRIMARY KEY (feature, block)
) WITHOUT ROWID, STRICT;
CREATE TABLE aside (
    key TEXT PRIMARY KEY, number INTEGER NOT NULL, bytes INTEGER NOT NULL CHECK (bytes >= 0)
) STRICT;
CREATE TABLE aside_used (bytes INTEGER NOT NULL, records INTEGER NOT NULL) STRICT;
INSERT INTO aside_used VALUES (0, 0);
CREATE TRIGGER aside_in AFTER INSERT ON aside
    BEGIN UPDATE aside_used SET bytes = bytes + new.bytes, records = records + 1; END;
CREATE TRIGGER aside_out AFTER DELETE ON aside
    BEGIN UPDATE aside_used SET bytes = bytes - old.bytes, records = records - 1; END;
CREATE TRIGGER aside_sized AFTER UPDATE OF bytes ON aside
    BEGIN UPDATE aside_used SET bytes = bytes + new.bytes - old.bytes; END;
CREATE TABLE audits (
    name BLOB PRIMARY KEY CHECK (length(name) = 32), verdict TEXT NOT NULL, at REAL NOT NULL
) STRICT;
CREATE TABLE roots (
    root BLOB PRIMARY KEY CHECK (length(root) = 32), key BLOB, salt BLOB, secret BLOB NOT NULL
) STRICT;
CREATE TRIGGER part_unjudged AFTER INSERT ON parts
    BEGIN DELETE FROM audits WHERE name = new.name; END;
CREATE TRIGGER part_gone AFTER DELETE ON parts
    BEGIN DELETE FROM audits WHERE name = old.name AND verdict != 'differed'; END;
CREATE TRIGGER features_unjudged AFTER INSERT ON features
    BEGIN DELETE FROM audits WHERE name = new.name; END;
CREATE TRIGGER features_gone AFTER DELETE ON features
    BEGIN DELETE FROM audits WHERE name = old.name AND verdict != 'differed'; END;
"""

# What a fence bars: the block of its name, blocks that follow a root or consumed features of it,
# and all that follow those.
_BELOW = """
WITH RECURSIVE below(name) AS (
    SELECT name FROM blocks WHERE name = :name OR parent = :name
    UNION SELECT block FROM consumed WHERE feature = :name
    UNION SELECT blocks.name FROM blocks JOIN below ON blocks.parent = below.name
)
"""


class Tenant(NamedTuple):
    """Whose a root is: an API key's id and a salt's tag, None where there is none."""

    key: KeyId | None
    salt: bytes | None
    secret: bytes  # names the secret that both were made with


class Aside(NamedTuple):
    """One quarantined record: its key under ``quarantine/``, its fence, its bytes on disk."""

    key: str
    number: int
    nbytes: int


class Leaf(NamedTuple):
    """The last stored block of a chain, when it was last used and audited (wall clock)."""

    name: BlockName
    end: int  # tokens of the whole chain
    used_at: float
    audited_at: float | None


class LineageRows:
    """The tables, over the inventory's two connections; any thread may call.

    Raises:
        TierError: from every method, as ``Inventory``.
    """

    def __init__(
        self, read: Read, write: Callable[[], AbstractContextManager[sqlite3.Connection]]
    ) -> None:
        self._read = read
        self._write = write

    def parts_below(self, name: bytes, number: int) -> list[PartKey]:
        """Return the parts with a number below ``number`` that descend from a name, or bear it."""
        return self._read(
            f"{_BELOW} SELECT parts.name, parts.grp FROM parts JOIN below "
            "ON parts.name = below.name WHERE parts.fence < :number",
            {"name": name, "number": number},
        )

    def parts_before(self, number: int) -> list[PartKey]:
        """Return every part with a number below ``number``."""
        return self._read("SELECT name, grp FROM parts WHERE fence < ?", (number,))

    def features_before(self, number: int) -> list[FeatureName]:
        """Return every item of features with a number below ``number``."""
        return [
            row[0] for row in self._read("SELECT name FROM features WHERE fence < ?", (number,))
        ]

    def beyond(self, number: int) -> tuple[list[PartKey], list[FeatureName]]:
        """Return the stored parts and features whose row names a later fence than ``number``."""
        where = "WHERE fence > ? AND state = 'stored'"
        parts = self._read(f"SELECT name, grp FROM parts {where}", (number,))
        features = self._read(f"SELECT name FROM features {where}", (number,))
        return parts, [row[0] for row in features]

    def last_number(self, *, before: int = 2**63 - 1) -> int:
        """Return the greatest number below ``before`` of any record, in quarantine as well; or 0.

        A record that has a greater one is nobody's: it is never good, and says nothing.
        """
        (row,) = self._read(
            "SELECT coalesce(max(fence), 0) FROM (SELECT fence FROM parts UNION "
            "SELECT fence FROM features UNION SELECT number FROM aside) WHERE fence < ?",
            (before,),
        )
        return int(row[0])

    def first_number(self) -> int:
        """Return the smallest number of any record; a great one where there is none."""
        (row,) = self._read(
            "SELECT min(coalesce((SELECT min(fence) FROM parts), 1 << 62), "
            "coalesce((SELECT min(fence) FROM features), 1 << 62))",
            (),
        )
        return int(row[0])

    def aside(self) -> list[Aside]:
        """Return what lies in quarantine, the oldest fence's first."""
        rows = self._read("SELECT key, number, bytes FROM aside ORDER BY number, key", ())
        return [Aside(*row) for row in rows]

    def aside_used(self) -> tuple[int, int]:
        """Return the bytes and the number of records in quarantine."""
        rows = self._read("SELECT bytes, records FROM aside_used", ())
        return rows[0] if rows else (0, 0)

    def put_aside(self, found: Iterable[Aside]) -> None:
        """Account for records that were moved to quarantine."""
        with self._write() as connection:
            # An upsert: a row that is replaced would leave without its trigger.
            connection.executemany(
                "INSERT INTO aside VALUES (?, ?, ?) ON CONFLICT (key) "
                "DO UPDATE SET number = excluded.number, bytes = excluded.bytes",
                list(found),
            )

    def drop_aside(self, keys: Iterable[str]) -> None:
        """Forget records of the quarantine."""
        with self._write() as connection:
            connection.executemany("DELETE FROM aside WHERE key = ?", [(key,) for key in keys])

    def leaves(self, model: ModelName, *, after: int, most: int) -> tuple[list[Leaf], int | None]:
        """Return the last blocks of chains among the next ``most`` stored blocks of a model.

        Also where to go on, which begins at 0; None at the end.
        """
        ((last, count),) = self._read(
            "SELECT max(rowid), count(*) FROM ("
            "SELECT rowid FROM blocks WHERE model = ? AND rowid > ? ORDER BY rowid LIMIT ?)",
            (model, after, most),
        )
        if not count:
            return [], None
        rows = self._read(
            "SELECT b.name, b.end, max(p.tick), a.at FROM blocks b "
            "JOIN parts p ON p.name = b.name AND p.state = 'stored' "
            "LEFT JOIN audits a ON a.name = b.name "
            "WHERE b.model = ? AND b.rowid > ? AND b.rowid <= ? "
            "AND NOT EXISTS (SELECT 1 FROM blocks c WHERE c.parent = b.name) GROUP BY b.rowid",
            (model, after, last),
        )
        return [Leaf(*row) for row in rows], last if count == most else None

    def followed(self, names: Sequence[BlockName]) -> set[BlockName]:
        """Return those of the blocks that some stored block follows."""
        found: set[BlockName] = set()
        for first in range(0, len(names), NAMES_PER_QUERY):
            some = names[first : first + NAMES_PER_QUERY]
            marks = ",".join("?" * len(some))
            rows = self._read(f"SELECT parent FROM blocks WHERE parent IN ({marks})", some)
            found.update(row[0] for row in rows)
        return found

    def judge(self, verdicts: Mapping[bytes, str], *, at: float) -> None:
        """Enter what audits said of blocks and features; the latest word counts.

        A verdict is of the bytes that were compared: it goes when more is written under the name,
        or when they leave, unless it is that they differed. Of what is not stored there is none,
        and ``unauditable`` takes nothing back that was said of the same bytes.
        """
        with self._write() as connection:
            connection.executemany(
                "INSERT INTO audits SELECT :name, :verdict, :at "
                "WHERE :verdict = 'differed' OR EXISTS (SELECT 1 FROM parts WHERE name = :name) "
                "OR EXISTS (SELECT 1 FROM features WHERE name = :name) "
                "ON CONFLICT (name) DO UPDATE SET verdict = excluded.verdict, at = excluded.at "
                "WHERE excluded.verdict != 'unauditable'",
                [
                    {"name": name, "verdict": verdict, "at": at}
                    for name, verdict in verdicts.items()
                ],
            )

    def verdicts(self) -> dict[bytes, tuple[str, float]]:
        """Return the last verdict on each block or item, and when it was given."""
        rows = self._read("SELECT name, verdict, at FROM audits", ())
        return {name: (verdict, at) for name, verdict, at in rows}

    def note_root(self, root: BlockName, tenant: Tenant) -> None:
        """Remember whose chains begin at a root, so that they can be purged."""
        with self._write() as connection:
            connection.execute("INSERT OR IGNORE INTO roots VALUES (?, ?, ?, ?)", (root, *tenant))

    def roots(self) -> dict[BlockName, Tenant]:
        """Return whose chains begin at each known root."""
        rows = self._read("SELECT root, key, salt, secret FROM roots", ())
        return {BlockName(root): Tenant(*tenant) for root, *tenant in rows}

    def root_of(self, name: BlockName) -> BlockName | None:
        """Return the root of a stored block; None if an ancestor between is not stored."""
        rows = self._read(
            "WITH RECURSIVE above(name, parent, start) AS ("
            "SELECT name, parent, start FROM blocks WHERE name = ? UNION "
            "SELECT b.name, b.parent, b.start FROM blocks b JOIN above ON b.name = above.parent) "
            "SELECT parent FROM above WHERE start = 0",
            (name,),
        )
        return BlockName(rows[0][0]) if rows else None

    def first_blocks(self) -> dict[BlockName, list[BlockName]]:
        """Return the topmost stored blocks by parent: a root, or an ancestor that is not stored."""
        rows = self._read(
            "SELECT parent, name FROM blocks b "
            "WHERE NOT EXISTS (SELECT 1 FROM blocks a WHERE a.name = b.parent)",
            (),
        )
        found: dict[BlockName, list[BlockName]] = {}
        for parent, name in rows:
            found.setdefault(parent, []).append(name)
        return found

    def consumed_below(self, name: bytes) -> list[FeatureName]:
        """Return the features that a block and its descendants consumed."""
        rows = self._read(
            f"{_BELOW} SELECT DISTINCT feature FROM consumed JOIN below ON block = name",
            {"name": name},
        )
        return [row[0] for row in rows]

    def consumed(self) -> set[FeatureName]:
        """Return all features that some stored block consumed."""
        return {row[0] for row in self._read("SELECT DISTINCT feature FROM consumed", ())}


def enter_consumed(
    connection: sqlite3.Connection, block: BlockName, features: Sequence[FeatureName]
) -> None:
    """Note which features a block consumed, inside a transaction of the inventory's."""
    if features:
        connection.executemany(
            "INSERT OR IGNORE INTO consumed VALUES (?, ?)", [(one, block) for one in features]
        )
