"""One leg, walked alone.

``Walked`` walks and judges as a run does it, on a fresh broken server in virtual time; ``walked``
only walks, against a model whose every request can be looked at.
"""

import asyncio
import json
import re

import httpx

from surefoot.probe.acquaint import acquaint
from surefoot.probe.asking import Asker
from surefoot.probe.judge import JUDGED, judge
from surefoot.probe.legs import Facts, Run
from surefoot.probe.plants import Plants
from surefoot.probe.run import EVERY_LEG
from surefoot.probe.settle import settle
from surefoot.probe.tasks import Tasks
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


class Model:
    """Answers the newest code of a prompt; its tokenizer is as uneven as asked for.

    ``uneven`` letters of an opening take a token more, and each of ``wide`` words takes two.
    """

    def __init__(self, *, counts=True, recall_tokens=10**9, uneven="", wide=()):
        self.counts = counts
        self.recall_tokens = recall_tokens
        self.uneven = uneven
        self.wide = wide
        self.bodies = []
        self.working = self.most_at_once = self.left = 0

    async def __call__(self, request):
        body = json.loads(request.content)
        self.bodies.append(body)
        self.working += 1
        self.most_at_once = max(self.most_at_once, self.working)
        try:
            for _ in range(4):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.working -= 1
        tokens = self.tokens(said_in(body))
        answer = self.answer(body)
        said = {"prompt_tokens": tokens, "completion_tokens": self.tokens(answer)}
        usage = said if self.counts else None
        choice = {"message": {"content": answer}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice], "usage": usage})

    def answer(self, body):
        text = said_in(body)
        codes = list(re.finditer(r"\d{6}", text))
        near = codes and self.tokens(text[codes[-1].end() :]) < self.recall_tokens
        return codes[-1].group() if near else "I do not know."

    def tokens(self, text):
        words = text.split()
        opening = next((word for word in words if word.isupper() and len(word) == 8), "")
        more = sum(letter in self.uneven for letter in opening)
        return len(words) + more + sum(word in self.wide for word in words)


def said_in(body):
    return "\n".join(message["content"] for message in body["messages"])


def walked(name, model=None, facts=None, *, budget=None, controls=(), seed=1):
    """The trail of one leg, and the model that answered it."""
    model = model or Model()

    async def run():
        asker = Asker("http://x/v1", clock=lambda: 0.0, transport=httpx.MockTransport(model))
        async with asker:
            plants = Plants(seed)
            tasks = Tasks(plants, words_per_token=1.0, overhead_tokens=15)
            run_ = Run(asker, plants, tasks, facts or Facts(length=600, block_tokens=16))
            spend = budget or Budget(400_000, 600.0, 0.0)
            trail = Trail(asker, plants, spend, lambda _: None, list(controls), name=name)
            await EVERY[name].walk(run_, trail)
            return trail

    return asyncio.run(run()), model


def own(trail):
    """What a leg asked but for the proofs that its model can do the task."""
    return [seen for seen in trail.seen if "proof" not in seen.request.label]


def labelled(trail, beginning):
    return [seen for seen in own(trail) if seen.request.label.startswith(beginning)]


def system(seen):
    return seen.request.body["messages"][0]["content"]
