"""The main job on real input: every call cold, warm from RAM, and warm from SSD after a restart.

One server computes each call cold and stores it (``x-surefoot-cache: write``), then answers it
again from RAM (``read``). It is stopped; a second process, with no room in RAM, answers every call
from the SSD. Text, log-probabilities and the state's digest must be equal bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.bench.client import Answer, Client
from surefoot.bench.process import ServerProcess
from surefoot.bench.replay import Call

ANSWER_TOKENS = 4  # three legs of fifteen calls in two minutes on two cores
TOP_LOGPROBS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of one call, beside its cold answer."""

    call: Call
    leg: str
    answer: Answer
    cold: Answer

    @property
    def equal(self) -> dict[str, bool]:
        """What is equal to the cold answer, bit for bit."""
        return {
            "text": self.answer.text == self.cold.text,
            "logprobs": self.answer.logprobs == self.cold.logprobs,
            "state_digest": self.answer.receipt["state_digest"] == self.cold.receipt["state_digest"]
            and self.answer.receipt["state_digest"] is not None,
        }

    @property
    def good(self) -> bool:
        """Whether this row keeps the promise; a warm row must have restored something."""
        warm = self.leg != "cold"
        return all(self.equal.values()) and (not warm or self.answer.receipt["restored_tokens"] > 0)

    @property
    def speed_up(self) -> float:
        """Cold TTFT over this TTFT."""
        return self.cold.ttft_s / self.answer.ttft_s

    def to_json(self) -> dict[str, Any]:
        """Return the row for scripts."""
        receipt = self.answer.receipt
        return {
            "conversation": self.call.conversation,
            "call": self.call.number,
            "leg": self.leg,
            "prompt_tokens": receipt["prompt_tokens"],
            "restored_tokens": receipt["restored_tokens"],
            "tier": self.answer.tier,
            "ttft_s": round(self.answer.ttft_s, 4),
            "speed_up": round(self.speed_up, 2),
            "equal": self.equal,
            "receipt": receipt,
        }


def run_demo(
    model: str,
    calls: Sequence[Call],
    folder: Path,
    *,
    on_process: Callable[[str, int], None],
    on_row: Callable[[Row], None],
) -> list[Row]:
    """Replay ``calls`` against servers of this installation; ``folder`` is an empty one to use.

    Raises:
        EngineError: a server did not start or did not answer.
    """
    rows: list[Row] = []
    cold: list[Answer] = []

    def keep(row: Row) -> None:
        rows.append(row)
        on_row(row)

    flags = ["--store", str(folder / "store"), "--idle", "0"]
    with ServerProcess(model, folder / "first.log", flags) as server:
        on_process("cold and RAM", server.pid)
        for call in calls:
            answer = _ask(server.client, model, call, mode="write")
            cold.append(answer)
            keep(Row(call, "cold", answer, answer))
            keep(Row(call, "ram", _ask(server.client, model, call, mode="read"), answer))
        server.client.wait_written()
    with ServerProcess(model, folder / "second.log", [*flags, "--ram-bytes", "0"]) as server:
        on_process("SSD after a restart", server.pid)
        for call, answer in zip(calls, cold, strict=True):
            keep(Row(call, "ssd", _ask(server.client, model, call, mode="read"), answer))
    return rows


def _ask(client: Client, model: str, call: Call, *, mode: str) -> Answer:
    body = {
        "model": model,
        "messages": call.messages,
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "logprobs": True,
        "top_logprobs": TOP_LOGPROBS,
    }
    return client.ask(body, mode=mode)
