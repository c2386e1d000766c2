"""Pictures under one prompt: each must get its own answer, cold, from RAM and from SSD.

One server without any cache answers every request: those are the references. A second one, with a
cache, answers the same requests in the same order, twice; a third process, on the second one's
store and with no room in RAM, answers them once more. Every answer must equal its reference in
text, log-probabilities and state, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot import pictures
from surefoot.bench.client import Answer, Client
from surefoot.bench.process import ServerProcess

ANSWER_TOKENS = 12
TOP_LOGPROBS = 5
ONE_WORD = "One word: what color?"
# Each turn's question, and the answer that the next turn's history holds whatever was said.
PHOTO_TURNS = (
    ("What shape is this?", "Circle"),
    ("What color is the shape?", "Red"),
    ("What color is the background?", "Blue"),
)
SYSTEM = "You are a helpful assistant."
BYTES = bytes((value * 7) % 256 for value in range(6 * 4 * 3))


@dataclass(frozen=True, slots=True)
class Look:
    """One request: which scene it belongs to, what is looked at, and the messages."""

    scene: str
    what: str
    messages: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class LookRow:
    """One answer, beside its reference; ``leg`` is cold, first, ram or ssd."""

    look: Look
    leg: str
    answer: Answer
    reference: Answer

    @property
    def equal(self) -> dict[str, bool]:
        """What is equal to the reference, bit for bit."""
        return {
            "text": self.answer.text == self.reference.text,
            "logprobs": self.answer.logprobs == self.reference.logprobs,
            "state_digest": self.answer.receipt["state_digest"]
            == self.reference.receipt["state_digest"],
        }

    @property
    def towers(self) -> str:
        """For how many of the request's images the vision tower ran."""
        ran = [not one["feature_hit"] for one in self.answer.receipt["media"]]
        return f"{sum(ran)}/{len(ran)}"

    @property
    def good(self) -> bool:
        """Whether this row keeps the promise; one that was asked before must have restored."""
        again = self.leg in ("ram", "ssd")
        receipt = self.answer.receipt
        reused = receipt["restored_tokens"] > 0 and all(
            one["feature_hit"] for one in receipt["media"]
        )
        return all(self.equal.values()) and (reused or not again)

    def to_json(self) -> dict[str, Any]:
        """Return the row for scripts."""
        receipt = self.answer.receipt
        return {
            "scene": self.look.scene,
            "what": self.look.what,
            "leg": self.leg,
            "answer": self.answer.text,
            "prompt_tokens": receipt["prompt_tokens"],
            "restored_tokens": receipt["restored_tokens"],
            "tier": self.answer.tier,
            "ttft_s": round(self.answer.ttft_s, 4),
            "equal": self.equal,
            "receipt": receipt,
        }


def questions() -> list[str]:
    """Return what is asked of each scene's pictures, in words."""
    asked = ", then ".join(f"{question!r}" for question, _ in PHOTO_TURNS)
    return [
        f"one prompt: {ONE_WORD!r} about pictures of one colour",
        f"same bytes: {ONE_WORD!r} about 72 bytes, read as 6x4 and as 4x6 pixels",
        f"photo:      a red disc on a lit blue sky, drawn with grain: {asked}",
    ]


def looks() -> list[Look]:
    """Return the demo's requests, in the order they are sent."""
    return [*_colours(), *_same_bytes(), *_photo()]


def run_image_demo(
    model: str,
    folder: Path,
    *,
    on_process: Callable[[str, int], None],
    on_row: Callable[[LookRow], None],
) -> list[LookRow]:
    """Send every look to servers of this installation; ``folder`` is an empty one to use.

    Raises:
        EngineError: a server did not start or did not answer.
        SetupError: the model takes no images.
    """
    rows: list[LookRow] = []

    def keep(row: LookRow) -> None:
        rows.append(row)
        on_row(row)

    asked = looks()
    flags = ["--store", str(folder / "store"), "--idle", "0"]
    with ServerProcess(model, folder / "reference.log", ["--store", "off"]) as server:
        on_process("no cache: what each answer must be", server.pid)
        references = [_ask(server.client, model, look, mode="bypass") for look in asked]
        for look, answer in zip(asked, references, strict=True):
            keep(LookRow(look, "cold", answer, answer))
    with ServerProcess(model, folder / "first.log", flags) as server:
        on_process("each for the first time, then again from RAM", server.pid)
        for leg in ("first", "ram"):
            for row in _leg(server.client, model, leg, asked, references):
                keep(row)
        server.client.wait_written()
    with ServerProcess(
        model, folder / "second.log", [*flags, "--ram-bytes", "0", "--feature-ram-bytes", "0"]
    ) as server:
        on_process("from SSD after a restart", server.pid)
        for row in _leg(server.client, model, "ssd", asked, references):
            keep(row)
    return rows


def _leg(
    client: Client,
    model: str,
    leg: str,
    asked: Sequence[Look],
    references: Sequence[Answer],
) -> Iterator[LookRow]:
    # What is asked again only reads, so that a request proves nothing about the one before it.
    mode = "use" if leg == "first" else "read"
    for look, reference in zip(asked, references, strict=True):
        yield LookRow(look, leg, _ask(client, model, look, mode=mode), reference)


def _ask(client: Client, model: str, look: Look, *, mode: str) -> Answer:
    body = {
        "model": model,
        "messages": look.messages,
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "logprobs": True,
        "top_logprobs": TOP_LOGPROBS,
    }
    return client.ask(body, mode=mode)


def _colours() -> list[Look]:
    return [
        Look("one prompt", colour, _about(pictures.solid(pictures.COLOURS[colour]), ONE_WORD))
        for colour in ("red", "blue", "green", "red")
    ]


def _same_bytes() -> list[Look]:
    return [
        Look(
            "same bytes",
            f"{width}x{height}",
            _about(pictures.raw(BYTES, width, height), ONE_WORD),
        )
        for width, height in ((6, 4), (4, 6))
    ]


def _photo() -> list[Look]:
    picture = pictures.photo()
    found = []
    messages: list[dict[str, Any]] = []
    for number, (question, answer) in enumerate(PHOTO_TURNS, start=1):
        asked = (
            _about(picture, question)
            if number == 1
            else [*messages, {"role": "user", "content": question}]
        )
        found.append(Look("photo", f"turn {number}", asked))
        messages = [*asked, {"role": "assistant", "content": answer}]
    return found


def _about(picture: bytes, question: str) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": SYSTEM},
        pictures.user(pictures.shown(picture), pictures.said(question)),
    ]
