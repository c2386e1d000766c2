"""One request to a server that speaks OpenAI's chat API, and all that came back.

Every answer is streamed, so that the time to the first token is seen. What a server refuses is a
reply too: the probe learns from it. Only a server that cannot be reached at all is an error.
"""

import asyncio
import codecs
import html
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any
from urllib.parse import quote, quote_plus

import httpx

from surefoot.errors import CapacityError, RequestError
from surefoot.events import Events
from surefoot.probe.plants import texts_of

CHAT = "chat/completions"
CONNECT_S = 10.0
PATIENCE_S = 120.0  # the longest silence before a request counts as never answered
BUSY = (429, 503, 529)
BUSY_TRIES = 8
BROKE_WAITS_S = (1.0, 5.0)  # before a request that failed by accident is sent again
ENDLESS_TIMES = 3.0  # an answer that takes so many times the patience does not end
WORDS_LEAST = 2  # words of a prompt to a token, at most: what a budget counts without a counter
NEVER_NAT = -100.0  # logprobs below stand for "not at all"
ERROR_MOST = 400  # characters of a server's words that are kept
BUSY_WAIT_S = 1.0
REACHED_EVERY_S = 0.5
NEVER = "never"  # the error of a request that got no answer within the probe's patience
ENDLESS = "the answer did not end"
HUNG_UP = "the probe hung up"  # that of one that was left on purpose

# Where servers say how many tokens of a prompt they did not compute, and what we call it.
USAGE_COUNTERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cached_tokens", ("prompt_tokens_details", "cached_tokens")),  # OpenAI, vLLM, SGLang, ours
    ("input_cached_tokens", ("input_tokens_details", "cached_tokens")),
    ("prompt_cache_hit_tokens", ("prompt_cache_hit_tokens",)),
)
CHUNK_COUNTERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("timings.cache_n", ("timings", "cache_n")),  # llama.cpp's server
    ("receipt", ("surefoot", "restored_tokens")),  # our own
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer: its text, its logprob, and the likeliest ones in its place."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request; times in seconds from sending it.

    ``error`` is None for a whole answer, ``NEVER`` if none came in time, else what the server said.
    """

    status: int
    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    tokens: tuple[Token, ...] | None = None  # None where the server gives no logprobs
    ttft_s: float = 0.0
    total_s: float = 0.0
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a whole answer came, empty or not."""
        return self.error is None

    @property
    def busy(self) -> bool:
        """Whether the server was still too busy after all tries."""
        return self.error is not None and self.status in BUSY

    @property
    def refused(self) -> bool:
        """Whether the server will not take such a request, now or later."""
        return 400 <= self.status < 500 and self.status not in (408, *BUSY)

    @property
    def said(self) -> str:
        """The answer with what was thought aloud before it."""
        return f"{self.reasoning}\n{self.text}".strip() if self.reasoning else self.text

    @property
    def bits(self) -> tuple[object, ...]:
        """What two answers must share to be equal bit for bit."""
        return self.status, self.reasoning, self.text, self.finish, self.tokens


@dataclass(slots=True)
class Dialect:
    """Which optional fields this server takes; ``acquaint.py`` finds out."""

    usage_in_stream: bool = True
    logprobs: bool = True
    top: int = 5
    answer_tokens: int = 16


Sleep = Callable[[float], Awaitable[None]]


class Asker:
    """Sends requests to one server and counts what they cost; use it as a context manager.

    Args:
        url: the base URL, ``http://host:port/v1``.
        keys: API keys; the first is used unless a request says otherwise. None is sent without any.
        clock: seconds that only grow.
        sleep: waits so many of those seconds.
        transport: what carries requests; None for the network.
    """

    def __init__(
        self,
        url: str,
        *,
        keys: Sequence[str] = (),
        clock: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.keys = tuple(keys)
        forms = {form for key in keys if key for form in _spelled(key)}
        self._spelled = sorted(forms, key=len, reverse=True)  # a form may stand inside a longer one
        self.model = ""
        self.dialect = Dialect()
        self.clock = clock
        self.sleep = sleep
        self.patience_s = PATIENCE_S
        self.spent_tokens = 0
        self._http = httpx.AsyncClient(
            transport=transport,
            trust_env=False,
            timeout=httpx.Timeout(PATIENCE_S, connect=CONNECT_S),
            # A connection each: some servers close theirs after a stream, without saying so, and
            # the next request on it would break (llama.cpp's server does, seen at version 11549).
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=0),
        )

    async def __aenter__(self) -> "Asker":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> tuple[int, Any]:
        """Return status and JSON value of a page; None where it is no JSON.

        Raises:
            CapacityError: the server cannot be reached.
        """
        try:
            response = await self._http.get(f"{self.url}/{path}", headers=self._headers(0))
        except httpx.HTTPError as error:
            raise CapacityError(f"{self.url} cannot be reached: {_words(error)}") from error
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, None

    async def wait_answering(self, *, timeout_s: float) -> None:
        """Wait until the server answers a chat; one may list its models while it loads them.

        Raises:
            CapacityError: it did not within ``timeout_s``.
        """
        until = self.clock() + timeout_s
        hello = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
        while True:
            reply = await self.ask(hello)
            if reply.ok:
                return
            why = reply.error
            if self.clock() >= until:
                raise CapacityError(f"{self.url} did not come back in {timeout_s:g} s: {why}")
            await self.sleep(REACHED_EVERY_S)

    async def ask(
        self, body: Mapping[str, Any], *, key: int = 0, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request and wait for the whole answer; busy servers are asked again."""
        waited_s, accidents = 0.0, iter(BROKE_WAITS_S)
        for _ in range(BUSY_TRIES):
            reply, again_s = await self._once(body, key=key, headers=headers or {}, pieces=None)
            # Any server may fail now and then; one that fails on this request fails again.
            if again_s is None and _broke(reply):
                again_s = next(accidents, None)
            if again_s is None or waited_s + again_s > self.patience_s:
                break
            waited_s += again_s
            await self.sleep(again_s)
        return reply

    async def leave(
        self, body: Mapping[str, Any], *, pieces: int, within_s: float | None = None, key: int = 0
    ) -> Reply:
        """Send one request and hang up after so many pieces of text; the reply is what came.

        ``within_s``: or after so many seconds, whatever came by then; None to wait for the pieces.
        """
        asked = asyncio.ensure_future(self._once(body, key=key, headers={}, pieces=pieces))
        waiting = [] if within_s is None else [asyncio.ensure_future(self.sleep(within_s))]
        try:
            await asyncio.wait((asked, *waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (asked, *waiting):
                task.cancel()
            await asyncio.gather(asked, *waiting, return_exceptions=True)
        return Reply(status=0, error=HUNG_UP) if asked.cancelled() else asked.result()[0]

    def wire(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body as it is sent: with the model, and the fields this server takes."""
        dialect = self.dialect
        whole: dict[str, Any] = {"model": self.model, "temperature": 0, "stream": True}
        if dialect.usage_in_stream:
            whole["stream_options"] = {"include_usage": True}
        if dialect.logprobs:
            whole |= {"logprobs": True, "top_logprobs": dialect.top}
        return whole | {"max_tokens": dialect.answer_tokens} | dict(body)

    def hide(self, text: str) -> str:
        """Return a text with every API key blotted out, however JSON or Python spell it."""
        for form in self._spelled:
            text = text.replace(form, "[key]")
        return text

    def _headers(self, key: int) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[key]}"} if self.keys else {}

    async def _once(
        self, body: Mapping[str, Any], *, key: int, headers: Mapping[str, str], pieces: int | None
    ) -> tuple[Reply, float | None]:
        """Send a request once; also return how long to wait if the server is busy."""
        heard = _Heard(self.clock)
        request = self._http.build_request(
            "POST",
            f"{self.url}/{CHAT}",
            json=self.wire(body),
            headers=self._headers(key) | dict(headers),
            timeout=httpx.Timeout(self.patience_s, connect=CONNECT_S),
        )
        again_s: float | None = None
        try:
            # A body may drip for ever without a silence that times out.
            async with asyncio.timeout(self.patience_s * ENDLESS_TIMES):
                again_s = await self._heard(heard, request, pieces)
        except httpx.ReadTimeout:
            heard.error = NEVER
        except TimeoutError:
            heard.error = ENDLESS if heard.begun else NEVER
        except httpx.HTTPError as error:
            heard.error = f"the connection broke: {_words(error)}"
        reply = heard.reply(self.hide)
        # So that a budget of tokens binds, whatever the server counts.
        words = len(texts_of(body).split())
        counted = reply.prompt_tokens
        prompt = words if counted is None else max(counted, words // WORDS_LEAST)
        self.spent_tokens += prompt + (reply.completion_tokens or 0)
        return reply, again_s

    async def _heard(
        self, heard: "_Heard", request: httpx.Request, pieces: int | None
    ) -> float | None:
        """Listen to the answer to one request; return how long to wait if the server is busy."""
        response = await self._http.send(request, stream=True)
        try:
            if response.status_code == 200:
                await heard.listen(response, pieces, self.patience_s)
                return None
            heard.refused(response.status_code, await response.aread())
            return _retry_s(response)
        finally:
            await response.aclose()


class _Heard:
    """Collects one answer while it streams in."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._status = 0
        self._texts: list[str] = []
        self._calls: dict[int, tuple[str, str]] = {}  # of tools: name and arguments
        self._thoughts: list[str] = []
        self._tokens: list[Token] = []
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._counters: dict[str, int] = {}
        self._blind = False  # whether the first token came without its logprobs
        self.error: str | None = None

    @property
    def begun(self) -> bool:
        """Whether anything was said."""
        return self._first is not None

    async def listen(self, response: httpx.Response, pieces: int | None, patience_s: float) -> None:
        self._status = response.status_code
        plain = "text/event-stream" not in response.headers.get("content-type", "")
        if plain:
            self._take(_json(await response.aread()))
            return
        events, decoder = Events(), codecs.getincrementaldecoder("utf-8")("replace")
        async for data in response.aiter_bytes():
            piece = decoder.decode(data)
            # Comments that keep a connection open are no answer: patience is for what is said.
            waited = self._clock() - self._started
            if self._first is None and waited > patience_s:
                self.error = NEVER
                return
            if waited > patience_s * ENDLESS_TIMES:
                self.error = ENDLESS
                return
            if not self._goes_on(events.feed(piece), pieces):
                return
        self._goes_on(events.end(), pieces)

    def refused(self, status: int, body: bytes) -> None:
        self._status = status
        value = _json(body)
        error = value.get("error", value)
        message = error.get("message") if isinstance(error, Mapping) else error
        said = message or value.get("detail") or body.decode("utf-8", "replace")
        self.error = f"{status}: {said if isinstance(said, str) else json.dumps(said)}"

    def reply(self, hide: Callable[[str], str]) -> Reply:
        """Return what came; errors without keys, answers as they are, since they are judged."""
        now, error = self._clock(), self.error
        if error not in (None, NEVER, ENDLESS, HUNG_UP):
            # Hidden before it is cut: a key that is cut is not found any more.
            error = hide(error)[:ERROR_MOST]
        called = json.dumps([*self._calls.values()]) if self._calls else ""
        return Reply(
            status=self._status,
            text="".join(self._texts) + called,
            reasoning="".join(self._thoughts),
            finish=self._finish,
            prompt_tokens=_number(self._usage.get("prompt_tokens")),
            completion_tokens=_number(self._usage.get("completion_tokens")),
            counters=self._counters,
            tokens=None if self._blind or _certain(self._tokens) else tuple(self._tokens),
            ttft_s=(now if self._first is None else self._first) - self._started,
            total_s=now - self._started,
            error=error,
        )

    def _goes_on(self, events: Sequence[str], pieces: int | None) -> bool:
        """Take what events say, and return whether there is more to listen to."""
        for data in events:
            if data == "[DONE]":
                return False
            if data:
                self._take(_json(data))
            if pieces is not None and len(self._texts) >= pieces:
                self.error = HUNG_UP
                return False
        return True

    def _take(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            self.error = f"an error in the stream: {chunk['error']}"
            return
        usage = chunk.get("usage")
        if isinstance(usage, Mapping):
            self._usage = usage
            self._count(USAGE_COUNTERS, usage)
        self._count(CHUNK_COUNTERS, chunk)
        for choice in _listed(chunk.get("choices")):
            self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> None:
        said = _object(choice.get("delta")) or _object(choice.get("message"))
        thought = _text(said.get("reasoning_content")) or _text(said.get("reasoning"))
        text = _text(said.get("content"))
        calls = said.get("tool_calls")
        shown = _listed(_object(choice.get("logprobs")).get("content"))
        self._finish = choice.get("finish_reason") or self._finish
        if self._first is None and (text or thought or calls or shown or self._finish):
            self._first = self._clock()
        if (text or thought) and not shown and not self._tokens:
            self._blind = True
        if text:
            self._texts.append(text)
        for place, call in enumerate(_listed(calls)):
            self._call(place, call)
        if thought:
            self._thoughts.append(thought)
        self._tokens += [token for token in map(_token, shown) if token is not None]

    def _call(self, place: int, call: Mapping[str, Any]) -> None:
        """Take a piece of a tool call; its id is drawn, and says nothing of the prompt."""
        number = _number(call.get("index"))
        at = place if number is None else number
        function = _object(call.get("function"))
        name, arguments = self._calls.get(at, ("", ""))
        self._calls[at] = (
            name + _text(function.get("name")),
            arguments + _text(function.get("arguments")),
        )

    def _count(self, where: tuple[tuple[str, tuple[str, ...]], ...], value: object) -> None:
        for name, path in where:
            found: object = value
            for step in path:
                found = found.get(step) if isinstance(found, Mapping) else None
            number = _number(found)
            if number is not None:
                self._counters[name] = number


def _certain(tokens: Sequence[Token]) -> bool:
    """Whether logprobs tell nothing: there are none, or every choice is certain and all else out.

    The latter are those taken after temperature 0 was applied.
    """
    return all(
        token.logprob == 0
        and all(logprob < NEVER_NAT for text, logprob in token.top if text != token.text)
        for token in tokens
    )


def _token(shown: Mapping[str, Any]) -> Token | None:
    """Return a token as it was shown, None if it has no logprob."""
    logprob = _logprob(shown)
    if logprob is None:
        return None
    tops = [(str(one.get("token")), _logprob(one)) for one in _listed(shown.get("top_logprobs"))]
    top = tuple((text, value) for text, value in tops if value is not None)
    return Token(str(shown.get("token")), logprob, top)


def _logprob(shown: Mapping[str, Any]) -> float | None:
    value = shown.get("logprob")
    try:
        return float(value) if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return what a field says: a string, or a list of parts with text."""
    if isinstance(value, str):
        return value
    return "".join(_text(part.get("text")) for part in _listed(value))


def _json(text: str | bytes) -> Mapping[str, Any]:
    # Errors are cut when keys are hidden in them, and not before.
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"error": f"no JSON: {text!r}"}
    return value if isinstance(value, Mapping) else {"error": f"no object: {text!r}"}


def _number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None


def _retry_s(response: httpx.Response) -> float | None:
    """Return how long to wait if a refusal is for now only, else None."""
    if response.status_code not in BUSY:
        return None
    said = response.headers.get("retry-after", "")
    try:
        seconds = float(said)
    except ValueError:
        try:  # a date, which is told against the server's own
            now = parsedate_to_datetime(response.headers.get("date", ""))
            seconds = (parsedate_to_datetime(said) - now).total_seconds()
        except (ValueError, TypeError):
            return BUSY_WAIT_S
    return min(max(seconds, BUSY_WAIT_S), PATIENCE_S) if isfinite(seconds) else BUSY_WAIT_S


def _broke(reply: Reply) -> bool:
    """Whether a request failed in a way that may be an accident."""
    accident = reply.status in (0, 200) or (reply.status >= 500 and reply.status not in BUSY)
    return accident and reply.error not in (None, NEVER, ENDLESS)


def _spelled(key: str) -> set[str]:
    """Return a key as JSON, Python, HTML and URLs write it, once and inside each other."""
    marks = [letter for letter in dict.fromkeys(key) if not letter.isalnum()]
    forms = {key, html.escape(key), quote(key), quote(key, safe=""), quote_plus(key)}
    for entity in ("&#{:d};", "&#x{:x};", "&#x{:X};"):
        forms.add(key.translate({ord(mark): entity.format(ord(mark)) for mark in marks}))
    for _ in range(2):
        for form in tuple(forms):
            inside = json.dumps(form)[1:-1]
            forms |= {inside, inside.replace("/", "\\/"), repr(form)[1:-1]}
    return forms


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def must_answer(reply: Reply, url: str) -> Reply:
    """Return a reply that is a whole answer.

    Raises:
        CapacityError: none came, or the server is busy or failing.
        RequestError: the server refused the plainest request.
    """
    if reply.ok:
        return reply
    if reply.status in (0, 429) or reply.status >= 500 or reply.error in (NEVER, ENDLESS):
        raise CapacityError(f"{url} does not answer: {reply.error}")
    raise RequestError(f"{url} refused: {reply.error}")
