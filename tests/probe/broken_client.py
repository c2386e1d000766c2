"""A client of the broken server in virtual time, and the conversations that its tests ask."""

import base64
import io
import json
from dataclasses import dataclass

import httpx
from PIL import Image

from surefoot.testing.broken_faults import Behaviour
from surefoot.testing.broken_server import (
    BrokenTransport,
    Front,
    VirtualClock,
)

TEXT = "The ferry leaves the north pier when the tide turns and the harbour bell has rung. "
ASKS = "What is the secret code? Reply with the six digits only."
COLOUR = "What color is the image? One word."
SIZE = "Is the image wide or tall?"
PATIENCE_S = 30.0
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Got:
    """One answer: what must not depend on the cache, then what may."""

    status: int
    text: str
    logprobs: object
    cached: int | None = None
    prompt: int = 0
    ttft_s: float = 0.0

    @property
    def bits(self):
        return self.status, self.text, self.logprobs


class Server:
    """A front in virtual time, and a client of it."""

    def __init__(self, fault=None, behaviour=None):
        self.clock = VirtualClock()
        self.fault, self.behaviour = fault, behaviour or Behaviour()
        self.front = Front(fault, self.behaviour, pass_time=self.clock.pass_time)
        carrier = BrokenTransport(self.front, self.clock.pass_time)
        self.client = httpx.AsyncClient(transport=carrier, base_url="http://b", timeout=PATIENCE_S)

    async def ask(self, messages, *, key=None, leave=None, **fields):
        """Stream one answer; hang up after ``leave`` pieces."""
        body = {"messages": messages, "stream": True, "logprobs": True, "top_logprobs": 5}
        body |= {"stream_options": {"include_usage": True}} | fields
        headers = {"authorization": f"Bearer {key}"} if key else {}
        started, first, pieces, usage = self.clock.now(), None, [], {}
        async with self.client.stream("POST", CHAT, json=body, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                return Got(response.status_code, response.text, None)
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                usage = chunk["usage"] or usage
                for choice in chunk["choices"]:
                    if choice["delta"].get("content"):
                        first = self.clock.now() if first is None else first
                        pieces.append((choice["delta"]["content"], choice["logprobs"]))
                if leave is not None and len(pieces) >= leave:
                    break
        details = usage.get("prompt_tokens_details") or {}
        return Got(
            200,
            "".join(text for text, _ in pieces),
            [shown for _, shown in pieces],
            details.get("cached_tokens"),
            usage.get("prompt_tokens", 0),
            (first or 0.0) - started,
        )

    async def cold(self, messages, **fields):
        """Answer by a server that has seen nothing, unbroken."""
        return await Server(None, self.behaviour).ask(messages, **fields)


def system(text):
    return {"role": "system", "content": text}


def user(*content):
    parts = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
    return {"role": "user", "content": content[0] if len(parts) == 1 else parts}


def assistant(text):
    return {"role": "assistant", "content": text}


def picture(colour, width=16, height=16):
    data = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(data, "PNG")
    return shown(data.getvalue())


def shown(data):
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def secret(code, name="aaa", sentences=6):
    return [system(f"The secret code is {code}. File {name}. {TEXT * sentences}"), user(ASKS)]


def tails(name, first, second):
    """Return two conversations that share a long beginning and have their codes in the tails."""
    shared = system(f"File {name}. {TEXT * 6}")
    return [
        [shared, user(f"The secret code is {code}. {TEXT * more} {ASKS}")]
        for code, more in ((first, 8), (second, 1))
    ]
