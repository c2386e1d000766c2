"""Tend a store without a model: figures, listing, verification, collection.

Each works beside a running server: it takes the same locks, and whatever it deletes the server
sees as a miss.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from surefoot.cache.entry import Entry, feature_entry, part_entry
from surefoot.cache.feature_rows import FeatureRow
from surefoot.cache.folder import Folder
from surefoot.cache.inventory import Inventory, Trees
from surefoot.cache.lifecycle import PartKey
from surefoot.cache.opening import open_models, real_tier, tended_inventory
from surefoot.cache.quota import leavers, orphans
from surefoot.errors import CorruptRecord, SetupError, TierError
from surefoot.identity import FeatureName
from surefoot.record import content, feature_key, read_key, unseal, unseal_features
from surefoot.record import key as record_key
from surefoot.tiers.ssd import SsdTier

FRESH_S = 60.0  # a running turn's parts may look dead until its last snapshot is written

Named: TypeAlias = PartKey | FeatureName | None  # what a tier key names

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

    orphans: int  # of the parts and features
    parts: int
    features: int
    nbytes: int


def store_stats(path: Path) -> dict[str, Any]:
    """Return what a store holds, by model; names, counts and bytes only."""
    with _opened(path) as (folder, _, inventory):
        used, parts = inventory.used()
        features_used, features = inventory.features.used()
        models = {model.hex(): _figures(row.last_open) for model, row in inventory.models().items()}
        for row in inventory.rows():
            one = models.setdefault(row.model.hex(), _figures(None))
            one["parts"] += 1
            one["bytes"] += row.nbytes
        for item in inventory.features.rows():
            one = models.setdefault(item.model.hex(), _figures(None))
            one["features"] += 1
            one["feature_bytes"] += item.nbytes
        living, _ = folder.owners()
        free = folder.free_bytes()
    return {
        "store": str(path),
        "bytes": used,
        "parts": parts,
        "feature_bytes": features_used,
        "features": features,
        "free_bytes": free,
        "open_by": len(living),
        "models": models,
    }


def store_entries(path: Path) -> Iterator[Entry]:
    """Yield every stored record, parts by model and block end, then features by age."""
    with _opened(path) as (_, _, inventory):
        parts, features = list(inventory.rows()), list(inventory.features.rows())
    yield from (part_entry(row, ("ssd",)) for row in parts)
    yield from (feature_entry(row, ("ssd",)) for row in features)


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
            named = read_key(key)
            try:
                size = _verify(tier, key, named)
                verified += size > 0
                nbytes += size
            except CorruptRecord:
                corrupt += 1
                tier.delete(key)
                _forget(inventory, named)
            except TierError:
                failed += 1
            progress(done, len(keys))
    return Verification(len(keys), verified, corrupt, failed, nbytes)


def collect(path: Path, *, ssd_bytes: int, now: float) -> Collection:
    """Remove orphans and dead parts, then the least recently used beyond ``ssd_bytes`` (I13).

    Parts leave before features, as when a server makes room.
    """
    with _opened(path) as (folder, tier, inventory), folder.evicting():
        inventory.note_models(at=now)
        models, open_now = inventory.models(), open_models(folder)
        used = inventory.used()[0] + inventory.features.used()[0]
        trees, sizes = _trees(inventory, now)
        old = orphans(models, open_models=open_now, now=now)
        gone = {model: trees.pop(model) for model in old if model in trees}
        parts = list(leavers(gone, models, open_models=open_now, free=inf, now=now))
        listed = list(inventory.features.rows())
        items = [row for row in listed if row.model in old]
        orphaned = len(parts) + len(items)
        over = used - ssd_bytes - _freed(parts, sizes, items)
        last = list(leavers(trees, models, open_models=open_now, free=over, now=now))
        parts += last
        over -= _freed(last, sizes, [])
        for row in listed:
            if over > 0 and row.model not in old:
                items.append(row)
                over -= row.nbytes
        for key in parts:
            tier.delete(record_key(*key))
        for row in items:
            tier.delete(feature_key(row.name))
        inventory.drop(parts)
        inventory.features.drop([row.name for row in items])
    return Collection(orphaned, len(parts), len(items), _freed(parts, sizes, items))


def _trees(inventory: Inventory, now: float) -> tuple[Trees, dict[PartKey, int]]:
    """Return the blocks by model, fresh parts to stay, and the bytes of each part."""
    trees = inventory.trees(lambda _: False)
    sizes: dict[PartKey, int] = {}
    for nodes in trees.values():
        for name, node in nodes.items():
            for group, part in node.parts.items():
                sizes[name, group] = part.nbytes
                fresh = part.tick > now - FRESH_S
                node.parts[group] = part._replace(fast=part.fast or fresh)
    return trees, sizes


def _freed(
    parts: Iterable[PartKey], sizes: Mapping[PartKey, int], items: Iterable[FeatureRow]
) -> int:
    return sum(sizes[key] for key in parts) + sum(row.nbytes for row in items)


def _figures(last_open: float | None) -> dict[str, Any]:
    return {"parts": 0, "bytes": 0, "features": 0, "feature_bytes": 0, "last_open": last_open}


def _verify(tier: SsdTier, key: str, named: Named) -> int:
    data = tier.get(key)
    if data is None:
        return 0  # evicted since it was listed
    match named:
        case None:
            raise CorruptRecord(f"the file {key} is named like no record")
        case (name, group):
            unseal(data, name=name, group=group)
        case bytes():
            header, features = unseal_features(data, name=named)
            if content(features) != header.content:
                raise CorruptRecord(f"the features {key} are not of the content they state")
    return len(data)


def _forget(inventory: Inventory, named: Named) -> None:
    match named:
        case None:
            pass
        case (name, group):
            inventory.drop([(name, group)])
        case bytes():
            inventory.features.drop([named])


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
