"""The demos' tables, printed row by row as answers come in, and their verdicts."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rich.console import Console

from surefoot.bench.demo import Row
from surefoot.bench.demo_images import LookRow

EQUAL, DIFFERS = "=", "DIFFERS"
_ALL_EQUAL = "text, logprobs and state_digest are equal to cold, bit for bit."


class Judged(Protocol):
    """One answer of a demo, beside the one it must equal."""

    @property
    def leg(self) -> str:
        """Where the answer came from; ``cold`` is the reference itself."""
        ...

    @property
    def equal(self) -> dict[str, bool]:
        """What is equal to the reference."""
        ...

    @property
    def good(self) -> bool:
        """Whether the row keeps the promise."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the row for scripts."""
        ...


JudgedRow = TypeVar("JudgedRow", bound=Judged)


class LegTable(ABC, Generic[JudgedRow]):
    """Prints a demo's rows under headings, process by process."""

    columns: ClassVar[Mapping[str, int]]  # heading -> width; the table fits 80 columns
    left: ClassVar[frozenset[str]]  # words stand left, figures right

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self._json = as_json
        self._headed = False

    def process(self, what: str, pid: int) -> None:
        """Name a server process."""
        if self._json:
            print(json.dumps({"process": what, "pid": pid}))
            return
        self._console.print(f"\nserver process [bold]{pid}[/]: {what}", highlight=False)
        self._headed = False

    def row(self, row: JudgedRow) -> None:
        """Print one answer."""
        if self._json:
            print(json.dumps(row.to_json()))
            return
        if not self._headed:
            self._line(list(self.columns), style="bold")
            self._headed = True
        self._line([*self._cells(row), *self._bits(row)], style="" if row.good else "bold red")

    def verdict(self, rows: Sequence[JudgedRow]) -> bool:
        """Print the sum and return whether every row was good."""
        bad = [row for row in rows if not row.good]
        if self._json:
            print(json.dumps({"rows": len(rows), "bad": len(bad)}))
            return not bad
        if bad:
            why = "differ from cold, or restored nothing"
            self._console.print(f"\n[bold red]{len(bad)} of {len(rows)} rows {why}")
            return False
        for line in self._closing(rows):
            self._console.print(line, highlight=False)
        return True

    @abstractmethod
    def _cells(self, row: JudgedRow) -> list[str]:
        """Return a row's cells before those for equal bits."""

    def _bits(self, row: JudgedRow) -> list[str]:
        """Return a row's cells that say what is equal to the reference."""
        if row.leg == "cold":
            return [""] * len(row.equal)
        return [EQUAL if equal else DIFFERS for equal in row.equal.values()]

    @abstractmethod
    def _closing(self, rows: Sequence[JudgedRow]) -> list[str]:
        """Return what is said below a table without a bad row."""

    def _line(self, cells: Sequence[str], *, style: str) -> None:
        padded = [
            cell[:width].ljust(width) if name in self.left else cell.rjust(width)
            for cell, (name, width) in zip(cells, self.columns.items(), strict=True)
        ]
        self._console.print(
            " ".join(padded).rstrip(), style=style, highlight=False, markup=False, soft_wrap=True
        )


class DemoTable(LegTable[Row]):
    """The legs of each call of a recorded conversation."""

    columns: ClassVar[Mapping[str, int]] = {
        "conv": 4,
        "call": 4,
        "leg": 4,
        "prompt": 6,
        "restored": 8,
        "tier": 7,
        "TTFT": 8,
        "speed-up": 8,
        "text": 4,
        "logprobs": 8,
        "state": 5,
    }
    left = frozenset({"leg", "tier"})

    def _cells(self, row: Row) -> list[str]:
        receipt = row.answer.receipt
        return [
            str(row.call.conversation),
            str(row.call.number),
            row.leg,
            str(receipt["prompt_tokens"]),
            str(receipt["restored_tokens"]),
            row.answer.tier,
            f"{row.answer.ttft_s:.3f} s",
            "" if row.leg == "cold" else f"{row.speed_up:.1f}x",
        ]

    def _closing(self, rows: Sequence[Row]) -> list[str]:
        warm = sum(row.leg != "cold" for row in rows)
        lines = ["", f"{warm} warm answers: {_ALL_EQUAL}"]
        for leg in ("ram", "ssd"):
            speed_ups = sorted(row.speed_up for row in rows if row.leg == leg)
            median = speed_ups[len(speed_ups) // 2]
            lines.append(f"median speed-up of TTFT from {leg}: {median:.1f}x")
        return lines


class ImageTable(LegTable[LookRow]):
    """The legs of each look at a picture; ``tower`` is for how many images the tower ran."""

    columns: ClassVar[Mapping[str, int]] = {
        "scene": 10,
        "picture": 7,
        "leg": 5,
        "answer": 8,
        "prompt": 6,
        "restored": 8,
        "tier": 4,
        "tower": 5,
        "TTFT": 8,
        "bits": 7,
    }
    left = frozenset({"scene", "picture", "leg", "answer", "tier"})

    def begin(self, questions: Sequence[str]) -> None:
        """Say what is asked, before the first process."""
        for line in () if self._json else questions:
            self._console.print(line, highlight=False, markup=False)

    def _cells(self, row: LookRow) -> list[str]:
        receipt = row.answer.receipt
        return [
            row.look.scene,
            row.look.what,
            row.leg,
            row.answer.text,
            str(receipt["prompt_tokens"]),
            str(receipt["restored_tokens"]),
            row.answer.tier,
            row.towers,
            f"{row.answer.ttft_s * 1000:.0f} ms",
        ]

    def _bits(self, row: LookRow) -> list[str]:
        if row.leg == "cold":
            return [""]
        return [EQUAL if all(row.equal.values()) else DIFFERS]

    def _closing(self, rows: Sequence[LookRow]) -> list[str]:
        first = sum(row.leg == "first" for row in rows)
        again = sum(row.leg in ("ram", "ssd") for row in rows)
        return [
            "",
            f"{first} first and {again} warm answers: {_ALL_EQUAL}",
            f"the vision tower ran for none of the {again} that were asked again.",
        ]
