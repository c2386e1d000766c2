"""Plan, restore, commit and evict stored prefix state; verify and tend the store that holds it.

opening     open_cache: folder, locks, inventory, threads
cache       Cache: what a turn calls
shelves     what all of its parts work on
planner     where a prompt can stand, from what is held            (pure)
restore     load, verify, hand over; the retreat                   (no I/O of its own)
loading     where a restore's parts come from
committing  where a block's parts go
policy      which boundaries keep a recurrent snapshot             (pure)
fences      what is barred, by numbers; durable
quarantine  what is done about it in one process
audit       which chains there are, and what each tier holds of a block
forest      what to evict, by the laws                             (pure)
quota       who leaves the SSD tier, over all models               (pure)
lifecycle   the states of a part; pins, fences, queued writes
features    what vision towers made: found, verified, committed; feature_ram
ram, ssd    the two tiers as the cache uses them
inventory   SQLite: an index that may be lost; feature_rows and lineage_rows its other tables
entry       what a listing shows; figures what a status shows
journal     the last receipts; evidence what each touched, origins what models are made of
capture     evidence to share, written; captured: read again
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
