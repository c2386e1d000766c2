"""What ``/v1/cache`` and ``/metrics`` show: counts and bytes, nothing of a prompt.

The inventory is asked on a reading thread; while it does not answer, its last answer is shown and
the tier is down.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from surefoot.cache.features import FeatureCache
from surefoot.cache.planner import Source
from surefoot.cache.quarantine import Quarantine
from surefoot.cache.shelves import Shelves
from surefoot.cache.ssd import SsdShelf
from surefoot.errors import CacheFault

SHOW_S = 0.1  # the server's event loop waits; then what was last known is shown


class Used(NamedTuple):
    """Bytes and numbers of records on SSD."""

    parts: tuple[int, int] = (0, 0)
    features: tuple[int, int] = (0, 0)
    aside: tuple[int, int] = (0, 0)


class Figures:
    """Reads the tiers' figures for any thread."""

    def __init__(self, shelves: Shelves, features: FeatureCache, quarantine: Quarantine) -> None:
        self._ram = shelves.ram
        self._features = features
        self._ssd = shelves.ssd
        self._quarantine = quarantine
        self._lanes = shelves.lanes
        self._outage = shelves.outage
        self._lock = shelves.lock
        self._used = Used()

    def shown(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """Return the tiers' figures, beside the cache's own ``counts``."""
        with self._lock:
            ram = {
                "bytes": self._ram.used_bytes,
                "capacity": self._ram.capacity,
                "parts": self._ram.parts,
                "evictions": self._ram.evictions,
                "failures": 0,
                "stalls": 0,
                "state": "up",
            }
        counters = dict(counts)
        counters["quarantines"] = self._quarantine.raised
        tiers = {Source.RAM.value: ram}
        if self._ssd:
            answered = self._ask(self._ssd)
            tiers[Source.SSD.value] = self._ssd_figures(self._ssd, answered=answered)
            counters["refused_writes"] = self._ssd.counts.refused
            counters["over_budget_writes"] = self._ssd.counts.over_budget
            counters["quarantined_parts"] = self._ssd.counts.quarantined_parts
            counters["quarantined_features"] = self._ssd.counts.quarantined_features
        nbytes, records = self._used.aside
        return {
            "tiers": tiers,
            "features": self._features.status(self._used.features),
            "quarantined": {"bytes": nbytes, "records": records},
            "fences": self._quarantine.fences.last,
            "pending_writes": self._lanes.writes.pending(),
            "counters": counters,
        }

    def _ask(self, ssd: SsdShelf) -> bool:
        inventory = ssd.inventory
        answer = self._quarantine.ask(
            lambda: Used(
                inventory.used(), inventory.features.used(), inventory.lineage.aside_used()
            ),
            within_s=SHOW_S,
        )
        if isinstance(answer, CacheFault):
            return False
        self._used = answer
        return True

    def _ssd_figures(self, ssd: SsdShelf, *, answered: bool) -> dict[str, Any]:
        reads, writes = self._lanes
        down = self._outage.lasts or writes.stuck or not answered
        nbytes, parts = self._used.parts
        return {
            "bytes": nbytes,
            "capacity": ssd.quota.capacity,
            "parts": parts,
            "evictions": ssd.counts.evictions,
            "failures": ssd.counts.failures,
            "stalls": reads.stalls + writes.stalls,
            "state": "down" if down else "up",
        }
