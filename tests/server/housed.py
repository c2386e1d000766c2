"""The whole server over a fake engine: real routes, a real scheduler, a real cache on a real disk.

Its clock is work: it moves by one unit for each token that the engine computes and for each read of
the SSD tier that a turn may wait for, so that what took longer is what did more.
"""

import itertools
import threading
from contextlib import contextmanager

from scripted import Server, config

from surefoot.cache import open_cache
from surefoot.identity import key_id
from surefoot.scheduler import Limits, Scheduler
from surefoot.server import Metrics, create_app
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.fake_engine import FakeEngine
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier
from surefoot.turn import Serving

C = 8
CONTEXT = 512
UNIT_S = 2**-20  # so small that no deadline is met, and exact when subtracted


class Work:
    """A clock of units of work."""

    def __init__(self):
        self._lock = threading.Lock()
        self._done = 0

    def add(self, units):
        with self._lock:
            self._done += units

    def __call__(self):
        return self._done * UNIT_S


class CountedDisk(RealDisk):
    """A disk whose reads are work, and which loses no power: nothing is forced down."""

    def __init__(self, work):
        super().__init__()
        self._work = work

    def read(self, *args, **named):
        if not threading.current_thread().name.endswith("write"):  # whom no turn waits for
            self._work.add(1)
        return super().read(*args, **named)

    def sync_file(self, path):
        pass

    def sync_folder(self, path):
        pass


class House(Server):
    """A server that a test asks as it asks a scripted one."""

    def __init__(self, store=None, *, ram_bytes=1 << 24, idle=0, **changes):
        self.work = Work()
        self.engine = FakeEngine(
            block_tokens=C,
            context_tokens=CONTEXT,
            on_unit=lambda kind, start, end: self.work.add(end - start),
        )
        self.receipts, self.bugs = [], []
        self.metrics = Metrics()
        self.context_tokens, self.takes_images = CONTEXT, True
        self.cache = open_cache(
            model=self.engine.model,
            groups=self.engine.groups,
            feature_schema=self.engine.features,
            feature_ram_bytes=1 << 20,
            feature_ssd_bytes=1 << 24,
            store=store,
            ram_bytes=ram_bytes,
            ssd_bytes=1 << 28,
            free_floor_bytes=0,
            io_threads=1,
            queue_bytes=1 << 24,
            clock=self.work,
            wall_clock=self.work,
            random_bytes=lambda n: bytes(n),
            make_tier=lambda folder, writer: SsdTier(folder, CountedDisk(self.work), writer),
        )
        serving = Serving(self.engine, FakeChat(), self.cache, self.work, 60.0)
        self.turns = Scheduler(
            serving,
            Limits(running=4, queued=64, live_bytes=1 << 24, idle=idle),
            on_receipt=self._on_receipt,
            on_bug=self.bugs.append,
        )
        numbers = itertools.count()
        self.config = config(
            **{
                "random_id": lambda: f"id{next(numbers)}",
                "key_id": lambda key: key_id(self.cache.secret, key),
            }
            | changes
        )
        self.app = create_app(self.config, self)

    def _on_receipt(self, receipt):
        self.receipts.append(receipt)
        self.metrics.observe(receipt)

    def status(self):
        return self.cache.status() | self.turns.status()


@contextmanager
def housed(*args, **named):
    """A server that answers, until the end of the block."""
    house = House(*args, **named)
    house.turns.start()
    try:
        yield house
    finally:
        assert house.turns.stop(20)
        assert house.cache.drain(20)
        house.cache.close()
