"""One store and one open cache, for tests that damage them; turns are checked as they are taken."""

from contextlib import contextmanager

from surefoot.identity import salt_of
from surefoot.receipt import Miss
from surefoot.record import feature_key, key
from surefoot.testing.cache_kit import EVERY_LAW, image_of
from surefoot.testing.damage import Shelves, Told, damages, is_whole, take_turn

TOLD = Told(tuple(range(9)))
SEEN = Told(tuple(range(50, 63)), salt_of(None, None), image_of(1))
OTHERS = [
    Told(tuple(range(100, 109))),
    Told(tuple(range(9)), salt_of(None, "another")),
    Told(tuple(range(50, 63)), salt_of(None, "another"), image_of(1)),
]


class House:
    """One store, one open cache, and the turns that are taken in it."""

    def __init__(self, folder, groups=EVERY_LAW):
        self.folder = folder
        self.bench = Shelves(folder, groups)
        self.cache = self.bench.start()

    def turn(self, told, **how):
        self.bench.wall.pass_(1)  # so that the least recently used is known
        return take_turn(self.cache, told, **how)

    def whole(self, told):
        """Take turns until one is restored whole; the second must be, whatever was damaged."""
        self.turn(told)
        taken = self.turn(told)
        assert taken.restored.boundary == len(told.blocks)
        assert taken.restored.sources == {"ssd": told.blocks[-1].end}
        assert taken.found

    def file(self, name):
        return self.folder / "records" / name[:2] / f"{name}.rec"

    def rows(self):
        inventory = self.cache._ssd.inventory
        return {
            *(key(*one) for one in inventory.parts()),
            *(feature_key(one) for one in inventory.features.files()),
        }

    def damaged(self, told, path, data, *, reason=Miss.CORRUPT, counted=damages):
        """Put other bytes in a record's place: a miss, counted, gone, and then all is well."""
        assert self.turn(told).restored.boundary == len(told.blocks)
        before = counted(self.cache)
        path.write_bytes(data)
        taken = self.turn(told, computing=False)
        if ".media." in path.name:
            assert not taken.found
        else:
            assert taken.restored.boundary < len(told.blocks)
            assert taken.restored.miss_reason is reason
        assert counted(self.cache) > before
        assert not path.exists()
        assert path.name.removesuffix(".rec") not in self.rows()
        self.whole(told)
        assert path.exists()
        assert is_whole(path)

    def reopen(self, between=lambda: None):
        self.cache.close()
        between()
        self.cache = self.bench.start()
        assert self.cache.drain(60)


@contextmanager
def open_house(folder, tolds=(TOLD, SEEN, *OTHERS)):
    """Open a house in which these conversations are stored whole."""
    house = House(folder)
    for told in tolds:
        house.whole(told)
    try:
        yield house
    finally:
        house.cache.close()
