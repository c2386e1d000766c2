"""What every part of an open cache works on: the tiers, the threads, the locks and the clocks."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import NamedTuple

from surefoot.cache.courier import Lanes, Outage
from surefoot.cache.feature_ram import FeatureRam
from surefoot.cache.fences import Fence, Fences
from surefoot.cache.journal import Journal
from surefoot.cache.lifecycle import Holds
from surefoot.cache.ram import RamShelf
from surefoot.cache.ssd import SsdShelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelves:
    """One process's end of one store; ``lock`` is the one that both RAM tiers are under."""

    ram: RamShelf
    feature_ram: FeatureRam
    ssd: SsdShelf | None
    holds: Holds
    lanes: Lanes
    outage: Outage  # of reads of records
    lock: RLock
    clock: Callable[[], float]  # monotonic
    wall_clock: Callable[[], float]  # seconds since the epoch


class OpenStore(NamedTuple):
    """What this process has of a store's folder; without one, only ``fences`` and ``secret``."""

    ssd: SsdShelf | None
    fences: Fences
    secret: bytes
    close: Callable[[], None]
    journal: Journal | None = None
    on_fence: Callable[[Fence], None] = lambda _: None
    tidy: Callable[[], None] = lambda: None  # what was left to do; on the write lane
