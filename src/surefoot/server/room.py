"""The places and the memory that all requests share, and who gives way when there is none left.

A request's share grows as its bytes arrive and is given back when its answer has ended. One client
has a share of the whole, so that it never holds all of it. Where there is no room left for a
newcomer, the body that arrives slowest gives way: one that stalls or dribbles holds a place only as
long as nobody needs it. Those whose bodies are whole are never touched.
"""

from collections import Counter
from collections.abc import Callable

from surefoot.errors import CapacityError
from surefoot.server.limits import MIB, Limits
from surefoot.server.refusals import TooManyAtOnce

# A body that brought its last MiB within this time is not slow, and gives way to nobody.
PACE, SLOW_S = MIB, 2.0


class Room:
    """Places and bytes, of which shares are taken; used on the event loop alone."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._shares: set[Share] = set()
        self._places: Counter[str] = Counter()  # of requests, by client
        self._bytes: Counter[str] = Counter()  # of requests, by client
        self._held = 0

    def enter(self, client: str | None, *, watching: bool = False) -> "Share":
        """Return the share of a new request; ``close`` it, whatever happens.

        Args:
            client: whose it is; None for one that is not told apart from others.
            watching: let in even when the server is full, without a place: who watches over it.

        Raises:
            TooManyAtOnce: this client has as many requests as one may.
            CapacityError: there is no place, and nobody who gives way.
        """
        limits = self._limits
        if client is not None and self._places[client] >= limits.client_requests:
            raise TooManyAtOnce(
                f"{limits.client_requests} requests of this client are at work or waiting, the "
                "most that one may have at once"
            )
        full = not watching and len(self._shares) >= limits.requests
        if full and not self._someone_gives_way():
            raise CapacityError(f"this server answers at most {limits.requests} requests at once")
        share = Share(self, client, self._clock())
        if not watching:
            self._shares.add(share)
            if client is not None:
                self._places[client] += 1
        return share

    def now(self) -> float:
        """Return the time in seconds."""
        return self._clock()

    def take(self, share: "Share", nbytes: int) -> None:
        """Hold bytes for a request.

        Raises:
            TooManyAtOnce: the client's requests hold as many bytes as one client's may.
            CapacityError: there is no room for them, and nobody who gives way; nothing was taken.
        """
        client, most = share.client, self._limits.client_bytes
        if client is not None and self._bytes[client] + nbytes > most:
            raise TooManyAtOnce(
                f"the requests of this client hold at most {most} bytes at once; send this one "
                "again when others have ended"
            )
        most = self._limits.room_bytes
        while self._held + nbytes > most:
            if not self._someone_gives_way(but=share):
                raise CapacityError(
                    f"this server holds at most {most} bytes of requests at once; send this one "
                    "again later"
                )
        self._held += nbytes
        if client is not None:
            self._bytes[client] += nbytes

    def give(self, share: "Share", nbytes: int) -> None:
        """Hold bytes no longer."""
        assert 0 <= nbytes <= self._held, (nbytes, self._held)
        self._held -= nbytes
        if share.client is not None:
            # Unlike subtraction item by item, this forgets who holds nothing.
            self._bytes -= Counter({share.client: nbytes})

    def leave(self, share: "Share") -> None:
        """Give a request's place back; nothing happens if it has none."""
        if share in self._shares:
            self._shares.remove(share)
            if share.client is not None:
                self._places -= Counter({share.client: 1})

    def _someone_gives_way(self, *, but: "Share | None" = None) -> bool:
        """Dismiss the body that arrives slowest, if one is slow; what it held is free at once."""
        arriving = [one for one in self._shares if one.arriving and one is not but]
        slowest = min(arriving, key=lambda one: one.since, default=None)
        if slowest is None or self._clock() - slowest.since < SLOW_S:
            return False
        slowest.dismiss()
        return True


class Share:
    """What one request holds, and how its body comes along."""

    def __init__(self, room: Room, client: str | None, now: float) -> None:
        self._room = room
        self._held = 0
        self._counted = 0  # bytes at the moment ``since``
        self.client = client
        self.since = now  # when what it brought last, up to PACE, began to arrive
        self.arriving = False  # whether its body is awaited
        self.dismissed = False
        self.on_dismiss: Callable[[], None] = lambda: None

    def take(self, nbytes: int) -> None:
        """Hold more.

        Raises:
            CapacityError: there is no room for it.
        """
        self._room.take(self, nbytes)
        self._held += nbytes
        if self._held - self._counted >= PACE:
            self._counted, self.since = self._held, self._room.now()

    def dismiss(self) -> None:
        """Give everything back, and the place, and end the wait for the rest of the body."""
        self.dismissed, self.arriving = True, False
        self.close()
        self.on_dismiss()

    def close(self) -> None:
        """Give everything back."""
        held, self._held = self._held, 0
        self._room.give(self, held)
        self._room.leave(self)
