"""The verdicts, what supports them, and the report of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a leg ended; the first of these that any leg has is the run's, ``SKIPPED`` apart."""

    CONTAMINATED = "CONTAMINATED"  # content that only another request had decided the answer
    WRONG = "WRONG"  # the warm path fails what the cold path does every time
    DRIFT = "DRIFT"  # warm and cold differ within the server's own noise
    INCONCLUSIVE = "INCONCLUSIVE"  # nothing was proven; the reason says what would settle it
    CLEAN = "CLEAN"  # reuse was proven, and the answers equal their references
    SKIPPED = "SKIPPED"  # the leg does not apply to this server


@dataclass(frozen=True, slots=True)
class Shown:
    """One exchange as a report shows it: what was sent, and what came back."""

    label: str
    request: Mapping[str, Any]
    answer: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "label": self.label,
            "request": dict(self.request),
            "answer": self.answer,
            **self.facts,
        }


@dataclass(frozen=True, slots=True)
class Evidence:
    """One finding in a sentence, and the exchanges that prove it, the accused one first."""

    verdict: Verdict
    says: str
    shown: tuple[Shown, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "verdict": self.verdict.value,
            "says": self.says,
            "exchanges": [one.to_json() for one in self.shown],
        }


@dataclass(frozen=True, slots=True)
class Reuse:
    """Which witnesses showed that state was reused, and how many tokens a counter named at most."""

    shown_by: tuple[str, ...] = ()
    tokens: int | None = None


NO_REUSE = Reuse()


@dataclass(frozen=True, slots=True)
class LegReport:
    """How one leg ended; ``exchanges`` is everything it sent, in order."""

    name: str
    title: str
    verdict: Verdict
    reason: str
    reuse: Reuse = NO_REUSE
    evidence: tuple[Evidence, ...] = ()
    exchanges: tuple[Shown, ...] = ()
    tokens: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the leg as ``--json`` prints it; all exchanges are for the page only."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "reuse": {"shown_by": list(self.reuse.shown_by), "tokens": self.reuse.tokens},
            "evidence": [one.to_json() for one in self.evidence],
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """A whole run."""

    server: str
    model: str
    seed: int
    legs: tuple[LegReport, ...]
    facts: tuple[tuple[str, str], ...]  # what was learned of the server, as label and words
    tokens: int
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The run's verdict: the worst of its legs; CLEAN only if one was and none was worse."""
        return overall(leg.verdict for leg in self.legs)

    def to_json(self) -> dict[str, Any]:
        """Return the one object of ``--json``."""
        return {
            "verdict": self.verdict.value,
            "server": self.server,
            "model": self.model,
            "seed": self.seed,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "facts": dict(self.facts),
            "legs": [leg.to_json() for leg in self.legs],
        }


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict; INCONCLUSIVE where no leg applied."""
    seen = set(verdicts) - {Verdict.SKIPPED}
    return next((one for one in Verdict if one in seen), Verdict.INCONCLUSIVE)


EXIT_CODES: dict[Verdict, int] = {
    Verdict.CONTAMINATED: 1,
    Verdict.WRONG: 1,
    Verdict.DRIFT: 3,
    Verdict.INCONCLUSIVE: 4,
    Verdict.CLEAN: 0,
}
