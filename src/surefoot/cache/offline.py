"""Tend a store without a model: figures, listing, verification, collection.

Each works beside a running server: it takes the same locks, and whatever it deletes the server
sees as a miss.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from surefoot.cache.cache import Entry
from surefoot.cache.folder import Folder
from surefoot.cache.inventory import Inventory
from surefoot.cache.lifecycle import PartKey
from surefoot.cache.opening import open_models, real_tier, tended_inventory
from surefoot.cache.quota import leavers, orphans
from surefoot.cache.reconcile import part_key
from surefoot.errors import CorruptRecord, SetupError, TierError
from surefoot.record import key as record_key
from surefoot.record import unseal
from surefoot.tiers.ssd import SsdTier

FRESH_S = 60.0  # a running turn's parts may look dead until its last snapshot is written

_READER = "reader"  # the writer's name of a tier that writes nothing


@dataclass(frozen=True, slots=True)
class Verification:
    """What ``verify_store`` found, in records."""

    records: int
    verified: int
    corrupt: int
    failed: int  # could not be read; left alone
    nbytes: int


@dataclass(frozen=True, slots=True)
class Collection:
    """What ``collect`` removed."""

    orphans: int
    parts: int
    nbytes: int


def store_stats(path: Path) -> dict[str, Any]:
    """Return what a store holds, by model; names, counts and bytes only."""
    with _opened(path) as (folder, _, inventory):
        used, parts = inventory.used()
        models: dict[str, dict[str, Any]] = {
            model.hex(): {"parts": 0, "bytes": 0, "last_open": row.last_open}
            for model, row in inventory.models().items()
        }
        for row in inventory.rows():
            one = models.setdefault(row.model.hex(), {"parts": 0, "bytes": 0, "last_open": None})
            one["parts"] += 1
            one["bytes"] += row.nbytes
        living, _ = folder.owners()
        free = folder.free_bytes()
    return {
        "store": str(path),
        "bytes": used,
        "parts": parts,
        "free_bytes": free,
        "open_by": len(living),
        "models": models,
    }


def store_entries(path: Path) -> Iterator[Entry]:
    """Yield every stored part, by model and block end; nothing of a prompt."""
    with _opened(path) as (_, _, inventory):
        rows = list(inventory.rows())
    for row in rows:
        yield Entry(row.name.hex(), row.group, row.start, row.end, row.nbytes, ("ssd",), row.tick)


def verify_store(path: Path, progress: Callable[[int, int], None]) -> Verification:
    """Read and unseal every record; delete those that are not what was sealed (I2, I8).

    Args:
        path: the store's folder.
        progress: called with records done and records in all, after each.
    """
    verified = corrupt = failed = nbytes = 0
    with _opened(path) as (_, tier, inventory):
        keys = [key for key, _ in tier.list()]
        for done, key in enumerate(keys, 1):
            named = part_key(key)
            try:
                size = _verify(tier, key, named)
                verified += size > 0
                nbytes += size
            except CorruptRecord:
                corrupt += 1
                tier.delete(key)
                inventory.drop([named] if named else [])
            except TierError:
                failed += 1
            progress(done, len(keys))
    return Verification(len(keys), verified, corrupt, failed, nbytes)


def collect(path: Path, *, ssd_bytes: int, now: float) -> Collection:
    """Remove orphans and dead parts, then the least recently used beyond ``ssd_bytes`` (I13)."""
    with _opened(path) as (folder, tier, inventory), folder.evicting():
        inventory.note_models(at=now)
        models, open_now = inventory.models(), open_models(folder)
        used, _ = inventory.used()
        trees = inventory.trees(lambda _: False)
        sizes: dict[PartKey, int] = {}
        for nodes in trees.values():
            for name, node in nodes.items():
                for group, part in node.parts.items():
                    sizes[name, group] = part.nbytes
                    fresh = part.tick > now - FRESH_S
                    node.parts[group] = part._replace(fast=part.fast or fresh)
        old = orphans(models, open_models=open_now, now=now)
        gone = {model: trees.pop(model) for model in old if model in trees}
        removed = list(leavers(gone, models, open_models=open_now, free=inf, now=now))
        orphaned = len(removed)
        free = used - sum(sizes[key] for key in removed) - ssd_bytes
        removed += leavers(trees, models, open_models=open_now, free=free, now=now)
        for key in removed:
            tier.delete(record_key(*key))
        inventory.drop(removed)
    return Collection(orphaned, len(removed), sum(sizes[key] for key in removed))


def _verify(tier: SsdTier, key: str, named: PartKey | None) -> int:
    data = tier.get(key)
    if data is None:
        return 0  # evicted since it was listed
    if named is None:
        raise CorruptRecord(f"the file {key} is named like no part")
    unseal(data, name=named[0], group=named[1])
    return len(data)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Folder, SsdTier, Inventory]]:
    folder = Folder(path)
    if not folder.records.is_dir():
        raise SetupError(f"{path} is no store: it has no folder {folder.records.name}")
    folder.create()
    tier = real_tier(folder.records, _READER)
    try:
        with folder.opening():
            inventory = tended_inventory(folder, tier, now=0.0)
        try:
            yield folder, tier, inventory
        finally:
            inventory.close()
    except TierError as error:
        raise SetupError(f"the store {path} cannot be read: {error}") from error
