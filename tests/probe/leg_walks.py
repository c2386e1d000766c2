"""One leg, walked and judged as a run does it, on a fresh broken server in virtual time."""

import asyncio
import json

import httpx

from surefoot.probe.acquaint import acquaint
from surefoot.probe.asking import Asker
from surefoot.probe.judge import JUDGED, judge
from surefoot.probe.legs import Run
from surefoot.probe.plants import Plants
from surefoot.probe.run import EVERY_LEG
from surefoot.probe.settle import settle
from surefoot.probe.trail import Budget, Trail
from surefoot.testing.broken_faults import Behaviour
from surefoot.testing.broken_server import BrokenTransport, Front, VirtualClock

EVERY = {leg.name: leg for leg in EVERY_LEG}
KEYS = ("key-of-one", "key-of-two")
ERROR_RATE = 0.01
BARE = Behaviour(knows_salts=False, offers_logprobs=False, offers_counters=False)


class Walked:
    """One leg on a fresh broken server in virtual time."""

    def __init__(self, name, fault=None, behaviour=None, *, seed=1, keys=KEYS, refuses=None):
        self.name, self.seed, self.keys = name, seed, keys
        self.clock = VirtualClock()
        self.front = Front(fault, behaviour or Behaviour(), pass_time=self.clock.pass_time)
        self.transport = BrokenTransport(self.front, self.clock.pass_time)
        if refuses:
            self.transport = Refusing(self.transport, refuses)
        self.restarts = []
        self.can_restart, self.forgets = True, False
        self.tokens = 400_000
        self.trail = self.facts = None

    def walk(self):
        asyncio.run(self._walk())
        return self

    @property
    def judged(self):
        return judge(self.walk().trail, self.facts, ERROR_RATE, None)

    def of(self, *roles):
        return [seen.request for seen in self.trail.of(*(roles or JUDGED))]

    async def _walk(self):
        asker = Asker(
            "http://x/v1",
            keys=self.keys,
            clock=self.clock.now,
            sleep=self.clock.pass_time,
            transport=self.transport,
        )
        async with asker:
            plants, controls = Plants(self.seed), []
            budget = Budget(400_000, 1e9, 0.0)
            first = Trail(asker, plants, budget, lambda _: None, controls)
            self.facts, tasks = await acquaint(first, model=None, told=lambda *_: None)
            budget = Budget(self.tokens, 1e9, 0.0)
            self.trail = Trail(asker, plants, budget, lambda _: None, controls, name=self.name)

            async def restart():
                self.restarts.append(len(self.trail.seen))
                self.front.restart()
                if self.forgets:
                    self.front = Front(None, self.front.behaviour, pass_time=self.clock.pass_time)
                    self.transport._front = self.front

            run = Run(asker, plants, tasks, self.facts, restart if self.can_restart else None)
            await EVERY[self.name].walk(run, self.trail)
            await settle(run, self.trail, ERROR_RATE)


class Refusing(httpx.AsyncBaseTransport):
    """A server that answers 400 to bodies it does not like."""

    def __init__(self, inner, refuses):
        self.inner, self.refuses = inner, refuses

    async def handle_async_request(self, request):
        content = await request.aread()
        if content and self.refuses(json.loads(content)):
            return httpx.Response(400, json={"error": {"message": "no such thing here"}})
        return await self.inner.handle_async_request(request)
