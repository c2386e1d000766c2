"""The journal: the last receipts of a store with their evidence, so that an id is found later.

A SQLite file of its own: it may be lost or damaged alone, and then it is made anew. Several
processes write it, each on the cache's write lane; no turn waits for it, and none fails by it.

    entries     one per receipt: the receipt, what the turn touched, counters as of then
    chains      the token digests of each block, once, however many turns begin with it
    processes   settings and versions, once for each process that differs in them

It is bounded in bytes, and the oldest leave first. A chain leaves with the last entry that used it.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from surefoot.cache.evidence import Evidence, versions
from surefoot.errors import SetupError, TierError
from surefoot.identity import NAME_BYTES, settings_digest, store_id, token_digests
from surefoot.prompt import TOKEN_BYTES
from surefoot.receipt import Receipt

JOURNAL = "journal.sqlite"
VERSION = 1
# A turn of 7,000 new tokens takes 90 kB, one whose prefix another turn had 16 kB: enough for 700
# first turns of conversations, or 4,000 later ones.
JOURNAL_BYTES = 64 * 2**20
_PAGE_BYTES = 2**13  # rows of 2 kB, as most are, would fill pages of 4 kB by half
_LEAVE = 16  # one in so many entries leaves at once, so that leaving is rare
_WAL_BYTES = 2**22
_WAIT_S = 1.0  # for another process's write; the records behind this one must not wait for long

_TRANSIENT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}

_TABLES = f"""
CREATE TABLE store (id BLOB NOT NULL) STRICT;
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, at REAL NOT NULL,
    names BLOB NOT NULL, text TEXT NOT NULL, tail BLOB NOT NULL, digest BLOB NOT NULL
) STRICT;
CREATE INDEX entries_by_id ON entries (id);
CREATE TABLE chains (
    block BLOB PRIMARY KEY, digests BLOB NOT NULL, digest BLOB NOT NULL, used INTEGER NOT NULL
) STRICT;
CREATE INDEX chains_by_use ON chains (used);
CREATE TABLE processes (digest BLOB PRIMARY KEY, text TEXT NOT NULL, used INTEGER NOT NULL) STRICT;
PRAGMA user_version = {VERSION};
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One receipt with its evidence, as it was entered; names and digests are hex."""

    at: float  # wall clock
    receipt: Mapping[str, Any]
    evidence: Mapping[str, Any]  # as ``Evidence.to_json``
    counters: Mapping[str, int]
    process: Mapping[str, Any] | None  # settings and versions; None if they are lost
    token_digests: bytes  # as ``identity.token_digests``; shorter than the prompt if damaged


class Journal:
    """One process's end of the journal; any thread may call, one at a time gets to write.

    Args:
        path: the file.
        secret: the store's; a journal that was kept under another one is made anew.
        settings: how this process was started, as values that may be shared: no paths, no keys.
        limit_bytes: the most that the file holds.
    """

    def __init__(
        self,
        path: Path,
        *,
        secret: bytes,
        settings: Mapping[str, Any],
        limit_bytes: int = JOURNAL_BYTES,
    ) -> None:
        self._path = path
        self._secret = secret
        self._process = json.dumps({"settings": dict(settings), "versions": versions()})
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self.entered = 0
        self.dropped = 0  # another write was under way, or the caller had no room for it
        self.failed = 0

    def enter(
        self, receipt: Receipt, evidence: Evidence, *, counters: Mapping[str, int], at: float
    ) -> None:
        """Write one entry; blocks for milliseconds, and never raises for a fault of the file.

        Args:
            receipt: the turn's.
            evidence: what it touched; its tokens are digested here.
            counters: the cache's, as of the receipt.
            at: wall clock.
        """
        # A write that hangs must not make the lane's next thread wait for it as well.
        if not self._lock.acquire(blocking=False):
            self.dropped += 1
            return
        try:
            self._insert(self._open(), receipt, evidence, counters, at)
            self.entered += 1
        except (sqlite3.Error, OSError) as error:
            self.failed += 1
            self._give_up(error)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the file; a later ``enter`` would open it again."""
        # A write that hangs keeps the lock, and is left behind with its connection.
        if self._lock.acquire(timeout=_WAIT_S):
            self._disconnect()
            self._lock.release()

    def _open(self) -> sqlite3.Connection:
        with suppress(FileNotFoundError):
            # Another process that finds it damaged makes it anew: then this one changes over.
            if self._connection is not None and self._path.stat().st_ino == self._inode:
                return self._connection
        self._disconnect()
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if _transient(error):
                raise
        _remove(self._path)
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        self._path.touch(mode=0o600)  # SQLite's other files take their mode from this one
        inode = self._path.stat().st_ino
        connection = sqlite3.connect(
            self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            _prepare(connection, store_id(self._secret))
        except BaseException:
            connection.close()
            raise
        self._connection, self._inode = connection, inode
        return connection

    def _give_up(self, error: Exception) -> None:
        self._disconnect()
        if isinstance(error, sqlite3.DatabaseError) and not _transient(error):
            with suppress(OSError):
                _remove(self._path)

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _insert(
        self,
        connection: sqlite3.Connection,
        receipt: Receipt,
        evidence: Evidence,
        counters: Mapping[str, int],
        at: float,
    ) -> None:
        process = settings_digest("journal process", self._process)
        fields = {
            "receipt": receipt.to_json(),
            "evidence": evidence.to_json(),
            "counters": dict(counters),
            "process": process.hex(),
        }
        text = json.dumps(fields, separators=(",", ":"))
        with _transaction(connection):
            (number,) = connection.execute(
                "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'entries'"
            ).fetchone()
            whole = self._chain(connection, evidence, number)
            tail = token_digests(self._secret, evidence.ids, whole)
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    number,
                    receipt.id,
                    at,
                    b"".join(evidence.names()),
                    text,
                    tail,
                    _digest(text, tail),
                ),
            )
            connection.execute(
                "INSERT INTO processes VALUES (?, ?, ?) "
                "ON CONFLICT (digest) DO UPDATE SET used = excluded.used",
                (process, self._process, number),
            )
            self._make_room(connection, number)

    def _chain(self, connection: sqlite3.Connection, evidence: Evidence, number: int) -> int:
        """See to the digests of every whole block; return the tokens that those cover."""
        for block in evidence.blocks:
            if len(evidence.ids) < block.end * TOKEN_BYTES:
                return block.start
            known = connection.execute(
                "UPDATE chains SET used = ? WHERE block = ?", (number, block.name)
            )
            if not known.rowcount:
                ids = evidence.ids[: block.end * TOKEN_BYTES]
                digests = token_digests(self._secret, ids, block.start)
                row = (block.name, digests, _digest("", digests), number)
                connection.execute("INSERT INTO chains VALUES (?, ?, ?, ?)", row)
        return evidence.blocks[-1].end if evidence.blocks else 0

    def _make_room(self, connection: sqlite3.Connection, newest: int) -> None:
        while _used_bytes(connection) > self._limit_bytes:
            (oldest,) = connection.execute("SELECT min(number) FROM entries").fetchone()
            # The newest stays in any case: a journal that holds one entry has done what it can.
            upto = min(oldest + (newest - oldest) // _LEAVE, newest - 1)
            if upto < oldest:
                return
            connection.execute("DELETE FROM entries WHERE number <= ?", (upto,))
            connection.execute("DELETE FROM chains WHERE used <= ?", (upto,))
            connection.execute("DELETE FROM processes WHERE used <= ?", (upto,))


class JournalReader:
    """The journal as somebody reads it who must not change it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def entry(self, receipt_id: str) -> Entry | None:
        """Return the latest entry of a receipt; None if there is none.

        Raises:
            SetupError: the entry is damaged.
        """
        query = "SELECT at, text, tail, digest FROM entries WHERE id = ? ORDER BY number DESC"
        with _reading():
            row = self._connection.execute(query, (receipt_id,)).fetchone()
            return None if row is None else self._entry(*row)

    def touching(self, name: bytes, most: int) -> list[Entry]:
        """Return the latest entries that touched a root, a block or features, damaged ones not.

        Looks at every entry: 64 MiB of them take about as many milliseconds.
        """
        query = (
            "SELECT at, text, tail, digest FROM entries WHERE instr(names, ?) > 0 "
            "ORDER BY number DESC LIMIT ?"
        )
        found: list[Entry] = []
        with _reading():
            for row in self._connection.execute(query, (name, most)).fetchall():
                with suppress(SetupError):
                    found.append(self._entry(*row))
        return found

    def extent(self) -> tuple[int, float | None]:
        """Return how many entries there are, and when the oldest was made."""
        with _reading():
            count, oldest = self._connection.execute(
                "SELECT count(*), min(at) FROM entries"
            ).fetchone()
            return count, oldest

    def _entry(self, at: float, text: str, tail: bytes, digest: bytes) -> Entry:
        if _digest(text, tail) != digest:
            raise SetupError("the journal's entry is not what was written: the file is damaged")
        fields = json.loads(text)
        rows = self._connection.execute(
            "SELECT text FROM processes WHERE digest = ?", (bytes.fromhex(fields["process"]),)
        ).fetchall()
        return Entry(
            at=at,
            receipt=fields["receipt"],
            evidence=fields["evidence"],
            counters=fields["counters"],
            process=json.loads(rows[0][0]) if rows else None,
            token_digests=self._digests(fields["evidence"]["blocks"], tail),
        )

    def _digests(self, blocks: list[dict[str, Any]], tail: bytes) -> bytes:
        found: list[bytes] = []
        for block in blocks:
            row = self._connection.execute(
                "SELECT digests, digest FROM chains WHERE block = ?",
                (bytes.fromhex(block["name"]),),
            ).fetchone()
            if row is None or _digest("", row[0]) != row[1]:
                return b"".join(found)
            found.append(row[0])
        return b"".join([*found, tail])


def forget(path: Path, keep: Collection[bytes]) -> int:
    """Remove the entries of all roots but these, and overwrite their bytes; return how many.

    An entry of a prompt without a whole block has no root, and could be anybody's: it goes. So does
    all of a journal that is damaged.

    Raises:
        TierError: another process keeps the journal busy, or the disk fails: nothing is removed.
    """
    if not path.is_file():
        return 0
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA secure_delete = ON")
            with _transaction(connection):
                gone = _forget(connection, keep)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return gone
    except sqlite3.DatabaseError as error:
        if _transient(error):
            raise TierError(f"the journal cannot be purged: {error}") from error
    _remove(path)
    return 0


def _forget(connection: sqlite3.Connection, keep: Collection[bytes]) -> int:
    kept: set[bytes] = set()
    gone = []
    for number, names in connection.execute("SELECT number, names FROM entries").fetchall():
        parts = [names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)]
        if parts and parts[0] in keep:
            kept.update(parts)
        else:
            gone.append((number,))
    chains = connection.execute("SELECT block FROM chains").fetchall()
    left = [row for row in chains if row[0] not in kept]
    connection.executemany("DELETE FROM entries WHERE number = ?", gone)
    connection.executemany("DELETE FROM chains WHERE block = ?", left)
    return len(gone)


@contextmanager
def journal_reader(path: Path) -> Iterator[JournalReader]:
    """Open a store's journal to read; changes nothing.

    Raises:
        SetupError: there is none, or it cannot be read.
    """
    if not path.is_file():
        raise SetupError(f"the store has no {path.name}: no server has answered from it yet")
    with _reading(), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as c:
        (version,) = c.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            raise SetupError(f"the journal is of version {version}; this reads {VERSION} only")
        yield JournalReader(c)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise SetupError(f"the journal cannot be read: {error}") from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            connection.rollback()
        raise
    connection.commit()


def _prepare(connection: sqlite3.Connection, store: bytes) -> None:
    with _transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _TABLES.strip().split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO store VALUES (?)", (store,))
            return
    if version != VERSION:
        raise sqlite3.DatabaseError(f"journal version {version}")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    if connection.execute("SELECT id FROM store").fetchall() != [(store,)]:
        raise sqlite3.DatabaseError("the journal was kept under another secret")


def _used_bytes(connection: sqlite3.Connection) -> int:
    sizes = ("page_count", "freelist_count", "page_size")
    pages, free, size = (connection.execute(f"PRAGMA {one}").fetchone()[0] for one in sizes)
    return int((pages - free) * size)


def _digest(text: str, digests: bytes) -> bytes:
    return settings_digest("journal", text + digests.hex())


def _transient(error: sqlite3.DatabaseError) -> bool:
    # The file may be sound, and others may be using it. What Python itself raises has no code.
    code = vars(error).get("sqlite_errorcode")
    return code is not None and code & 0xFF in _TRANSIENT


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
