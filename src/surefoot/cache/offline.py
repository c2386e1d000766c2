"""Tend a store without a model: figures, listing, verification, collection.

Each works beside a running server: it takes the same locks, and whatever it deletes the server
sees as a miss.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from surefoot.cache.capture import purge_evidence
from surefoot.cache.entry import Entry, feature_entry, part_entry
from surefoot.cache.feature_rows import FeatureRow
from surefoot.cache.fences import Fences, Reason
from surefoot.cache.folder import Folder
from surefoot.cache.inventory import Inventory, Trees
from surefoot.cache.lifecycle import Holds, PartKey
from surefoot.cache.opening import StoreTiers, open_models, real_tier, tended_inventory
from surefoot.cache.quota import leavers, orphans
from surefoot.cache.ssd import Quota, SsdShelf
from surefoot.errors import CorruptRecord, SetupError, TierError
from surefoot.identity import NAME_BYTES, FeatureName, key_id, salt_tag, store_id
from surefoot.record import content, feature_key, read_key, unseal, unseal_features
from surefoot.record import key as record_key
from surefoot.tiers import Tier

FRESH_S = 60.0  # a running turn's parts may look dead until its last snapshot is written

NAME_DIGITS_LEAST = 8

Clock: TypeAlias = Callable[[], float]
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
class Quarantined:
    """What a command took out of the tier: the fences' numbers, and records."""

    fences: tuple[int, ...]
    parts: int
    features: int


@dataclass(frozen=True, slots=True)
class Collection:
    """What ``collect`` removed."""

    orphans: int  # of the parts and features
    parts: int
    features: int
    nbytes: int


def store_stats(path: Path) -> dict[str, Any]:
    """Return what a store holds, by model; names, counts and bytes only."""
    with _opened(path) as store:
        folder, inventory = store.folder, store.ssd.inventory
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
        aside, records = inventory.lineage.aside_used()
    return {
        "store": str(path),
        "bytes": used,
        "parts": parts,
        "feature_bytes": features_used,
        "features": features,
        "quarantined_bytes": aside,
        "quarantined_records": records,
        "fences": store.fences.last,
        "free_bytes": free,
        "open_by": len(living),
        "models": models,
    }


def store_entries(path: Path) -> Iterator[Entry]:
    """Yield every stored record, parts by model and block end, then features by age."""
    with _opened(path) as store:
        inventory = store.ssd.inventory
        parts, features = list(inventory.rows()), list(inventory.features.rows())
        verdicts = {name: one for name, (one, _) in inventory.lineage.verdicts().items()}
    yield from (part_entry(row, ("ssd",), verdicts.get(row.name)) for row in parts)
    yield from (feature_entry(row, ("ssd",), verdicts.get(row.name)) for row in features)


def verify_store(
    path: Path, progress: Callable[[int, int], None], *, ssd_bytes: int, wall_clock: Clock
) -> Verification:
    """Read and unseal every record; quarantine those that are not what was sealed (I2, I8).

    Args:
        path: the store's folder.
        progress: called with records done and records in all, after each.
        ssd_bytes: the store's quota; a sixteenth of it is for what is quarantined.
        wall_clock: seconds since the epoch.
    """
    verified = corrupt = failed = nbytes = 0
    with _opened(path, ssd_bytes, wall_clock) as store:
        keys = [key for key, _ in store.ssd.tier.list()]
        for done, key in enumerate(keys, 1):
            named = read_key(key)
            try:
                size = _verify(store.ssd.tier, key, named)
                verified += size > 0
                nbytes += size
            except CorruptRecord as fault:
                corrupt += 1
                if named is None:
                    store.ssd.tier.delete(key)
                else:
                    name = named if isinstance(named, bytes) else named[0]
                    store.fence([name], Reason.CORRUPT, str(fault))
            except TierError:
                failed += 1
            progress(done, len(keys))
    return Verification(len(keys), verified, corrupt, failed, nbytes)


def quarantine_in(
    path: Path, name: str, detail: str, *, ssd_bytes: int, wall_clock: Clock
) -> Quarantined:
    """Quarantine a stored block or an image's features, and all that descends from it (I8).

    On return the fence is durable, and every process that has the store open heeds it from its next
    plan on.

    Args:
        path: the store's folder.
        name: the name in hex; or, of what is stored on SSD, enough of its first digits (eight or
            more) to tell it.
        detail: why, for whoever reads the fence.
        ssd_bytes: as in ``verify_store``.
        wall_clock: seconds since the epoch.

    Raises:
        SetupError: no stored record has that name, or several have.
    """
    with _opened(path, ssd_bytes, wall_clock) as store:
        full = _the_name(store.ssd.inventory, name.lower())
        return store.fence([full], Reason.BY_HAND, detail)


def purge(
    path: Path,
    *,
    api_key: str | None,
    cache_salt: str | None,
    every: bool,
    wall_clock: Clock,
) -> Quarantined:
    """Remove what was stored under an API key, a ``cache_salt`` or both; or ``every`` record.

    Each root of theirs is fenced, so that running servers drop it too, and nothing is kept aside.
    What cannot be told to be somebody else's goes as well: chains whose root is not on record (the
    index was lost), features that no stored block consumed, and all that lies in quarantine.
    """
    with _opened(path, 0, wall_clock) as store:
        rows = store.ssd.inventory.lineage
        key = None if api_key is None else key_id(store.secret, api_key)
        salt = None if cache_salt is None else salt_tag(store.secret, cache_salt)
        tenants = rows.roots()
        here = store_id(store.secret)
        others = {
            root
            for root, of in tenants.items()
            if not every
            # Tags that another secret made, of a store whose own was lost, say nothing.
            and (of.secret == here or (of.key, of.salt) == (None, None))
            and (key not in (None, of.key) or salt not in (None, of.salt))
        }
        tops = rows.first_blocks()
        kept = {one for root in others for one in rows.consumed_below(root)}
        features = [row.name for row in store.ssd.inventory.features.rows() if row.name not in kept]
        names = [*(tops.keys() | (tenants.keys() - others)) - others, *features]
        found = store.fence(names, Reason.PURGED, "purged", keep=False)
        store.ssd.empty_quarantine(inf)
        purge_evidence(path, others)
        store.ssd.inventory.forget_bytes()
        return found


def _the_name(inventory: Inventory, first: str) -> bytes:
    if len(first) < NAME_DIGITS_LEAST or not set(first) <= set("0123456789abcdef"):
        raise SetupError(
            f"{first!r} is no name: write its hex digits, {NAME_DIGITS_LEAST} or more of them, "
            "as 'surefoot cache ls' shows them"
        )
    if len(first) == 2 * NAME_BYTES:
        return bytes.fromhex(first)  # it may be held by a server's RAM alone
    found = inventory.names_like(first)
    if len(found) != 1:
        what = "no stored record has" if not found else f"{len(found)} stored records have"
        raise SetupError(f"{what} a name that begins with {first}")
    return found.pop()


def collect(path: Path, *, ssd_bytes: int, now: float) -> Collection:
    """Remove orphans and dead parts, then the least recently used beyond ``ssd_bytes`` (I13).

    Parts leave before features, as when a server makes room.
    """
    with _opened(path, ssd_bytes, lambda: now) as store, store.folder.evicting():
        folder, tier, inventory = store.folder, store.ssd.tier, store.ssd.inventory
        inventory.note_models(at=now)
        models, open_now = inventory.models(), open_models(folder)
        used = store.ssd.used()
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
        store.ssd.empty_quarantine(store.ssd.used() - ssd_bytes)
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


def _verify(tier: Tier, key: str, named: Named) -> int:
    data = tier.get(key)
    if data is None:
        return 0  # evicted since it was listed
    match named:
        case None:
            raise CorruptRecord(f"the file {key} is named like no record")
        case (name, group):
            header, part = unseal(data, name=name, group=group)
            if content(part) != header.content:
                raise CorruptRecord(f"the part {key} is not of the content it states")
        case bytes():
            stated, features = unseal_features(data, name=named)
            if content(features) != stated.content:
                raise CorruptRecord(f"the features {key} are not of the content they state")
    return len(data)


@dataclass(frozen=True, slots=True)
class _Store:
    """A store opened to be tended: without a model, without threads."""

    folder: Folder
    fences: Fences
    ssd: SsdShelf
    secret: bytes

    def fence(
        self, names: Iterable[bytes], reason: Reason, detail: str, *, keep: bool = True
    ) -> Quarantined:
        """Put up a fence on each name and take what it bars out of the tier."""
        listed = list(names)
        for name in listed:
            self.fences.bar(name, reason, detail)
        numbers, parts, features = [], 0, 0
        for fence in self.fences.settle():
            numbers.append(fence.number)
            barred, items = self.ssd.barred(fence)
            self.ssd.set_aside(barred, fence.number, keep=keep)
            self.ssd.set_features_aside(items, fence.number, keep=keep)
            parts, features = parts + len(barred), features + len(items)
        return Quarantined(tuple(numbers), parts, features)


@contextmanager
def _opened(path: Path, ssd_bytes: int = 0, wall_clock: Clock = lambda: 0.0) -> Iterator[_Store]:
    folder = Folder(path)
    if not folder.records.is_dir():
        raise SetupError(f"{path} is no store: it has no folder {folder.records.name}")
    folder.create()
    tiers = StoreTiers.under(folder, _READER, real_tier)
    fences = Fences(tiers.fences, alone=folder.fencing, wall_clock=wall_clock)
    try:
        with folder.opening():
            inventory = tended_inventory(folder, tiers, fences, now=0.0)
        ssd = SsdShelf(
            tiers.records,
            inventory,
            quarantine=tiers.quarantine,
            owner=_READER,
            quota=Quota(ssd_bytes, ssd_bytes, 0, folder.free_bytes),
            holds=Holds(),
            evicting=folder.evicting,
            open_models=lambda: open_models(folder),
            wall_clock=wall_clock,
        )
        try:
            yield _Store(folder, fences, ssd, folder.secret(os.urandom))
        finally:
            inventory.close()
    except TierError as error:
        raise SetupError(f"the store {path} cannot be read: {error}") from error
