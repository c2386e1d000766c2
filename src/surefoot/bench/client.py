"""A small client that streams one answer and keeps what must be equal bit for bit."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from surefoot.errors import EngineError, SetupError
from surefoot.events import Events

READ_TIMEOUT_S = 600.0  # a cold prefill of a long prompt on two cores takes half a minute
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer: what it said, what the receipt says, and when the first token came."""

    text: str
    logprobs: tuple[Any, ...]
    receipt: dict[str, Any]
    ttft_s: float
    total_s: float

    @property
    def bits(self) -> tuple[Any, ...]:
        """What a warm answer must share with the cold one."""
        return self.text, self.logprobs, self.receipt["state_digest"]

    @property
    def tier(self) -> str:
        """Where the restored tokens came from, in words."""
        return "+".join(name for name, tokens in self.receipt["sources"].items() if tokens) or "-"


class Client:
    """Talks to one server; ``close`` it."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._http = httpx.Client(
            base_url=url, timeout=READ_TIMEOUT_S, trust_env=False, headers=headers
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def wait(
        self, what: str, ready: Callable[[dict[str, Any]], bool], *, timeout_s: float
    ) -> dict[str, Any]:
        """Poll ``/v1/cache`` until ``ready`` says so of its status.

        Raises:
            EngineError: it did not within ``timeout_s``.
        """
        until = time.monotonic() + timeout_s
        while True:
            response = self._http.get("/v1/cache")
            status: dict[str, Any] = response.json() if response.status_code == 200 else {}
            if status and ready(status):
                return status
            if time.monotonic() > until:
                raise EngineError(f"{self.url}: {what} did not happen within {timeout_s:g} s")
            time.sleep(POLL_S)

    def wait_written(self, *, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until everything committed is durable."""
        return self.wait(
            "writing everything that was committed",
            lambda status: status["pending_writes"] == 0,
            timeout_s=timeout_s,
        )

    def ask(self, body: dict[str, Any], *, mode: str = "use", chat: bool = True) -> Answer:
        """Send one request, streamed, and wait for the whole answer.

        Raises:
            SetupError: the server refused it.
        """
        started = time.monotonic()
        first: float | None = None
        texts: list[str] = []
        logprobs: list[Any] = []
        receipt: dict[str, Any] | None = None
        with self._streamed(body, mode=mode, chat=chat) as chunks:
            for chunk in chunks:
                receipt = chunk.get("surefoot") or receipt
                for choice in chunk["choices"]:
                    text, shown = _content(choice)
                    if first is None and (text or shown or choice["finish_reason"]):
                        first = time.monotonic()
                    texts.append(text)
                    logprobs += shown
        ended = time.monotonic()
        if receipt is None:
            raise EngineError(f"{self.url}: the answer carried no receipt")
        ttft_s = (first if first is not None else ended) - started
        return Answer("".join(texts), tuple(logprobs), receipt, ttft_s, ended - started)

    def leave(self, body: dict[str, Any], *, pieces: int) -> str:
        """Send one request, hang up after so many pieces of text, and return what they said.

        Raises:
            SetupError: the server refused it.
        """
        texts: list[str] = []
        with self._streamed(body, mode="use", chat=True) as chunks:
            for chunk in chunks:
                texts += [text for text, _ in map(_content, chunk["choices"]) if text]
                if len(texts) >= pieces:
                    break
        return "".join(texts)

    @contextmanager
    def _streamed(
        self, body: dict[str, Any], *, mode: str, chat: bool
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Send one request; its chunks come one by one, and leaving hangs up."""
        path = "/v1/chat/completions" if chat else "/v1/completions"
        wire = body | {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"x-surefoot-cache": mode}
        with self._http.stream("POST", path, json=wire, headers=headers) as response:
            if response.status_code != 200:
                raise SetupError(f"the server at {self.url} refused: {_refusal(response)}")
            yield self._chunks(response, path)

    def _chunks(self, response: httpx.Response, path: str) -> Iterator[dict[str, Any]]:
        events = Events()
        for piece in response.iter_text():
            for data in events.feed(piece):
                if data == "[DONE]":
                    continue
                chunk: dict[str, Any] = json.loads(data)
                if "error" in chunk:
                    raise EngineError(f"{self.url}{path}: {chunk['error']}")
                yield chunk


def wait_healthy(url: str, alive: Callable[[], bool], *, timeout_s: float) -> None:
    """Wait until ``/health`` answers 200.

    Raises:
        EngineError: the server ended, or did not answer within ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    with httpx.Client(base_url=url, timeout=5.0, trust_env=False) as http:
        while time.monotonic() < until:
            if not alive():
                raise EngineError(f"the server at {url} ended while it was starting")
            try:
                if http.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(POLL_S)
    raise EngineError(f"the server at {url} was not ready within {timeout_s:g} s")


def _refusal(response: httpx.Response) -> str:
    body = response.read()
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{response.status_code} {body[:200]!r}"


def _content(choice: dict[str, Any]) -> tuple[str, list[Any]]:
    text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
    logprobs = choice.get("logprobs")
    shown = [] if not logprobs else logprobs.get("content", [logprobs])
    return text or "", shown or []
