"""What ``surefoot probe`` prints: progress while it runs, then the legs and what they found.

A server's words are untrusted, on a terminal too: whatever is no plain character is printed as an
escape, so that no answer can move the cursor or colour a line.
"""

from collections.abc import Iterable, Mapping
from textwrap import wrap

from rich.console import Console
from rich.status import Status
from rich.text import Text

from surefoot.probe.legs import Leg
from surefoot.probe.telling import (
    MEANINGS,
    excerpt,
    facts_words,
    fields_of,
    reuse_words,
    said_in,
    second_title,
    words_that_matter,
)
from surefoot.probe.trail import Seen
from surefoot.probe.verdicts import Evidence, LegReport, ProbeReport, Shown, Verdict

STYLES: Mapping[Verdict, str] = {
    Verdict.CONTAMINATED: "bold red",
    Verdict.WRONG: "bold red",
    Verdict.DRIFT: "bold yellow",
    Verdict.INCONCLUSIVE: "bold blue",
    Verdict.CLEAN: "bold green",
    Verdict.SKIPPED: "dim",
}
VERDICT_WIDE = max(map(len, Verdict))
TOKENS_WIDE = 8
SIDE = 12  # characters of the words that stand left of a request's text
NARROW = 60  # the table needs so many characters


class ProbeTable:
    """Prints one run.

    Args:
        console: where to; on a terminal the leg at work is shown in a line that changes.
        names: of the legs that will run, for the width of their column.
    """

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        self._console = console
        self._leg_wide = max(map(len, names), default=0)
        self._status: Status | None = None
        self._at = ("", "", "")
        self._requests = self._tokens = 0

    @property
    def _wide(self) -> int:
        return max(NARROW, self._console.width)

    # --- while it runs ---------------------------------------------------------------------------

    def start(self, server: str, seed: int) -> None:
        """Say what is probed."""
        self._wrapped(f"probing {server} with seed {seed}", "")
        self._at_work("beginning", "The probe learns what this server offers.")

    def learned(self, label: str, words: str) -> None:
        """Print a fact of the server."""
        self._columns((label, ""), words, side=24)

    def began(self, leg: Leg, tokens: int) -> None:
        """Show which leg is at work, and about how many tokens it asks for."""
        self._at_work(leg.name, leg.title, f" of about {tokens:,}")

    def asked(self, seen: Seen) -> None:
        """Count one exchange."""
        self._requests += 1
        self._tokens += (seen.reply.prompt_tokens or 0) + (seen.reply.completion_tokens or 0)
        if self._status is not None:
            self._status.update(self._doing())

    def ended(self, leg: LegReport) -> None:
        """Print how a leg ended."""
        self.stop()
        counts = f"{len(leg.exchanges):>4} requests {leg.tokens:>8,} tokens {leg.seconds:>7.1f} s"
        line = Text("  ")
        line.append(leg.verdict.ljust(VERDICT_WIDE + 2), STYLES[leg.verdict])
        line.append(f"{leg.name.ljust(self._leg_wide)}  {counts}")
        self._print(line)

    def stop(self) -> None:
        """Remove the line that changes, if there is one."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _at_work(self, name: str, title: str, about: str = "") -> None:
        self.stop()
        self._at, self._requests, self._tokens = (name, title, about), 0, 0
        if self._console.is_terminal:
            self._status = self._console.status(self._doing())
            self._status.start()

    def _doing(self) -> Text:
        """Return the line that changes, cut to the terminal's width."""
        name, title, about = self._at
        text = f"{name}: {self._requests} requests, {self._tokens:,}{about} tokens. {title}"
        room = self._console.width - 3
        return Text(text if len(text) <= room else f"{text[: max(0, room - 3)]}...")

    # --- at the end ------------------------------------------------------------------------------

    def report(self, report: ProbeReport) -> None:
        """Print the table of legs and what they found."""
        self._line("")
        self._head()
        for leg in report.legs:
            self._row(leg)
        for leg in report.legs:
            if leg.evidence:
                self._found(leg)

    def close(self, report: ProbeReport, code: int, why: str | None = None) -> None:
        """Print the verdict and what the exit code means."""
        verdict = report.verdict
        said = f"{report.tokens:,} tokens, {report.seconds:.0f} s, seed {report.seed}"
        self._line("")
        line = Text().append(verdict.value, STYLES[verdict])
        model = self._visible(report.model) or "model not known"
        line.append(f"  {self._visible(report.server)}, {model}; {said}")
        self._print(line)
        self._wrapped(f"exit {code}: {why or MEANINGS[verdict]}", "")

    def _head(self) -> None:
        reuse = "reuse shown by".ljust(self._reuse_wide)
        cells = ("leg".ljust(self._leg_wide), "verdict".ljust(VERDICT_WIDE), reuse, "  tokens")
        self._print(Text("  ".join(cells), "bold"))

    def _row(self, leg: LegReport) -> None:
        shown_by = wrap(reuse_words(leg.reuse.shown_by), self._reuse_wide) or ["-"]
        line = Text(f"{leg.name.ljust(self._leg_wide)}  ")
        line.append(leg.verdict.ljust(VERDICT_WIDE), STYLES[leg.verdict])
        line.append(f"  {shown_by[0].ljust(self._reuse_wide)}  {leg.tokens:>{TOKENS_WIDE},}")
        self._print(line)
        for more in shown_by[1:]:
            self._line(" " * (self._leg_wide + VERDICT_WIDE + 4) + more)
        self._wrapped(leg.reason, "    ", style="dim")

    @property
    def _reuse_wide(self) -> int:
        return self._wide - self._leg_wide - VERDICT_WIDE - TOKENS_WIDE - 6

    def _found(self, leg: LegReport) -> None:
        """Print a leg's first finding whole, and the others in a sentence each."""
        first, *others = leg.evidence
        self._line("")
        line = Text().append(first.verdict.value, STYLES[first.verdict])
        self._print(line.append(f" in {leg.name}", "bold"))
        self._wrapped(first.says, "    ")
        for at in range(len(first.shown)):
            self._exchange(first, at)
        for other in others:
            self._wrapped(f"{other.verdict}: {other.says}", "  + ")

    def _exchange(self, evidence: Evidence, at: int) -> None:
        shown = evidence.shown[at]
        words = words_that_matter(evidence)
        title = second_title(evidence.verdict) if at else "the accused request"
        others = [one for place, one in enumerate(evidence.shown) if place != at]
        other = [one.text for one in said_in(others[0].request)] if others else []
        self._wrapped(f"{title}: {shown.label} ({facts_words(shown)})", "  ", style="bold")
        for place, said in enumerate(said_in(shown.request)):
            before = other[place] if place < len(other) else None
            pictures = [f"[{_counted(said.pictures)}]"] if said.pictures else []
            self._columns((said.role, "  "), *pictures, *excerpt(said.text, words, before))
        for name, value in fields_of(shown.request).items():
            self._columns(("with", "  "), *excerpt(f"{name} = {value}"))
        self._answer(shown)

    def _answer(self, shown: Shown) -> None:
        if "role" not in shown.facts:
            return
        said = shown.facts.get("error") or shown.answer or "(nothing)"
        self._columns(("answer", "  "), *excerpt(said), style="bold")
        if shown.facts.get("expected"):
            self._columns(("right is", "  "), shown.facts["expected"])

    def _columns(
        self, named: tuple[str, str], *pieces: str, side: int = SIDE, style: str = ""
    ) -> None:
        """Print words on the left, and the pieces of a text wrapped beside them."""
        name, indent = named
        text = " [...] ".join(map(self._visible, pieces))
        lines = wrap(text, self._wide - side - len(indent)) or [""]
        for number, line in enumerate(lines):
            left = (self._visible(name) if not number else "").ljust(side)[:side]
            shown = Text().append(indent + left, "dim")
            self._print(shown.append(line, style))

    def _wrapped(self, text: str, mark: str, *, style: str = "") -> None:
        """Print a paragraph behind a mark that stands in its first line only."""
        for number, line in enumerate(wrap(self._visible(text), self._wide - len(mark))):
            self._line((" " * len(mark) if number else mark) + line, style=style)

    def _line(self, text: str, *, style: str = "") -> None:
        self._print(Text(text, style))

    def _print(self, text: Text) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _visible(self, text: str) -> str:
        """Return a text in which what is not plain, or not in the terminal's set, is an escape."""
        plain = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode()
            for letter in text
        )
        return plain.encode(self._console.encoding, "backslashreplace").decode(
            self._console.encoding
        )


def _counted(pictures: tuple[str, ...]) -> str:
    return f"{len(pictures)} picture{'s' if len(pictures) > 1 else ''}"
