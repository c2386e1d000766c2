"""The memory that all requests share: what clients sent and what was fetched for them.

A request's share grows as its bytes arrive and is given back when its answer has ended. Where there
is no room, the request that wanted more is refused for now; those at work are not touched.
"""

from surefoot.errors import CapacityError


class Room:
    """A number of bytes, of which shares are taken; used on the event loop alone."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held = 0

    def share(self) -> "Share":
        """Return an empty share; ``close`` it, whatever happens."""
        return Share(self)

    def take(self, nbytes: int) -> None:
        """Hold bytes.

        Raises:
            CapacityError: there is no room for them, and nothing was taken.
        """
        if self._held + nbytes > self._most:
            raise CapacityError(
                f"this server holds at most {self._most} bytes of requests at once; send this one "
                "again later"
            )
        self._held += nbytes

    def give(self, nbytes: int) -> None:
        """Hold bytes no longer."""
        assert 0 <= nbytes <= self._held, (nbytes, self._held)
        self._held -= nbytes


class Share:
    """What one request holds."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held = 0

    def take(self, nbytes: int) -> None:
        """Hold more.

        Raises:
            CapacityError: there is no room for it.
        """
        self._room.take(nbytes)
        self._held += nbytes

    def close(self) -> None:
        """Give everything back."""
        held, self._held = self._held, 0
        self._room.give(held)
