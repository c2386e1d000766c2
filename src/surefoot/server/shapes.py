"""Events to the bodies and chunks of the two endpoints, in OpenAI's shapes.

The receipt is the field ``surefoot``: of a plain body, and of a stream's last chunk, which is the
usage chunk where one was asked for and the chunk with ``finish_reason`` otherwise.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from surefoot.errors import CapacityError, EngineError, SurefootError
from surefoot.receipt import Finish
from surefoot.scheduler import Delta, Done, TokenText
from surefoot.server.reading import Asked

LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI's stand-in for it
_FINISHED = {
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.TOOL_CALLS: "tool_calls",
}


def unfinished(done: Done) -> SurefootError | None:
    """Return the error that a turn amounts to which ended before its answer did."""
    match done.receipt.finish:
        case Finish.CANCELLED:
            return CapacityError("the turn was cancelled before its answer ended")
        case Finish.ERROR:
            return EngineError("the turn failed before its answer ended")
        case _:
            return None


class Shape(ABC):
    """One answer of one endpoint."""

    object: str
    chunk_object: str

    def __init__(self, asked: Asked, model: str, created: int) -> None:
        self._asked = asked
        self._head = {"id": asked.turn.id, "created": created, "model": model}
        self._logprobs = asked.turn.sampling.top_logprobs is not None

    def body(self, deltas: Iterable[Delta], done: Done) -> dict[str, Any]:
        """Return the plain body."""
        listed = list(deltas)
        text = self._asked.echo + "".join(delta.text for delta in listed)
        tokens = [token for delta in listed for token in delta.tokens]
        choice = {
            **self._message(text),
            "index": 0,
            "logprobs": self._shown(tokens) if self._logprobs else None,
            "finish_reason": _FINISHED[done.receipt.finish],
        }
        return {
            **self._head,
            "object": self.object,
            "choices": [choice],
            "usage": usage(done),
            "surefoot": done.receipt.to_json(),
        }

    def begin(self) -> Iterator[dict[str, Any]]:
        """Yield what a stream begins with."""
        yield from self._opening()

    def delta(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the chunk of a delta; none if there is nothing to show."""
        shown = self._shown(delta.tokens) if self._logprobs and delta.tokens else None
        if delta.text or shown:
            yield self._chunk(self._piece(delta.text), logprobs=shown)

    def end(self, done: Done) -> Iterator[dict[str, Any]]:
        """Yield a stream's last chunks; the very last carries the receipt."""
        last = self._chunk(self._piece(None), finish=_FINISHED[done.receipt.finish])
        if self._asked.usage_chunk:
            yield last
            last = {**last, "choices": [], "usage": usage(done)}
        yield {**last, "surefoot": done.receipt.to_json()}

    def _chunk(
        self, piece: dict[str, Any], *, logprobs: Any = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice = {**piece, "index": 0, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._head, "object": self.chunk_object, "choices": [choice]}
        return {**chunk, "usage": None} if self._asked.usage_chunk else chunk

    @abstractmethod
    def _message(self, text: str) -> dict[str, Any]:
        """Return a plain choice's text."""

    @abstractmethod
    def _piece(self, text: str | None) -> dict[str, Any]:
        """Return a chunk's text; None where the answer has ended."""

    @abstractmethod
    def _opening(self) -> Iterator[dict[str, Any]]:
        """Yield what comes before the first text."""

    @abstractmethod
    def _shown(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        """Return log-probabilities."""


class ChatShape(Shape):
    """``/v1/chat/completions``."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _piece(self, text: str | None) -> dict[str, Any]:
        return {"delta": {} if text is None else {"content": text}}

    def _opening(self) -> Iterator[dict[str, Any]]:
        yield self._chunk({"delta": {"role": "assistant", "content": ""}})

    def _shown(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}


class TextShape(Shape):
    """``/v1/completions``."""

    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, asked: Asked, model: str, created: int) -> None:
        super().__init__(asked, model, created)
        self._offset = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def _message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _piece(self, text: str | None) -> dict[str, Any]:
        return {"text": text or ""}

    def _opening(self) -> Iterator[dict[str, Any]]:
        if self._asked.echo:
            yield self._chunk(self._piece(self._asked.echo))

    def _shown(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(token.raw))
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [_top(token) for token in tokens],
            "text_offset": offsets,
        }


def usage(done: Done) -> dict[str, Any]:
    """Return the token counts, from the receipt."""
    receipt = done.receipt
    return {
        "prompt_tokens": receipt.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": receipt.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": receipt.restored_tokens},
    }


def _chat_logprob(token: TokenText) -> dict[str, Any]:
    return {
        **_token(token.text, token.raw, token.logprob),
        "top_logprobs": [_token(*one) for one in token.top],
    }


def _token(text: str, raw: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": _finite(logprob), "bytes": list(raw)}


def _top(token: TokenText) -> dict[str, float | None]:
    """Return the likeliest tokens by text, the chosen one always among them."""
    top: dict[str, float | None] = {}
    for text, _, logprob in token.top:
        # Halves of characters read alike; the likeliest keeps the name.
        top.setdefault(text, _finite(logprob))
    top.setdefault(token.text, _finite(token.logprob))
    return top


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST_LOGPROB)
