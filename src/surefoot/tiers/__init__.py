"""Where bytes live. A tier knows keys and bytes; it has never heard of tokens.

Values are whole or absent at every instant, after any crash (I3). A tier declares what it can do;
who may use it, when it is full and what goes first is the cache's business.
"""

import re
from collections.abc import Iterator
from typing import Protocol

KEY = re.compile(r"[0-9a-z][0-9a-z.-]{2,199}")


class Tier(Protocol):
    """A store of immutable bytes, called by several I/O threads at once.

    A key is three to 200 characters of ``[0-9a-z.-]``, the first one a letter or a digit.
    """

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
        """Remove the key; removing an absent key is a no-op. It does not come back after a crash.

        Raises:
            TierError: the medium failed; the key may be there or not.
        """
        ...

    def list(self) -> Iterator[tuple[str, int]]:
        """Yield every key with the bytes it takes up, in no order.

        Keys that come or go meanwhile may be missed or shown.

        Raises:
            TierError: the medium failed, perhaps after some keys.
        """
        ...


__all__ = ["KEY", "Tier"]
