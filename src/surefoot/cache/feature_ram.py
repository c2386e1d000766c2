"""The features of media items in RAM: their records, the least recently used leaving first."""

from surefoot.cache.fences import Fence
from surefoot.identity import FeatureName
from surefoot.record import FeatureHeader, feature_key
from surefoot.tiers.ram import RamTier


class FeatureRam:
    """Records of features in RAM, the least recently used first; called with a lock held."""

    def __init__(self, tier: RamTier, *, capacity: int) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._tier = tier
        self._headers: dict[FeatureName, FeatureHeader] = {}

    def __len__(self) -> int:
        return len(self._headers)

    @property
    def used_bytes(self) -> int:
        """Bytes of all records (I6)."""
        return self._tier.used_bytes

    def headers(self) -> list[FeatureHeader]:
        """Return what is held."""
        return list(self._headers.values())

    def header(self, name: FeatureName) -> FeatureHeader | None:
        """Return what is known of held features."""
        return self._headers.get(name)

    def nbytes(self, name: FeatureName) -> int:
        """Return the bytes of a record; 0 if it is not held."""
        return len(self.get(name) or b"")

    def get(self, name: FeatureName) -> bytes | None:
        """Return a record."""
        return self._tier.get(feature_key(name))

    def put(self, header: FeatureHeader, data: bytes) -> bool:
        """Hold a record that is not held yet; may evict; false if it can never fit (I6)."""
        assert header.name not in self._headers, header.name
        if len(data) > self.capacity:
            return False
        while self.used_bytes + len(data) > self.capacity:
            self.remove(next(iter(self._headers)))
            self.evictions += 1
        self._tier.put(feature_key(header.name), data)
        self._headers[header.name] = header
        return True

    def barred(self, fence: Fence) -> list[FeatureName]:
        """Return what a fence bars: the features of its name, or all that are older."""
        return [
            name
            for name, header in self._headers.items()
            if fence.name in (None, name) and header.fence < fence.number
        ]

    def touch(self, name: FeatureName) -> None:
        """Note that features were used; what is not held is ignored."""
        header = self._headers.pop(name, None)
        if header:
            self._headers[name] = header

    def remove(self, name: FeatureName) -> None:
        """Let go of a record; removing an absent one is a no-op."""
        if self._headers.pop(name, None):
            self._tier.delete(feature_key(name))
