"""Recorded agent conversations as requests: one per assistant message, with all messages before it.

Tool calls and their results are written as text, because a chat template that does not render them
would drop them in silence (and a server that noticed would refuse the request).
"""

import gzip
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

EXCERPT = "tau_bench_airline_excerpt.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Call:
    """One model call of a recorded conversation; both numbers count from 1."""

    conversation: int
    number: int
    messages: list[dict[str, str]]


def recorded_calls(*, calls: int | None) -> list[Call]:
    """Return the packaged conversations' calls, conversation by conversation.

    Args:
        calls: at most this many of each conversation; None for all.
    """
    packed = files("surefoot.bench").joinpath("data", EXCERPT).read_bytes()
    lines = gzip.decompress(packed).decode("utf-8").splitlines()
    found = []
    for conversation, line in enumerate(lines, start=1):
        messages = json.loads(line)["messages"]
        written = [_as_text(message) for message in messages]
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        for number, at in enumerate(answers[:calls], start=1):
            found.append(Call(conversation, number, written[:at]))
    return found


def _as_text(message: dict[str, Any]) -> dict[str, str]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"[result of {message['name']}]\n{content}"}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        content += f"\n[call {function['name']}] {function['arguments']}"
    return {"role": message["role"], "content": content.strip()}
