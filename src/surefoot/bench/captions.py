"""A captioning script seen from outside: many pictures under one prompt, one after the other."""

import time
from typing import Any

from surefoot import pictures
from surefoot.bench.client import Client
from surefoot.bench.process import ServerProcess
from surefoot.bench.tables import Bench, Table

MODEL = "spark"
PICTURES = 300
PROMPT_TOKENS = 600
SPEED_UP_TARGET = 1.5
DISTINCT = 2_000
FEATURE_RAM_BYTES, FEATURE_SSD_BYTES = 500_000, 4_000_000
QUESTION = "One word: what color?"
SENTENCE = "The picture comes first and the question comes after it. Answer in one word. "


def captions(bench: Bench) -> Table:
    """Measure distinct pictures under one long prompt: with the cache, and with ``bypass``."""
    spent = {"use": 0.0, "bypass": 0.0}
    with ServerProcess(
        MODEL, bench.folder / "server.log", ["--store", str(bench.folder / "store"), "--idle", "0"]
    ) as server:
        lead, tokens = _lead(server.client)
        bench.say(f"prompts of {tokens} tokens")
        for number in range(PICTURES):
            # The order alternates, so that neither is always the one that comes second.
            modes = ("use", "bypass") if number % 2 else ("bypass", "use")
            asked = [lead, _about(number)]
            answers = []
            for mode in modes:
                answer = server.client.ask(_body(asked), mode=mode)
                spent[mode] += answer.total_s
                answers.append(answer.bits)
            assert answers[0] == answers[1], f"picture {number}: the two answers differ"
    rates = {mode: PICTURES / took for mode, took in spent.items()}
    ratio = rates["use"] / rates["bypass"]
    return Table(
        f"{PICTURES} distinct pictures under one prompt of {tokens} tokens ({MODEL})",
        ("with the cache", "bypass", "ratio"),
        ((f"{rates['use']:.1f} images/s", f"{rates['bypass']:.1f} images/s", f"{ratio:.2f}x"),),
        ((f"at least {SPEED_UP_TARGET:g}x", ratio >= SPEED_UP_TARGET),),
    )


def features(bench: Bench) -> Table:
    """Watch the bytes of stored features over many distinct pictures with small budgets."""
    flags = ["--store", str(bench.folder / "store"), "--idle", "0"]
    flags += ["--feature-ram-bytes", str(FEATURE_RAM_BYTES)]
    flags += ["--feature-ssd-bytes", str(FEATURE_SSD_BYTES)]
    most = {"ram": 0, "ssd": 0}
    started = time.monotonic()
    with ServerProcess(MODEL, bench.folder / "server.log", flags) as server:
        for number in range(DISTINCT):
            server.client.ask(_body([_about(number)]))
            status = server.client.wait("a status", lambda _: True, timeout_s=5)
            for tier, held in status["features"].items():
                most[tier] = max(most[tier], held["bytes"])
        server.client.wait_written()
    bench.say(f"{DISTINCT} pictures in {time.monotonic() - started:.0f} s")
    budgets = {"ram": FEATURE_RAM_BYTES, "ssd": FEATURE_SSD_BYTES}
    return Table(
        f"Bytes of features over {DISTINCT:,} distinct pictures ({MODEL})",
        ("tier", "most at any time", "budget"),
        tuple((tier, f"{most[tier]:,}", f"{budgets[tier]:,}") for tier in budgets),
        tuple((f"{tier} inside its budget", 0 < most[tier] <= budgets[tier]) for tier in budgets),
    )


def _lead(client: Client) -> tuple[dict[str, Any], int]:
    """Return a system message that makes a prompt of about ``PROMPT_TOKENS``, and its length."""
    text = "Describe pictures. "
    while True:
        lead = {"role": "system", "content": text}
        receipt = client.ask(_body([lead, _about(0)]), mode="bypass").receipt
        if receipt["prompt_tokens"] >= PROMPT_TOKENS:
            return lead, receipt["prompt_tokens"]
        text += SENTENCE


def _about(number: int) -> dict[str, Any]:
    colours = list(pictures.COLOURS.values())
    picture = pictures.speckled(colours[number % len(colours)], number)
    return pictures.user(pictures.shown(picture), pictures.said(QUESTION))


def _body(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": messages,
        "temperature": 0,
        "max_tokens": 4,
        "logprobs": True,
    }
