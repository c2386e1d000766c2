"""A scheduler over the fake engine, whose units can be watched and held."""

import threading

from surefoot.cache import open_cache
from surefoot.chat.request import ChatInput, Image, Message, Role, TokensInput
from surefoot.engine import Sampling
from surefoot.scheduler import Limits, Scheduler
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.fake_engine import FakeEngine
from surefoot.turn import Done, Failed, Serving, TurnRequest

C = 4
WAIT_S = 20


class House:
    def __init__(self, **limits):
        self.engine = FakeEngine(block_tokens=C)
        self.units = []
        self.hooks = []
        self.engine.on_unit = self.on_unit
        self.receipts, self.bugs = [], []
        self.now = 0.0
        self.cache = open_cache(
            model=self.engine.model,
            groups=self.engine.groups,
            feature_schema=self.engine.features,
            feature_ram_bytes=1 << 20,
            feature_ssd_bytes=1 << 20,
            store=None,
            ram_bytes=1 << 20,
            ssd_bytes=0,
            free_floor_bytes=0,
            io_threads=1,
            queue_bytes=1 << 20,
            clock=self.clock,
            wall_clock=self.clock,
            random_bytes=lambda n: bytes(n),
        )
        serving = Serving(self.engine, FakeChat(), self.cache, self.clock, 60.0)
        self.scheduler = Scheduler(
            serving,
            Limits(**({"running": 4, "queued": 4, "live_bytes": 1 << 20, "idle": 4} | limits)),
            on_receipt=self.receipts.append,
            on_bug=self.bugs.append,
        )

    def clock(self):
        self.now += 0.001
        return self.now

    def on_unit(self, kind, start, end):
        self.units.append((kind, start, end))
        for hook in self.hooks:
            hook(kind, start, end)

    def submit(self, n, *, tokens=4, seed=1, text=None, picture=None, **fields):
        content = (text, Image(picture, "here")) if picture else text
        made = (
            ChatInput((Message(role=Role.USER, content=content),))
            if text
            else TokensInput(tuple((seed * 31 + i * 7) % 200 + 1 for i in range(n)))
        )
        fields = {"ignore_eos": True, "max_tokens": tokens, "sampling": Sampling()} | fields
        return Watch(self.scheduler, TurnRequest(id=f"{seed}", input=made, **fields))


class Watch:
    """A submitted turn: its events, and the fact that it ended."""

    def __init__(self, scheduler, request):
        self.events, self.ended = [], threading.Event()
        self.ticket = scheduler.submit(request, self.deliver)

    def deliver(self, event):
        self.events.append(event)
        if isinstance(event, Done | Failed):
            self.ended.set()

    def end(self):
        assert self.ended.wait(WAIT_S)
        return self.events[-1]


def wait_for(one, fact):
    # Status changes are announced on the scheduler's own condition.
    with one.scheduler._wake:
        assert one.scheduler._wake.wait_for(fact, WAIT_S)
