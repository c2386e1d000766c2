"""The benchmark tables by name, and how they are printed.

Every figure is measured in one run on one machine; ratios and medians are what to quote. The load
the machine was under is printed with the tables.
"""

import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from surefoot.errors import SetupError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """What a table is measured with: an empty folder, where models are kept, who listens."""

    folder: Path
    models: Path
    say: Say


@dataclass(frozen=True, slots=True)
class Table:
    """One printed table; ``targets`` says what each figure must reach and whether it did."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    targets: tuple[tuple[str, bool], ...] = field(default=())

    def lines(self) -> list[str]:
        """Return the table in Markdown."""
        head = "| " + " | ".join(self.columns) + " |"
        rule = "|" + "---|" * len(self.columns)
        rows = ["| " + " | ".join(row) + " |" for row in self.rows]
        targets = [f"- {'reached' if met else 'MISSED'}: {text}" for text, met in self.targets]
        return [f"### {self.title}", "", head, rule, *rows, "", *targets]


def run_tables(name: str, *, models: Path, wait_policy: str, say: Say) -> list[dict[str, Any]]:
    """Run the tables called ``name`` (or all), say their lines, and return them as JSON values.

    Args:
        name: a table's name, or ``all``.
        models: the folder where expanded models are kept.
        wait_policy: what OMP_WAIT_POLICY is, for the line that says how this was measured.
        say: called with each line.

    Raises:
        SetupError: there is no such table.
    """
    from surefoot.bench import captions, image_costs, rooms, storage, ttft  # noqa: PLC0415  rooms imports torch

    every: dict[str, Callable[[Bench], Table]] = {
        "names": rooms.names,
        "plan": rooms.plan,
        "overhead": rooms.overhead,
        "decode": rooms.decode,
        "verification": rooms.verification,
        "ttft": ttft.by_length,
        "blocks": ttft.by_block_tokens,
        "storage": storage.shared_prefixes,
        "rebuild": storage.rebuild,
        "captions": captions.captions,
        "features": captions.features,
        "image": image_costs.image_costs,
    }
    if name != "all" and name not in every:
        raise SetupError(f"there is no benchmark {name!r}: choose all or one of {', '.join(every)}")
    say(load_line(wait_policy))
    results = []
    for title, measure in every.items():
        if name in ("all", title):
            with tempfile.TemporaryDirectory(prefix="surefoot-bench-") as folder:
                table = measure(Bench(Path(folder), models, lambda line: say(f"  {line}")))
            say("")
            for line in table.lines():
                say(line)
            results.append(asdict(table))
    return results


def load_line(wait_policy: str) -> str:
    """Say what machine this is and what else it was doing."""
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load averages {load}, OMP_WAIT_POLICY={wait_policy}"
    )


def median(values: Sequence[float]) -> float:
    """Return the middle value; the lower one of two."""
    return sorted(values)[(len(values) - 1) // 2]
