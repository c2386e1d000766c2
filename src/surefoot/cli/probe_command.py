"""``surefoot probe``: run the probe against a server and report what it found.

Whatever happens to a run, the legs that ended are reported: after Ctrl-C, and where the server or
the restart command gives up, the others count as INCONCLUSIVE, so that no run that was cut short
reads as clean.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import httpx
from rich.console import Console

from surefoot import settings
from surefoot.cli.probe_restart import restarting
from surefoot.cli.probe_table import ProbeTable
from surefoot.errors import SetupError, SurefootError
from surefoot.probe.asking import CHAT, Asker
from surefoot.probe.junit import junit
from surefoot.probe.legs import Leg
from surefoot.probe.page import page
from surefoot.probe.publishing import publishable
from surefoot.probe.run import Options, chosen_legs, run_probe
from surefoot.probe.trail import Seen, Unsettled
from surefoot.probe.verdicts import EXIT_CODES, LegReport, ProbeReport, Verdict

PORT_MOST = 65_535
INTERRUPTED = 130  # as shells say it: 128 and SIGINT
SEEDS = 2**31
ERROR_RATE_MOST = 0.5
_VERSION = re.compile(r"v\d\w*")  # the part of a path that says which API it is

_FORM = "write http://host:port/v1"

Connect = Callable[[str, Sequence[str]], Asker]


@dataclass(frozen=True, slots=True)
class ProbeArguments:
    """What was typed.

    Attributes:
        url: of the server, in any of its spellings.
        keys: API keys, the first for all requests but those of another tenant.
        model: the model's id, None for the first one listed.
        legs: names of legs with commas between, None for all.
        restart_cmd: a shell command that restarts the server.
        as_json: print one JSON object, and progress on stderr.
        html: where the page goes, None for no page.
        junit: where the JUnit document goes, likewise.
        seed: None to draw one.
        budget_tokens: most tokens asked for.
        budget_seconds: most seconds spent.
        error_rate: of the time test.
    """

    url: str
    keys: tuple[str, ...] = ()
    model: str | None = None
    legs: str | None = None
    restart_cmd: str | None = None
    as_json: bool = False
    html: Path | None = None
    junit: Path | None = None
    seed: int | None = None
    budget_tokens: int = settings.PROBE_TOKENS.default
    budget_seconds: float = settings.PROBE_SECONDS.default
    error_rate: float = settings.PROBE_ERROR_RATE.default


def connect(url: str, keys: Sequence[str]) -> Asker:
    """Return what asks a server over the network."""
    return Asker(url, keys=keys, clock=time.monotonic)


def probe_server(arguments: ProbeArguments, *, connect: Connect = connect) -> int:
    """Probe a server, print and write what was found, and return the exit code.

    Raises:
        SetupError: a flag or the URL cannot be used, or the restart command failed.
        RequestError: there is no such leg, or the server refuses the key, the model or the
            plainest request.
        CapacityError: the server cannot be reached.
    """
    url = base_url(arguments.url)
    _check(arguments)
    legs = chosen_legs(_names(arguments.legs))
    asker = connect(url, arguments.keys)
    table = ProbeTable(Console(stderr=arguments.as_json), [leg.name for leg in legs])
    run = _Probing(asker, legs, arguments, table)
    try:
        return run.to_the_end()
    except SurefootError as error:
        # A server may repeat the key in what it refuses with.
        raise type(error)(asker.hide(str(error))) from None
    except KeyboardInterrupt:  # while reporting
        return INTERRUPTED
    finally:
        table.stop()


def base_url(text: str) -> str:
    """Return the URL that paths of the API are put behind: scheme, host and, at its end, ``/v1``.

    Raises:
        SetupError: it is no http(s) URL, or holds what does not belong in one.
    """
    # No message repeats the text: what was mistyped may hold a secret.
    try:
        url = httpx.URL(text.strip())
        host, port = url.host, url.port or 0
    except (httpx.InvalidURL, UnicodeError):
        raise SetupError(f"the URL cannot be read: {_FORM}") from None
    if url.userinfo:
        raise SetupError("the URL holds a user or a password: leave it out, and use --api-key")
    if url.scheme not in ("http", "https") or not host or port > PORT_MOST:
        raise SetupError(f"the URL names no server: {_FORM}")
    if url.query or url.fragment:
        raise SetupError(f"the URL goes on behind its path: {_FORM}")
    path = url.path.rstrip("/").removesuffix(f"/{CHAT}")
    if not any(_VERSION.fullmatch(part) for part in path.split("/")):
        path += "/v1"
    return str(url.copy_with(path=path))


@dataclass(slots=True)
class _Probing:
    """One run: hears what happens, and reports it however the run ends."""

    asker: Asker
    legs: Sequence[Leg]
    arguments: ProbeArguments
    table: ProbeTable
    seed: int = 0
    facts: dict[str, str] = field(default_factory=dict)
    ended_legs: list[LegReport] = field(default_factory=list)

    def to_the_end(self) -> int:
        given, clock = self.arguments, self.asker.clock
        self.seed = secrets.randbelow(SEEDS) if given.seed is None else given.seed
        when, started = datetime.now().astimezone().replace(microsecond=0), clock()
        self.table.start(self._hidden(self.asker.url), self.seed)
        code: int | None = None
        failed: SurefootError | None = None
        why: str | None = None
        try:
            report = asyncio.run(self._probe())
        except KeyboardInterrupt:
            code, why = INTERRUPTED, "the run was stopped; a whole one settles it"
        except Unsettled as reason:
            why = str(reason)
        except SurefootError as error:
            failed, why = error, str(error)
        if why is not None:
            report = self._unfinished(why, clock() - started)
        self._publish(report, when, code=code, why=why, told=failed is None)
        if failed is not None:
            raise failed
        return EXIT_CODES[report.verdict] if code is None else code

    async def _probe(self) -> ProbeReport:
        given = self.arguments
        options = Options(
            self.seed,
            model=given.model,
            legs=[leg.name for leg in self.legs],
            budget_tokens=given.budget_tokens,
            budget_seconds=given.budget_seconds,
            error_rate=given.error_rate,
            restart=restarting(given.restart_cmd, self.asker),
        )
        async with self.asker:
            return await run_probe(self.asker, options, self)

    def _unfinished(self, why: str, seconds: float) -> ProbeReport:
        """Return the report of a run that was cut short."""
        ended = {leg.name for leg in self.ended_legs}
        others = [
            LegReport(leg.name, leg.title, Verdict.INCONCLUSIVE, f"it did not end: {why}")
            for leg in self.legs
            if leg.name not in ended
        ]
        return ProbeReport(
            server=self.asker.url,
            model=self.asker.model,
            seed=self.seed,
            legs=(*self.ended_legs, *others),
            facts=tuple(self.facts.items()),
            tokens=self.asker.spent_tokens,
            seconds=seconds,
        )

    def _publish(
        self, report: ProbeReport, when: datetime, *, code: int | None, why: str | None, told: bool
    ) -> None:
        self.table.stop()
        shown = publishable(report, self.asker.hide)
        given = self.arguments
        if given.as_json:
            _print(json.dumps(shown.to_json(), indent=2, allow_nan=False))
        elif told or self.ended_legs:
            self.table.report(shown)
        if told:
            ending = EXIT_CODES[shown.verdict] if code is None else code
            cut = None if why is None else f"{self._hidden(why)}. The legs that ended stand"
            self.table.close(shown, ending, cut)
        with ExitStack() as written:  # all that can be, whichever cannot
            if given.junit is not None:
                xml = junit(shown, when=when.isoformat())
                written.callback(_write, given.junit, xml, flag="--junit")
            if given.html is not None:
                html = page(shown, when=f"{when:%d %B %Y, %H:%M %Z}")
                written.callback(_write, given.html, html, flag="--html")

    def _hidden(self, text: str) -> str:
        return publishable(text, self.asker.hide)

    # --- what the probe tells while it runs ------------------------------------------------------

    def learned(self, label: str, words: str) -> None:
        self.facts[label] = words
        self.table.learned(self._hidden(label), self._hidden(words))

    def began(self, leg: Leg, tokens: int) -> None:
        self.table.began(leg, tokens)

    def asked(self, seen: Seen) -> None:
        self.table.asked(seen)

    def ended(self, report: LegReport) -> None:
        self.ended_legs.append(report)
        self.table.ended(report)


def _check(arguments: ProbeArguments) -> None:
    """Refuse flags that cannot be used before anything is asked."""
    settings.at_least(0, arguments.seed or 0, flag="--seed")
    settings.at_least(1, arguments.budget_tokens, flag="--budget-tokens")
    settings.at_least(1, arguments.budget_seconds, flag="--budget-seconds")
    rate = arguments.error_rate
    if not 0 < rate <= ERROR_RATE_MOST:
        raise SetupError(f"--error-rate {rate} must be above 0 and at most {ERROR_RATE_MOST}")
    if arguments.model is not None and not _encodable(arguments.model):
        raise SetupError("--model is no text that can be sent")
    for key in arguments.keys:
        if not key or not all("!" <= letter <= "~" for letter in key):
            raise SetupError("an --api-key is empty, or holds a character that no header can")
    for path, flag in ((arguments.html, "--html"), (arguments.junit, "--junit")):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise SetupError(f"{flag} {path} cannot be written: give a file in a folder that is")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise SetupError("--legs names no leg: leave it out for all of them")
    return names


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        raise SetupError(f"stdout cannot be written: {error.strerror}") from None


def _write(path: Path, text: str, *, flag: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{flag} {path} cannot be written: {error.strerror}") from None
