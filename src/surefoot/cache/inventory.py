"""The index of the SSD tier: SQLite, in one file that may be lost at any time.

It answers what is stored without opening files, for every process that has the store open. It is
never trusted alone: a row is a hint, the record's own header and seal decide (I2). A row is written
``staged``, then the file, then ``stored``; only stored rows are planned on. Used bytes are the sum
over rows, staged ones at their estimate (I6), kept by triggers so that no writer can forget.

Everything here can be rebuilt from record headers, so the file is written with
``synchronous=NORMAL``: a power cut may lose the last rows, and opening finds the files again.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from surefoot.cache.feature_rows import (
    FEATURE_TABLES,
    FeatureRows,
    Held,
    left_staged,
    staged_by,
    standing,
    stored_rows,
)
from surefoot.cache.forest import Node, Stored
from surefoot.cache.lifecycle import FileRow, PartKey, State, Verdict
from surefoot.cache.lineage_rows import LINEAGE_TABLES, LineageRows, enter_consumed
from surefoot.errors import TierError
from surefoot.identity import Block, BlockName, ModelName, SpanSlice
from surefoot.prompt import MediaName
from surefoot.record import Header

VERSION = 3
CHILDREN_MAX = 64  # compared to say where a prompt left the stored ones
WAIT_S = 5.0  # for another process's write

# The checks are what ``integrity_check`` holds a damaged file against when it is opened.
_TABLES = f"""
CREATE TABLE models (
    model BLOB PRIMARY KEY CHECK (length(model) = 32), last_open REAL NOT NULL, laws TEXT,
    exact TEXT NOT NULL DEFAULT 'bitwise' CHECK (exact IN ('bitwise', 'numeric'))
) STRICT;
CREATE TABLE blocks (
    name BLOB PRIMARY KEY CHECK (length(name) = 32),
    parent BLOB NOT NULL CHECK (length(parent) = 32),
    model BLOB NOT NULL CHECK (length(model) = 32),
    start INTEGER NOT NULL CHECK (start >= 0), end INTEGER NOT NULL CHECK (end > start),
    ids BLOB NOT NULL, spans TEXT NOT NULL CHECK (json_valid(spans))
) STRICT;
CREATE INDEX children ON blocks (parent);
CREATE INDEX models_of ON blocks (model);
CREATE TABLE parts (
    name BLOB NOT NULL CHECK (length(name) = 32), grp TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('staged', 'stored')), owner TEXT NOT NULL,
    bytes INTEGER NOT NULL CHECK (bytes >= 0), content BLOB NOT NULL, tick REAL NOT NULL,
    fence INTEGER NOT NULL CHECK (fence >= 0),
    PRIMARY KEY (name, grp)
) WITHOUT ROWID, STRICT;
CREATE INDEX staged ON parts (owner) WHERE state = 'staged';
CREATE TABLE used (bytes INTEGER NOT NULL, parts INTEGER NOT NULL) STRICT;
INSERT INTO used VALUES (0, 0);
CREATE TRIGGER part_in AFTER INSERT ON parts
    BEGIN UPDATE used SET bytes = bytes + new.bytes, parts = parts + 1; END;
CREATE TRIGGER part_out AFTER DELETE ON parts
    BEGIN UPDATE used SET bytes = bytes - old.bytes, parts = parts - 1; END;
CREATE TRIGGER part_sized AFTER UPDATE OF bytes ON parts
    BEGIN UPDATE used SET bytes = bytes + new.bytes - old.bytes; END;
{FEATURE_TABLES}
{LINEAGE_TABLES}
PRAGMA user_version = {VERSION};
"""


class Row(NamedTuple):
    """A stored part, as a listing shows it."""

    name: BlockName
    model: ModelName
    group: str
    start: int
    end: int
    nbytes: int
    tick: float


class ModelRow(NamedTuple):
    """When a model was last open here, and its laws as text, if they are known."""

    last_open: float
    laws: str | None


Trees: TypeAlias = dict[ModelName, dict[BlockName, Node]]


class Inventory:
    """One process's view of the index; every method may be called from any thread.

    ``features`` is the table of media features, ``lineage`` those of what descends from what; all
    the rest is of parts.

    Raises:
        TierError: from every method, when the file is damaged or another process keeps it busy.
    """

    def __init__(self, path: Path) -> None:
        # Reads have a connection of their own, so that planning never waits for a writer.
        self._reader_lock, self._writer_lock = Lock(), Lock()
        self.features = FeatureRows(self._read, self._write)
        self.lineage = LineageRows(self._read, self._write)
        path.touch(mode=0o600)  # SQLite's other files take their mode from this one
        with _faults():
            self._writer = _connect(path)
            try:
                _prepare(self._writer)
                self._reader = _connect(path)
            except BaseException:
                self._writer.close()
                raise

    def held(self, names: Sequence[BlockName]) -> dict[PartKey, Held]:
        """Return what is said of every stored part of the blocks; one query per plan."""
        found: dict[PartKey, Held] = {}
        for rows in stored_rows(self._read, "SELECT name, grp, content, fence FROM parts", names):
            found.update(((BlockName(name), group), Held(*held)) for name, group, *held in rows)
        return found

    def block(self, name: BlockName) -> Block | None:
        """Return a stored block: its tokens, spans and parent."""
        rows = self._read(
            "SELECT name, parent, model, start, end, ids, spans FROM blocks WHERE name = ?", (name,)
        )
        return _block(rows[0]) if rows else None

    def names_like(self, first: str) -> set[bytes]:
        """Return the names of stored blocks and features whose hex begins with ``first``."""
        query = "SELECT name FROM {} WHERE lower(hex(name)) GLOB ? || '*'"
        tables = ("blocks", "features")
        return {row[0] for one in tables for row in self._read(query.format(one), (first,))}

    def children(self, parent: BlockName) -> list[Block]:
        """Return some stored blocks that follow ``parent``, the latest first."""
        rows = self._read(
            "SELECT name, parent, model, start, end, ids, spans FROM blocks "
            "WHERE parent = ? ORDER BY rowid DESC LIMIT ?",
            (parent, CHILDREN_MAX),
        )
        return [_block(row) for row in rows]

    def used(self) -> tuple[int, int]:
        """Return the bytes and the number of all parts, staged ones included (I6)."""
        rows = self._read("SELECT bytes, parts FROM used", ())
        return rows[0] if rows else (0, 0)

    def rows(self) -> Iterator[Row]:
        """Yield every stored part, by block end within a model."""
        rows = self._read(
            "SELECT p.name, b.model, p.grp, b.start, b.end, p.bytes, p.tick FROM parts p "
            "JOIN blocks b ON b.name = p.name WHERE p.state = 'stored' "
            "ORDER BY b.model, b.end, p.name, p.grp",
            (),
        )
        yield from (Row(*row) for row in rows)

    def parts(self) -> dict[PartKey, FileRow]:
        """Return every row's state, owner and bytes."""
        rows = self._read("SELECT name, grp, state, owner, bytes FROM parts", ())
        return {
            (name, group): FileRow(State(state), owner, nbytes)
            for name, group, state, owner, nbytes in rows
        }

    def models(self) -> dict[ModelName, ModelRow]:
        """Return when each model was last open, and its laws."""
        rows = self._read("SELECT model, last_open, laws FROM models", ())
        return {model: ModelRow(last_open, laws) for model, last_open, laws in rows}

    def trees(self, fast: Callable[[PartKey], bool]) -> Trees:
        """Return the blocks of every model with their parts, for ``forest``; staged ones stay."""
        rows = self._read(
            "SELECT b.model, b.name, b.parent, b.start, b.end, "
            "p.grp, p.bytes, p.tick, p.state = 'staged' "
            "FROM blocks b JOIN parts p ON p.name = b.name",
            (),
        )
        trees: Trees = {}
        for model, name, parent, start, end, group, nbytes, tick, staged in rows:
            nodes = trees.setdefault(model, {})
            node = nodes.get(name)
            if node is None:
                node = nodes[name] = Node(parent, start, end)
            node.parts[group] = Stored(nbytes, tick, bool(staged) or fast((name, group)))
        return trees

    def stage(
        self, header: Header, *, owner: str, nbytes: int, tick: float, cover: int = 0
    ) -> Verdict:
        """Claim a part for writing, unless it is held; ``nbytes`` counts as used from now on.

        What is held with a number below ``cover`` is barred, and in the way.
        """
        block, group = header.block, header.group
        with self._write() as connection:
            row = connection.execute(
                "SELECT content, fence, state, owner FROM parts WHERE name = ? AND grp = ?",
                (block.name, group),
            ).fetchone()
            if row is not None and not left_staged(row, owner, header.content, cover=cover):
                return standing(Held(*row[:2]), row[2], header.content, cover=cover)
            if row is not None:
                connection.execute(
                    "DELETE FROM parts WHERE name = ? AND grp = ?", (block.name, group)
                )
            _insert(connection, [(header, FileRow(State.STAGED, owner, nbytes))], tick)
        return Verdict.STAGED

    def publish(self, key: PartKey, *, content: bytes, nbytes: int) -> bool:
        """Say that a staged part's file is durable, and its size; false if it was dropped.

        Whoever staged it: several processes may write one part at once, and the first is enough.
        """
        with self._write() as connection:
            cursor = connection.execute(
                "UPDATE parts SET state = 'stored', bytes = ? "
                "WHERE name = ? AND grp = ? AND content = ?",
                (nbytes, *key, content),
            )
            return cursor.rowcount > 0

    def retract(self, key: PartKey, *, owner: str, delete: Callable[[], None]) -> None:
        """Drop what ``owner`` staged and could not write; nobody stages it anew meanwhile."""
        with self._write() as connection:
            if staged_by(connection, "parts WHERE name = ? AND grp = ?", key, owner):
                delete()
                _forget(connection, [key])

    def drop_staged(self, rows: Mapping[PartKey, FileRow]) -> None:
        """Forget parts that a dead writer left staged, unless somebody took them over since."""
        with self._write() as connection:
            _forget(
                connection,
                [
                    key
                    for key, row in rows.items()
                    if staged_by(connection, "parts WHERE name = ? AND grp = ?", key, row.owner)
                ],
            )

    def adopt(self, found: Iterable[tuple[Header, int]], *, tick: float) -> None:
        """Enter records that lie in the tier without a row, with their bytes on disk."""
        rows = [(header, FileRow(State.STORED, "", nbytes)) for header, nbytes in found]
        with self._write() as connection:
            _insert(connection, rows, tick)

    def seize(self, key: PartKey, number: int, *, owner: str) -> bool:
        """Take a part for removal that is stored with a number below ``number``; false if none is.

        Taken, it is staged by ``owner``: nobody plans on it or writes there until it is dropped.
        """
        with self._write() as connection:
            cursor = connection.execute(
                "UPDATE parts SET state = 'staged', owner = ? "
                "WHERE name = ? AND grp = ? AND fence < ? AND state = 'stored'",
                (owner, *key, number),
            )
            return cursor.rowcount > 0

    def drop(self, keys: Iterable[PartKey]) -> None:
        """Forget parts, and blocks that have none left."""
        with self._write() as connection:
            _forget(connection, list(keys))

    def resize(self, sizes: Mapping[PartKey, int]) -> None:
        """Account stored parts with the bytes that their files take up (I6)."""
        with self._write() as connection:
            connection.executemany(
                "UPDATE parts SET bytes = ? WHERE name = ? AND grp = ? AND state = 'stored'",
                [(nbytes, *key) for key, nbytes in sizes.items()],
            )

    def touch(self, ticks: Mapping[PartKey, float]) -> None:
        """Enter last-used times, many at once."""
        with self._write() as connection:
            connection.executemany(
                "UPDATE parts SET tick = max(tick, ?) WHERE name = ? AND grp = ?",
                [(tick, *key) for key, tick in ticks.items()],
            )

    def note_models(self, *, at: float) -> None:
        """Give every stored model that has no row one, as if it were last open now."""
        with self._write() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO models (model, last_open, laws) SELECT model, ?, NULL FROM "
                "(SELECT model FROM blocks UNION SELECT model FROM features)",
                (at,),
            )

    def open_model(self, model: ModelName, *, at: float, laws: str) -> None:
        """Note that a model is open now, and by which laws its parts are judged."""
        with self._write() as connection:
            connection.execute(
                "INSERT INTO models (model, last_open, laws) VALUES (?, ?, ?) ON CONFLICT (model) "
                "DO UPDATE SET last_open = excluded.last_open, laws = excluded.laws",
                (model, at, laws),
            )

    def exactness(self, model: ModelName) -> str:
        """Return ``bitwise``, or ``numeric`` once an audit found that the engine differs."""
        rows = self._read("SELECT exact FROM models WHERE model = ?", (model,))
        return str(rows[0][0]) if rows else "bitwise"

    def set_exactness(self, model: ModelName, exact: str) -> None:
        """Remember what ``exactness`` returns; the model's row is there while it is open."""
        with self._write() as connection:
            connection.execute("UPDATE models SET exact = ? WHERE model = ?", (exact, model))

    def forget_bytes(self) -> None:
        """Cut the write-ahead log, which holds rows that were deleted since.

        While another process reads, some of it stays until that one's next checkpoint.
        """
        with self._writer_lock, _faults():
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close both connections; the inventory is unusable afterwards."""
        with self._reader_lock, self._writer_lock:
            self._reader.close()
            self._writer.close()

    def _read(self, query: str, values: Sequence[object] | Mapping[str, object]) -> list[Any]:
        with self._reader_lock, _faults():
            return self._reader.execute(query, values).fetchall()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._writer_lock, _faults():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                self._writer.rollback()
                raise
            self._writer.commit()


def _forget(connection: sqlite3.Connection, keys: list[PartKey]) -> None:
    connection.executemany("DELETE FROM parts WHERE name = ? AND grp = ?", keys)
    names = {(name,) for name, _ in keys}
    without = "AND NOT EXISTS (SELECT 1 FROM parts WHERE parts.name = {})"
    for table, column in (("blocks", "name"), ("consumed", "block")):
        connection.executemany(
            f"DELETE FROM {table} WHERE {column} = ? " + without.format(f"{table}.{column}"),
            names,
        )


def open_inventory(path: Path) -> Inventory:
    """Open the index; a damaged or foreign one is removed, for the caller to rebuild.

    Raises:
        TierError: another process keeps it busy.
    """
    try:
        return Inventory(path)
    except TierError as error:
        if isinstance(error.__cause__, sqlite3.OperationalError) and _busy(error.__cause__):
            raise
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return Inventory(path)


def _busy(error: sqlite3.OperationalError) -> bool:
    # By its text: errors that Python's own module raises carry no code.
    return "locked" in str(error)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=WAIT_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # a purge overwrites what it deletes
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
        return
    if version != VERSION:
        raise sqlite3.DatabaseError(f"inventory version {version}")
    if _schema(connection) != _intended_schema():
        raise sqlite3.DatabaseError("the inventory's tables are not what they were made as")
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    for sums, count, table in (
        ("used", "parts", "parts"),
        ("features_used", "items", "features"),
        ("aside_used", "records", "aside"),
    ):
        summed = connection.execute(
            f"UPDATE {sums} SET bytes = (SELECT coalesce(sum(bytes), 0) FROM {table}), "
            f"{count} = (SELECT count(*) FROM {table})"
        )
        if summed.rowcount != 1:
            raise sqlite3.DatabaseError(f"{summed.rowcount} rows in {sums}, where one belongs")


def _schema(connection: sqlite3.Connection) -> list[Any]:
    # A flipped letter in a column's name is sound to SQLite, and leaves every query wrong.
    columns = "type, name, tbl_name, sql"
    return connection.execute(f"SELECT {columns} FROM sqlite_schema ORDER BY name").fetchall()


def _intended_schema() -> list[Any]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES)
        return _schema(connection)


def _insert(
    connection: sqlite3.Connection, rows: Sequence[tuple[Header, FileRow]], tick: float
) -> None:
    """Enter parts and their blocks, inside a transaction; what is there stays as it is."""
    connection.executemany(
        "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*header.block[:-1], _spans(header.block)) for header, _ in rows],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (header.block.name, header.group, *file, header.content, tick, header.fence)
            for header, file in rows
        ],
    )
    for header, _ in rows:
        enter_consumed(connection, header.block.name, header.features)


def _spans(block: Block) -> str:
    if not block.spans:
        return "[]"
    return json.dumps([(*span[:3], span.media.hex()) for span in block.spans])


def _block(row: Sequence[Any]) -> Block:
    name, parent, model, start, end, ids, spans = row
    slices = tuple(
        SpanSlice(at, length, offset, MediaName(bytes.fromhex(media)))
        for at, length, offset, media in json.loads(spans)
    )
    return Block(name, parent, model, start, end, ids, slices)


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged file's texts may be no UTF-8
        raise TierError(f"the inventory failed: {error}") from error
