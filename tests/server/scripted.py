"""A scripted backend: turns whose events are written down, and an app around it."""

import asyncio
import base64
import json
import threading
from dataclasses import dataclass, field, replace

import httpx

from surefoot.identity import KeyId
from surefoot.receipt import Finish, Kind, Miss, Receipt, Timings
from surefoot.scheduler import Delta, Done, TokenText
from surefoot.server import Metrics, ServerConfig, create_app

RECEIPT = Receipt(
    id="filled in",
    kind=Kind.TURN,
    model="ab" * 32,
    finish=Finish.STOP,
    prompt_tokens=40,
    restored_tokens=32,
    computed_tokens=8,
    sources={"ram": 16, "ssd": 16},
    boundary_tokens=32,
    miss_reason=Miss.DIVERGED,
    timings_ms=Timings(queue=1, restore=2, prefill=3, ttft=60, total=90),
)
TOKENS = (
    TokenText(5, "Hel", b"Hel", -0.5, (("Hel", b"Hel", -0.5), ("\ufffd", b"\xc3", float("-inf")))),
    TokenText(6, "lo", b"lo", -0.25, (("\ufffd", b"\xe2", -0.1), ("\ufffd", b"\xe3", -0.2))),
)


def done(**changes):
    return Done(replace(RECEIPT, **changes), completion_tokens=2)


def hello(request):
    """Answer "Hello", with log-probabilities where they are asked for."""
    shown = [(token,) if request.sampling.top_logprobs is not None else () for token in TOKENS]
    return [Delta("Hel", shown[0]), Delta("", ()), Delta("lo", shown[1]), done(id=request.id)]


@dataclass
class ScriptedTicket:
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self):
        self.cancelled.set()


class ScriptedTurns:
    """Delivers ``script(request)`` at once; a hook stands between events where one is given."""

    def __init__(self, script=hello):
        self.script = script
        self.requests = []
        self.tickets = []
        self.deliver = None

    def submit(self, request, deliver):
        self.requests.append(request)
        self.deliver = deliver
        events = self.script(request)
        self.tickets.append(ScriptedTicket())
        for event in events:
            deliver(event)
        return self.tickets[-1]

    def status(self):
        return {"running": 0, "queued": 0, "idle_work": 0}


class ScriptedBackend:
    context_tokens = 8192

    def __init__(self, turns=None, *, takes_images=True):
        self.turns = turns
        self.takes_images = takes_images
        self.metrics = Metrics()

    def status(self):
        return {
            "pending_writes": 3,
            "model": "ab" * 32,
            "features": {
                "ram": {"bytes": 7, "capacity": 70, "items": 1},
                "ssd": {"bytes": 9, "capacity": 90, "items": 2},
            },
            "tiers": {"ram": {"bytes": 10, "state": "up"}, "ssd": {"bytes": 20, "state": "down"}},
            "counters": {"quarantines": 1},
        } | self.turns.status()


def config(**changes):
    numbers = iter(range(1000))
    given = {
        "model": "served",
        "created": 1_700_000_000,
        "random_seed": lambda: 4242,
        "random_id": lambda: f"id{next(numbers)}",
        "key_id": lambda key: KeyId(b"id of " + key.encode()),
        "wall_clock": lambda: 1_800_000_000.9,
    }
    return ServerConfig(**given | changes)


class Server:
    """An app with its scripted backend, asked without a network."""

    def __init__(self, script=hello, loading=False, takes_images=True, **changes):
        self.turns = ScriptedTurns(script)
        turns = None if loading else self.turns
        self.backend = ScriptedBackend(turns, takes_images=takes_images)
        self.app = create_app(config(**changes), self.backend)

    def ask(self, method, path, base="http://localhost", **more):
        async def one():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url=base) as client:
                return await client.request(method, path, **more)

        return asyncio.run(one())

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def chat(self, headers=None, **fields):
        return self.ask("POST", "/v1/chat/completions", json=CHAT | fields, headers=headers)

    def text(self, headers=None, **fields):
        return self.ask("POST", "/v1/completions", json=TEXT | fields, headers=headers)

    def body(self, content, path="/v1/chat/completions"):
        return self.ask("POST", path, content=content)

    @property
    def asked(self):
        """The last turn that reached the scheduler."""
        return self.turns.requests[-1]


CHAT = {"model": "served", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "served", "prompt": "once"}


def data_url(file, media_type="image/png"):
    return f"data:{media_type};base64,{base64.b64encode(file).decode()}"


def image(url, **more):
    """A part that shows an image; bytes become a data URL."""
    url = data_url(url) if isinstance(url, bytes) else url
    return {"type": "image_url", "image_url": {"url": url, **more}}


def chunks(response):
    """The data of a stream, as JSON; the last must be [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def error(response, status=400):
    """The error of a response, whose shape is checked."""
    assert response.status_code == status, response.text
    found = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert "\n" not in found["message"]
    return found
