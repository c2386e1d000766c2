"""Bring the inventory and the files together: at open, and for the commands that tend a store.

The same three steps serve a crash, a lost or damaged inventory, and a file that somebody removed:
what a dead writer left staged goes; a row whose file is gone goes; a record without a row is
adopted from its header. Nothing is served on the strength of this: a restore verifies every record.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from surefoot.cache.inventory import Inventory
from surefoot.cache.lifecycle import PartKey, State
from surefoot.errors import CorruptRecord
from surefoot.identity import NAME_BYTES, Block, BlockName
from surefoot.record import HEADER_PREFIX_BYTES, header_bytes, read_header
from surefoot.record import key as record_key
from surefoot.tiers.ssd import SsdTier

_ADOPT_ROWS = 500  # per transaction, so that a running server's writes get in between

Found = tuple[Block, str, bytes, int]


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What had to be done to make inventory and files agree, in parts."""

    adopted: int
    missing: int
    staged: int
    unreadable: int


def reconcile(
    tier: SsdTier, inventory: Inventory, *, living: Collection[str], now: float
) -> Reconciled:
    """Make the inventory say what the tier holds; unreadable records are deleted.

    Args:
        tier: the SSD tier.
        inventory: its index, possibly empty.
        living: the writers that are alive; their staged rows are their own.
        now: the wall clock, the age of what is adopted.

    Raises:
        TierError: the medium or the inventory failed.
    """
    rows = inventory.parts()
    files = dict(tier.list())
    staged = [
        key for key, row in rows.items() if row.state is State.STAGED and row.owner not in living
    ]
    for key in staged:
        tier.delete(record_key(*key))
        files.pop(record_key(*key), None)
    # A file published after the listing is no missing one: ask again before dropping a row.
    missing = [
        key
        for key, row in rows.items()
        if row.state is State.STORED
        and record_key(*key) not in files
        and tier.head(record_key(*key), 1) is None
    ]
    inventory.drop([*staged, *missing])
    inventory.resize(
        {
            key: size
            for key, row in rows.items()
            if (size := files.get(record_key(*key), row.nbytes)) != row.nbytes
        }
    )
    known = {record_key(*key) for key in rows}
    unreadable: list[str] = []
    adopted = 0
    batch: list[Found] = []
    for found in _unindexed(tier, files, known, unreadable):
        batch.append(found)
        adopted += 1
        if len(batch) >= _ADOPT_ROWS:
            inventory.adopt(batch, tick=now)
            batch = []
    inventory.adopt(batch, tick=now)
    return Reconciled(adopted, len(missing), len(staged), len(unreadable))


def part_key(key: str) -> PartKey | None:
    """Return the block and group that a tier key names; None if it names none."""
    name, _, group = key.partition(".")
    try:
        digest = bytes.fromhex(name)
    except ValueError:
        return None
    return (BlockName(digest), group) if group and len(digest) == NAME_BYTES else None


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
            yield (*found, nbytes)


def _header(tier: SsdTier, key: str) -> tuple[Block, str, bytes] | None:
    prefix = tier.head(key, HEADER_PREFIX_BYTES)
    if prefix is None:
        return None
    needed = header_bytes(prefix)
    if needed > len(prefix):
        prefix = tier.head(key, needed) or b""
    header = read_header(prefix)
    if part_key(key) != (header.block.name, header.group):
        raise CorruptRecord(f"the file {key} holds another block's record")
    return header.block, header.group, header.content
