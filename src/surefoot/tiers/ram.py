"""The RAM tier: values as they were put, gone with the process."""

from collections.abc import Iterator
from threading import Lock

from surefoot.tiers import KEY


class RamTier:
    """Bytes in a dict. Capacity is the cache's business."""

    name = "ram"
    durable = False

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._used_bytes = 0
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        """The bytes of all values."""
        return self._used_bytes

    def put(self, key: str, data: bytes) -> int:
        """Keep ``data`` itself, not a copy; bytes never change."""
        assert KEY.fullmatch(key), key
        with self._lock:
            self._used_bytes += len(data) - len(self._values.get(key, b""))
            self._values[key] = data
        return len(data)

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if the key is absent."""
        assert KEY.fullmatch(key), key
        return self._values.get(key)

    def delete(self, key: str) -> None:
        """Forget the key."""
        assert KEY.fullmatch(key), key
        with self._lock:
            self._used_bytes -= len(self._values.pop(key, b""))

    def list(self) -> Iterator[tuple[str, int]]:
        """Yield every key with its value's length, as of the first step."""
        with self._lock:
            held = [(key, len(data)) for key, data in self._values.items()]
        yield from held
