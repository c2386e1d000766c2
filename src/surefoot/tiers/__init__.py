"""Where bytes live. A tier knows keys and bytes; it has never heard of tokens.

Values are whole or absent at every instant, after any crash (I3). A tier declares what it can do;
who may use it, when it is full and what goes first is the cache's business.
"""

from collections.abc import Iterator
from typing import Protocol


class Tier(Protocol):
    """A store of immutable bytes under keys of ``[0-9a-z.-]``, at least three characters long."""

    @property
    def name(self) -> str:
        """``ram``, ``ssd`` or ``remote``."""
        ...

    @property
    def durable(self) -> bool:
        """Whether values outlive the process."""
        ...

    def put(self, key: str, data: bytes) -> int:
        """Store ``data`` whole or not at all (I3) and return the bytes it takes up.

        Storing an existing key replaces it. On return a durable tier's value survives a crash.

        Raises:
            TierError: nothing was stored, or it is unknown whether it was.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """Return the whole value, or None if the key is absent.

        Raises:
            TierError: the medium failed.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the key; removing an absent key is a no-op.

        Raises:
            TierError: the medium failed.
        """
        ...

    def list(self) -> Iterator[tuple[str, int]]:
        """Yield every key with the bytes it takes up, in no order."""
        ...


__all__ = ["Tier"]
