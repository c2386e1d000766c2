"""Writes the measured tables into ``CARD.md``, between its markers, so that no number is typed."""

import json
from pathlib import Path
from typing import Any

from models.spark.evaluate import HERE, RESULTS

CARD = HERE / "CARD.md"
HEAD = "| task | right | share | 95 % interval | target |\n|---|---|---|---|---|"


def write_card(results_path: Path = RESULTS, card: Path = CARD) -> None:
    """Replace both tables of the card by what the evaluation found."""
    results = json.loads(results_path.read_text())
    card.write_text(with_tables(card.read_text(), results))


def with_tables(text: str, results: dict[str, Any]) -> str:
    """Return the card's text with these results in its tables."""
    for place, apart in (("same generators", False), ("apart", True)):
        rows = [_row(row) for row in results["rows"] if row["apart"] is apart]
        table = "\n".join((HEAD, *rows))
        start, end = f"<!-- {place}: begin -->", f"<!-- {place}: end -->"
        assert text.count(start) == text.count(end) == 1, f"the card has no place for {place}"
        before, rest = text.split(start)
        text = f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}"
    return text


def _row(row: dict[str, Any]) -> str:
    share = row["right"] / row["samples"]
    target = "" if row["target"] is None else f"{row['target']:.0%}"
    interval = f"{row['low']:.1%} to {row['high']:.1%}"
    return (
        f"| {row['task']} | {row['right']}/{row['samples']} | {share:.1%} | {interval} | {target} |"
    )
