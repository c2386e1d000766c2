"""What lies in a store's folder against what its inventory says, counted file by file.

The store must be quiet: open, but nobody writing. Every record is read and unsealed; the sums that
the store states of itself (I6) are compared with what its files take up.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefoot.cache.folder import INVENTORY, RECORDS, Folder
from surefoot.cache.inventory import Inventory
from surefoot.cache.lifecycle import FileRow, State
from surefoot.errors import CorruptRecord
from surefoot.identity import Block
from surefoot.record import feature_key, read_key, unseal, unseal_features
from surefoot.record import key as record_key
from surefoot.state import Part

_POLL_S = 0.02
_BLOCK_BYTES = 512  # the unit of st_blocks
_LOCKS = frozenset({"open", "evict", "fence"})
_DATABASES = (INVENTORY, "journal.sqlite")
_ELSEWHERE = frozenset({"fences", "quarantine", "models"})  # folders with files of other kinds


@dataclass(slots=True)
class Census:
    """What was found: the records that lie there whole, and everything that is wrong."""

    records: dict[str, int] = field(default_factory=dict)  # by tier key, with bytes on the medium
    parts: dict[str, tuple[Block, Part]] = field(default_factory=dict)  # of those, the parts
    faults: list[str] = field(default_factory=list)


def told_in_time(ask: Callable[[], dict[str, Any]], within_s: float) -> dict[str, Any]:
    """Ask for a status until the index answered in time for it: before, figures are the last known.

    Returns the last status if it never does.
    """
    until = time.monotonic() + within_s
    while (status := ask())["tiers"]["ssd"]["state"] != "up" and time.monotonic() < until:
        time.sleep(_POLL_S)
    return status


def take_census(store: Path, status: Mapping[str, Any], *, writers: int) -> Census:
    """Compare files, rows and sums of a quiet store.

    Args:
        store: its folder.
        status: what the cache that has it open says of itself, as ``/v1/cache`` shows it.
        writers: how many processes have it open.
    """
    with closing(Inventory(store / INVENTORY)) as inventory:
        parts = {record_key(*key): row for key, row in inventory.parts().items()}
        features = {feature_key(key): row for key, row in inventory.features.files().items()}
    found = Census()
    _read_records(store / RECORDS, found)
    found.faults += _against_rows(found.records, parts | features)
    found.faults += _strangers(store, writers)
    found.faults += _against_quarantine(Folder(store), status["quarantined"])
    for what, stated, keys in (
        ("parts", status["tiers"]["ssd"]["bytes"], parts),
        ("features", status["features"]["ssd"]["bytes"], features),
    ):
        real = sum(found.records.get(key, 0) for key in keys)
        if stated != real:
            found.faults.append(f"the {what} take up {real} bytes, and the store says {stated}")
    return found


def _read_records(folder: Path, found: Census) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        key = path.name.removesuffix(".rec")
        named = read_key(key)
        if key == path.name or path.parent.name != key[:2] or named is None:
            found.faults.append(f"no record: {path}")
            continue
        found.records[key] = path.stat().st_blocks * _BLOCK_BYTES
        try:
            if isinstance(named, tuple):
                header, part = unseal(path.read_bytes(), name=named[0], group=named[1])
                found.parts[key] = header.block, part
            else:
                unseal_features(path.read_bytes(), name=named)
        except CorruptRecord as fault:
            found.faults.append(f"the record {key} is not whole: {fault}")


def _against_rows(records: Mapping[str, int], rows: Mapping[str, FileRow]) -> Iterator[str]:
    for key in sorted(rows.keys() | records.keys()):
        row = rows.get(key)
        if row is None:
            yield f"a file without a row: {key}"
        elif row.state is not State.STORED:
            yield f"a row that a dead writer left {row.state}: {key}"
        elif key not in records:
            yield f"a row without a file: {key}"
        elif row.nbytes != records[key]:
            yield f"{key} takes up {records[key]} bytes, and its row says {row.nbytes}"


def _against_quarantine(folder: Folder, stated: Mapping[str, int]) -> Iterator[str]:
    for path in (*folder.fences.glob("*/*"), *folder.quarantine.glob("*/*")):
        if path.suffix != ".rec":
            yield f"no record: {path}"
    files = [path.stat().st_blocks * _BLOCK_BYTES for path in folder.quarantine.glob("*/*.rec")]
    real = {"bytes": sum(files), "records": len(files)}
    if {name: stated[name] for name in real} != real:
        yield f"{real} lie in quarantine, and the store says {dict(stated)}"


def _strangers(store: Path, writers: int) -> Iterator[str]:
    databases = {name + suffix for name in _DATABASES for suffix in ("", "-wal", "-shm")}
    folders = {RECORDS, "owners", *_ELSEWHERE}
    yield from _unknown(store, {*databases, *folders, "secret"})
    locks = {path.name for path in (store / "owners").iterdir()} - _LOCKS
    if len(locks) != writers:
        yield f"{writers} have the store open, and there are the locks {sorted(locks)}"


def _unknown(folder: Path, known: Collection[str]) -> Iterator[str]:
    for path in folder.iterdir():
        if path.name not in known:
            yield f"nobody accounts for {path}"
