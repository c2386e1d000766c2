"""What the probe found, kept a file for each peer, and the tables made of it."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peers.servers import Peer

NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Result:
    """One run: who was probed, and the probe's own object."""

    server: str
    version: str
    weights: str
    exit_code: int
    probe: dict[str, Any]


def results_folder(home: Path) -> Path:
    """Return where results and reports lie."""
    return home / "results"


def keep(peer: Peer, home: Path, exit_code: int, stdout: str) -> Result:
    """Write down what the probe printed, beside who was probed.

    Raises:
        ValueError: it printed no JSON object.
    """
    result = Result(peer.server, peer.version, peer.weights, exit_code, json.loads(stdout))
    path = results_folder(home) / f"{peer.name}.json"
    path.write_text(
        json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return result


def kept(home: Path, names: Iterable[str]) -> list[Result]:
    """Return the results there are, in the order of ``names``."""
    paths = (results_folder(home) / f"{name}.json" for name in names)
    return [
        Result(**json.loads(path.read_text(encoding="utf-8"))) for path in paths if path.exists()
    ]


def summary_table(results: Sequence[Result]) -> str:
    """Return a row for each server: what it is, how its legs ended, what that took."""
    rows = [
        (
            one.server,
            one.version,
            one.weights,
            one.probe["verdict"],
            _counted(one.probe["legs"]),
            f"{one.probe['tokens']:,}",
            f"{one.probe['seconds'] / 60:.1f}",
        )
        for one in results
    ]
    head = ("Server", "Version", "Weights", "Verdict", "Legs", "Tokens", "Minutes")
    return _markdown(head, rows)


def legs_table(results: Sequence[Result]) -> str:
    """Return a row for each leg, and its verdict on each server."""
    names = dict.fromkeys(leg["name"] for one in results for leg in one.probe["legs"])
    verdicts = [{leg["name"]: leg["verdict"] for leg in one.probe["legs"]} for one in results]
    rows = [(name, *(found.get(name, NOT_RUN) for found in verdicts)) for name in names]
    return _markdown(("Leg", *(one.server for one in results)), rows)


def reasons(results: Sequence[Result]) -> str:
    """Return why each leg that ran is not CLEAN, a line each."""
    lines = [
        f"- {one.server}, {leg['name']}: {leg['verdict']}: {leg['reason']}"
        for one in results
        for leg in one.probe["legs"]
        if leg["verdict"] not in ("CLEAN", "SKIPPED")
    ]
    return "\n".join(lines)


def _counted(legs: Sequence[dict[str, Any]]) -> str:
    counts = Counter(leg["verdict"] for leg in legs)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
