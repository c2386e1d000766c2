"""How many bytes an hour this process may write to the store: what keeps a disk from wearing out.

A bucket of one hour's bytes that fills evenly. It begins full with every process and knows nothing
of other processes: a server that is restarted every minute, or two on one store, may write more. It
refuses records and what would be kept aside, never a fence, an index row or a removal.
"""

from collections.abc import Callable
from threading import Lock

HOUR_S = 3600.0


class WriteBudget:
    """A bucket of bytes; safe from any thread.

    Args:
        per_hour: bytes an hour, and the most at once; 0 for no limit.
        clock: monotonic seconds.
    """

    def __init__(self, per_hour: int, clock: Callable[[], float]) -> None:
        self._per_hour = per_hour
        self._clock = clock
        self._lock = Lock()
        self._left = float(per_hour)
        self._at = clock()

    def allows(self, nbytes: int) -> bool:
        """Return whether so much may be written now; a full bucket allows whatever it is."""
        if not self._per_hour:
            return True
        with self._lock:
            self._fill()
            return self._left >= min(nbytes, self._per_hour)

    def spend(self, nbytes: int) -> None:
        """Account for bytes that were written; what is owed is paid back first."""
        with self._lock:
            self._fill()
            self._left -= nbytes

    def _fill(self) -> None:
        now = self._clock()
        gained = (now - self._at) / HOUR_S * self._per_hour
        self._left, self._at = min(self._left + gained, float(self._per_hour)), now


def unlimited() -> WriteBudget:
    """Return a budget that allows everything."""
    return WriteBudget(0, lambda: 0.0)
