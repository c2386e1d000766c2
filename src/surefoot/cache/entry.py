"""What a listing shows of one stored record: names and sizes, nothing of a prompt."""

from typing import NamedTuple

from surefoot.cache.feature_rows import FeatureRow
from surefoot.cache.inventory import Row


class Entry(NamedTuple):
    """One stored part, or one media item's features.

    Features belong to no group; ``start`` is 0, and ``end`` the tokens that stand for the item.
    """

    name: str
    group: str
    start: int
    end: int
    nbytes: int
    tiers: tuple[str, ...]
    last_used: float | None  # wall clock; None while only RAM has it
    kind: str  # ``part`` or ``features``
    verdict: str | None = None  # of the last audit of this name


def part_entry(row: Row, tiers: tuple[str, ...], verdict: str | None = None) -> Entry:
    """Show a part on SSD."""
    name, used = row.name.hex(), row.tick
    return Entry(name, row.group, row.start, row.end, row.nbytes, tiers, used, "part", verdict)


def feature_entry(row: FeatureRow, tiers: tuple[str, ...], verdict: str | None = None) -> Entry:
    """Show features on SSD."""
    name, used = row.name.hex(), row.tick
    return Entry(name, "", 0, row.tokens, row.nbytes, tiers, used, "features", verdict)
