"""Bring the inventory and the files together: at open, and for the commands that tend a store.

The same three steps serve a crash, a lost or damaged inventory, and a file that somebody removed:
a row that a dead writer left staged goes; a row whose file is gone goes; a record without a row is
adopted from its header. A file under a staged row is adopted likewise: it is whole (I3), and the
power may have taken the row's last change after the file was acknowledged.

A row that names a fence which nobody put up says nothing, so its record is
adopted anew. Nothing is served on the strength of this: a restore verifies every record.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from surefoot.cache.fences import FENCE_END
from surefoot.cache.inventory import Inventory
from surefoot.cache.lifecycle import FileRow, PartKey, State
from surefoot.cache.lineage_rows import Aside
from surefoot.errors import CorruptRecord
from surefoot.identity import FeatureName
from surefoot.record import (
    HEADER_PREFIX_BYTES,
    FeatureHeader,
    Header,
    feature_key,
    header_bytes,
    read_header,
    read_key,
)
from surefoot.record import key as record_key
from surefoot.tiers.ssd import SsdTier

_ADOPT_ROWS = 2_000  # per transaction, so that a running server's writes get in between

Key = TypeVar("Key", bound=Hashable)
Found: TypeAlias = tuple[Header | FeatureHeader, int]  # with the file's bytes


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What had to be done to make inventory and files agree, in records."""

    adopted: int
    missing: int
    staged: int
    unreadable: int


def reconcile(
    tier: SsdTier, inventory: Inventory, *, living: Collection[str], last: int, now: float
) -> Reconciled:
    """Make the inventory say what the tier holds; unreadable records are deleted.

    Args:
        tier: the SSD tier.
        inventory: its index, possibly empty.
        living: the writers that are alive; their staged rows are their own.
        last: the number of the last fence.
        now: the wall clock, the age of what is adopted.

    Raises:
        TierError: the medium or the inventory failed.
    """
    if inventory.lineage.last_number() > last:
        wild_parts, wild_features = inventory.lineage.beyond(last)
        inventory.drop(wild_parts)
        inventory.features.drop(wild_features)
    parts, features = inventory.parts(), inventory.features.files()
    files = dict(tier.list())
    old_parts = _compare(tier, files, parts, lambda key: record_key(*key), living)
    inventory.drop_staged({key: parts.pop(key) for key in old_parts.staged})
    inventory.drop(old_parts.missing)
    inventory.resize(old_parts.sizes)
    old_features = _compare(tier, files, features, feature_key, living)
    inventory.features.drop_staged({name: features.pop(name) for name in old_features.staged})
    inventory.features.drop(old_features.missing)
    inventory.features.resize(old_features.sizes)
    known = {*(record_key(*key) for key in parts), *map(feature_key, features)}
    unreadable: list[str] = []
    adopted = 0
    batch: list[Found] = []
    for found in _unindexed(tier, files, known, unreadable):
        batch.append(found)
        adopted += 1
        if len(batch) >= _ADOPT_ROWS:
            _adopt(inventory, batch, now)
            batch = []
    _adopt(inventory, batch, now)
    return Reconciled(
        adopted,
        len(old_parts.missing) + len(old_features.missing),
        len(old_parts.staged) + len(old_features.staged),
        len(unreadable),
    )


def older_than(
    number: int,
    parts: Iterable[PartKey],
    features: Iterable[FeatureName],
    *,
    tier: SsdTier,
    inventory: Inventory,
    now: float,
) -> tuple[list[PartKey], list[FeatureName]]:
    """Return those whose files are as old as their rows say, below ``number``.

    The power may have taken the rows' last change, and with it the number of a record that was
    stored anew after a fence: what is not old has its row corrected.

    Raises:
        TierError: the medium or the inventory failed.
    """
    renewed: list[tuple[str, Header | FeatureHeader]] = []

    def old(key: str) -> bool:
        try:
            header = _header(tier, key)
        except CorruptRecord:
            return True
        if header is None or header.fence < number:
            return True
        renewed.append((key, header))
        return False

    old_parts = [one for one in parts if old(record_key(*one))]
    old_features = [one for one in features if old(feature_key(one))]
    headers = [header for _, header in renewed]
    inventory.drop((one.block.name, one.group) for one in headers if isinstance(one, Header))
    inventory.features.drop(one.name for one in headers if isinstance(one, FeatureHeader))
    if renewed:
        sizes = dict(tier.list())
        _adopt(inventory, [(one, sizes[key]) for key, one in renewed if key in sizes], now)
    return old_parts, old_features


def account_aside(quarantine: SsdTier, inventory: Inventory) -> None:
    """Make the inventory's account of quarantined records what lies there.

    Raises:
        TierError: the medium or the inventory failed.
    """
    found = {
        key: Aside(key, int(number), nbytes)
        for key, nbytes in quarantine.list()
        if (number := key.partition(".")[0]).isdecimal()
    }
    known = {one.key: one for one in inventory.lineage.aside()}
    inventory.lineage.drop_aside(known.keys() - found.keys())
    inventory.lineage.put_aside(one for key, one in found.items() if known.get(key) != one)


@dataclass(frozen=True, slots=True)
class _Compared(Generic[Key]):
    """Rows that a dead writer left staged, rows without a file, and sizes that differ."""

    staged: list[Key]
    missing: list[Key]
    sizes: dict[Key, int]


def _compare(
    tier: SsdTier,
    files: dict[str, int],
    rows: Mapping[Key, FileRow],
    key_of: Callable[[Key], str],
    living: Collection[str],
) -> _Compared[Key]:
    """Compare one table with the files."""
    staged = [
        key for key, row in rows.items() if row.state is State.STAGED and row.owner not in living
    ]
    # A file published after the listing is no missing one: ask again before dropping a row.
    missing = [
        key
        for key, row in rows.items()
        if row.state is State.STORED
        and key_of(key) not in files
        and tier.head(key_of(key), 1) is None
    ]
    sizes = {
        key: size
        for key, row in rows.items()
        if (size := files.get(key_of(key), row.nbytes)) != row.nbytes
    }
    return _Compared(staged, missing, sizes)


def _adopt(inventory: Inventory, batch: list[Found], now: float) -> None:
    inventory.adopt([(one, nbytes) for one, nbytes in batch if isinstance(one, Header)], tick=now)
    inventory.features.adopt(
        [(one, nbytes) for one, nbytes in batch if isinstance(one, FeatureHeader)], tick=now
    )


def _unindexed(
    tier: SsdTier, files: dict[str, int], known: Collection[str], unreadable: list[str]
) -> Iterator[Found]:
    for key, nbytes in files.items():
        if key in known:
            continue
        try:
            found = _header(tier, key)
        except CorruptRecord:
            tier.delete(key)
            unreadable.append(key)
            continue
        if found is not None:
            yield found, nbytes


def _header(tier: SsdTier, key: str) -> Header | FeatureHeader | None:
    prefix = tier.head(key, HEADER_PREFIX_BYTES)
    if prefix is None:
        return None
    if len(prefix) == HEADER_PREFIX_BYTES and header_bytes(prefix) > HEADER_PREFIX_BYTES:
        prefix = tier.head(key, header_bytes(prefix)) or b""
    header = read_header(prefix)
    named = header.name if isinstance(header, FeatureHeader) else (header.block.name, header.group)
    if read_key(key) != named:
        raise CorruptRecord(f"the file {key} holds another record")
    if header.fence >= FENCE_END:
        raise CorruptRecord(f"the record {key} names fence {header.fence}, which none can be")
    return header
