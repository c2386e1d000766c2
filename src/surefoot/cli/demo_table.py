"""The demo's table, printed row by row as answers come in."""

import json
from collections.abc import Sequence

from rich.console import Console

from surefoot.bench.demo import Row

COLUMNS = {  # heading -> width; the table fits 80 columns
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
LEFT = {"leg", "tier"}  # words stand left, figures right


class DemoTable:
    """Prints the legs of each call as they come, then a verdict."""

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

    def row(self, row: Row) -> None:
        """Print one answer."""
        if self._json:
            print(json.dumps(row.to_json()))
            return
        if not self._headed:
            self._line(list(COLUMNS), style="bold")
            self._headed = True
        receipt = row.answer.receipt
        cold = row.leg == "cold"
        figures = [
            str(row.call.conversation),
            str(row.call.number),
            row.leg,
            str(receipt["prompt_tokens"]),
            str(receipt["restored_tokens"]),
            row.answer.tier,
            f"{row.answer.ttft_s:.3f} s",
            "" if cold else f"{row.speed_up:.1f}x",
        ]
        bits = ["" if cold else "=" if equal else "DIFFERS" for equal in row.equal.values()]
        self._line([*figures, *bits], style="" if row.good else "bold red")

    def verdict(self, rows: Sequence[Row]) -> bool:
        """Print the sum and return whether every row was good."""
        bad = [row for row in rows if not row.good]
        warm = [row for row in rows if row.leg != "cold"]
        if self._json:
            print(json.dumps({"rows": len(rows), "bad": len(bad)}))
            return not bad
        if bad:
            why = "differ from cold, or restored nothing"
            self._console.print(f"\n[bold red]{len(bad)} of {len(rows)} rows {why}")
            return False
        self._console.print(
            f"\n{len(warm)} warm answers: text, logprobs and state_digest are equal to cold, "
            "bit for bit.",
            highlight=False,
        )
        for leg in ("ram", "ssd"):
            speed_ups = sorted(row.speed_up for row in warm if row.leg == leg)
            median = speed_ups[len(speed_ups) // 2]
            self._console.print(f"median speed-up of TTFT from {leg}: {median:.1f}x")
        return True

    def _line(self, cells: Sequence[str], *, style: str) -> None:
        padded = [
            cell.ljust(width) if name in LEFT else cell.rjust(width)
            for cell, (name, width) in zip(cells, COLUMNS.items(), strict=True)
        ]
        self._console.print(
            " ".join(padded).rstrip(), style=style, highlight=False, markup=False, soft_wrap=True
        )
