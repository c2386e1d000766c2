"""The demo's table, printed row by row as answers come in."""

import json
from collections.abc import Sequence

from rich.console import Console

from surefoot.bench.demo import Row

HEAD = ("conv", "call", "leg", "prompt", "restored", "tier", "TTFT", "speed-up", "bits")
WIDTHS = (4, 4, 4, 7, 8, 8, 8, 8, 30)


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
            self._line(HEAD, style="bold")
            self._headed = True
        receipt = row.answer.receipt
        self._line(
            (
                str(row.call.conversation),
                str(row.call.number),
                row.leg,
                str(receipt["prompt_tokens"]),
                str(receipt["restored_tokens"]),
                row.answer.tier,
                f"{row.answer.ttft_s:.3f} s",
                "" if row.leg == "cold" else f"{row.speed_up:.1f}x",
                _bits(row),
            ),
            style="" if row.good else "bold red",
        )

    def verdict(self, rows: Sequence[Row]) -> bool:
        """Print the sum and return whether every row was good."""
        bad = [row for row in rows if not row.good]
        warm = [row for row in rows if row.leg != "cold"]
        if self._json:
            print(json.dumps({"rows": len(rows), "bad": len(bad)}))
            return not bad
        if bad:
            self._console.print(f"\n[bold red]{len(bad)} of {len(rows)} rows are not equal to cold")
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
        # Text columns stand left, figures right.
        left = {2, 5, 8}
        padded = [
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
        ]
        self._console.print("  ".join(padded).rstrip(), style=style, highlight=False, markup=False)


def _bits(row: Row) -> str:
    if row.leg == "cold":
        return "reference"
    unequal = [name for name, equal in row.equal.items() if not equal]
    if unequal:
        return "DIFFERS: " + ", ".join(unequal)
    if not row.good:
        return "NOTHING RESTORED"
    return "text = logprobs = state ="
