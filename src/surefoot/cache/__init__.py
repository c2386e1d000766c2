"""Plan, restore, commit and evict stored prefix state; verify and tend the store that holds it.

opening     open_cache: folder, locks, inventory, threads
cache       Cache: what a turn calls
planner     where a prompt can stand, from what is held            (pure)
restore     load, verify, hand over; the retreat                   (no I/O of its own)
policy      which boundaries keep a recurrent snapshot             (pure)
forest      what to evict, by the laws                             (pure)
quota       who leaves the SSD tier, over all models               (pure)
lifecycle   the states of a part; pins, fences, queued writes
features    what vision towers made: found, verified, committed
ram, ssd    the two tiers as the cache uses them
inventory   SQLite: an index that may be lost; feature_rows its table of features
entry       what a listing shows
reconcile   inventory and files brought together
courier     the bounded I/O threads
offline     the commands that tend a store
"""

from surefoot.cache.cache import Cache
from surefoot.cache.entry import Entry
from surefoot.cache.offline import (
    Collection,
    Verification,
    collect,
    store_entries,
    store_stats,
    verify_store,
)
from surefoot.cache.opening import check_store, open_cache
from surefoot.cache.planner import Plan
from surefoot.cache.restore import Restored, RestoredPart
from surefoot.record import content

__all__ = [
    "Cache",
    "Collection",
    "Entry",
    "Plan",
    "Restored",
    "RestoredPart",
    "Verification",
    "check_store",
    "collect",
    "content",
    "open_cache",
    "store_entries",
    "store_stats",
    "verify_store",
]
