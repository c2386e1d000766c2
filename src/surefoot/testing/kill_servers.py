"""Kill real servers of ``spark`` under load, start them again on the same store, and ask.

Each round starts ``surefoot serve spark --store ...``, as a fork of a process that has imported all
it needs, or now and then from nothing; checks what the last kill left (``census``); asks again what
was acknowledged before it, which must come from the store whole; and then lets several clients ask
at once until the drawn moment. Every answer, under load or not, must equal the cold one bit for
bit; references come from a server with ``--store off``.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from threading import Condition
from typing import Any, NamedTuple

import httpx

from surefoot.bench.client import Client, wait_healthy
from surefoot.cache.folder import RECORDS
from surefoot.cli import main
from surefoot.errors import EngineError, SurefootError
from surefoot.pictures import COLOURS, said, shown, speckled, user
from surefoot.testing.census import take_census, told_in_time
from surefoot.testing.forks import Template, breed

MODEL = "spark"
CLIENTS = 3
SALTS = 40
STORE_KILLS = 12  # then a new store is begun
TIGHT_BYTES = "2MB"  # what about 60 records of spark take up; one salt's prompts make 80
STARTING_S = 1.0  # a fork is ready by then
FRESH_EVERY = 20  # rounds; then one starts from nothing, without a template
FRESH_STARTING_S = 8.0
PROBES = 3
ANSWER_TOKENS = 4
ANSWERS_MOST = 8  # before a kill
_DELAY_S = 0.15
_PATIENCE_S = 120.0
_POLL_S = 0.01
_MODULE = "surefoot.testing.kill_servers"
_URL = re.compile(r"http://[0-9.]+:\d+")
_LEAD = "You are a helpful assistant. " + "The picture comes first, the question after it. " * 4


class Ask(NamedTuple):
    """One request: which of ``prompts``, under which salt."""

    prompt: int
    salt: int


@dataclass(slots=True)
class Figures:
    """What a run did and found."""

    kills: int = 0
    starting: int = 0  # of those, before the server could answer
    checked: int = 0  # stores counted through after a kill, records and rows
    records: int = 0
    acknowledged: int = 0  # of those, that had to be there
    probes: int = 0  # acknowledged prompts asked again: each came whole from the store
    answers: int = 0  # that equalled the cold one, probes included
    restored: int = 0  # of those, with something restored
    evictions: int = 0
    faults: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Figures") -> "Figures":
        self.kills += other.kills
        self.starting += other.starting
        self.checked += other.checked
        self.records += other.records
        self.acknowledged += other.acknowledged
        self.probes += other.probes
        self.answers += other.answers
        self.restored += other.restored
        self.evictions += other.evictions
        self.faults += other.faults
        return self


def kill_servers(
    kills: int, *, seed: int, lanes: int, folder: Path, say: Callable[[int], None]
) -> Figures:
    """Kill at least so many servers, in ``lanes`` at once; arguments as ``kill_workers``."""
    total = Figures()
    with Template(_MODULE) as template, ThreadPoolExecutor(lanes) as pool:
        references = _references(template, folder)

        def work(number: int) -> Figures:
            place = folder / f"server-{number}"
            lane = _Lane(template, place, Random(f"{seed}/{number}"), references)
            # Every other store is tight, and so is every other lane's first one.
            return lane.run(-(-kills // lanes), say, stores=count(number))

        for figures in pool.map(work, range(lanes)):
            total += figures
    return total


def prompts() -> list[list[dict[str, Any]]]:
    """Return the prompts: one long beginning, then words or a picture, then a turn more."""
    lead = {"role": "system", "content": _LEAD}
    found = []
    for number, (name, colour) in enumerate(COLOURS.items()):
        words = user(said(f"What is the color of {name} paint, number {number}?"))
        picture = user(shown(speckled(colour, 70 + number)), said("One word: what color?"))
        found += [[lead, words], [lead, picture]]
        for first in (words, picture):
            reply = {"role": "assistant", "content": name.capitalize()}
            found.append([lead, first, reply, user(said("Are you sure? Say it once more."))])
    return found


def body(ask: Ask, all_prompts: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the request's body."""
    return {
        "model": MODEL,
        "messages": all_prompts[ask.prompt],
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "logprobs": True,
        "top_logprobs": 2,
        "cache_salt": f"salt-{ask.salt}",
    }


def record_files(store: Path) -> set[str]:
    """Return the names of the records that lie in a store."""
    return {path.name for path in (store / RECORDS).glob("*/*.rec")}


def _references(template: Template, folder: Path) -> list[Any]:
    server = _Server(template, folder / "reference.log", ["--store", "off"], fresh=False)
    with closing(server), closing(Client(server.ready())) as client:
        asked = prompts()
        return [
            client.ask(body(Ask(number, 0), asked), mode="bypass").bits
            for number in range(len(asked))
        ]


class _Server:
    """A serving process that will be killed."""

    def __init__(self, template: Template, log: Path, flags: list[str], *, fresh: bool) -> None:
        self._template = template
        self._log = log
        self._fresh: subprocess.Popen[bytes] | None = None
        arguments = ["serve", MODEL, "--port", "0", "--threads", "1", *flags]
        if fresh:
            command = [sys.executable, "-m", "surefoot", *arguments]
            with log.open("w") as output:
                self._fresh = subprocess.Popen(command, stdout=output, stderr=output)
            self._pid = self._fresh.pid
        else:
            self._pid = template.fork(arguments, log)
        self._ended = False

    def ready(self) -> str:
        """Return its address once it answers.

        Raises:
            EngineError: it ended, or took too long.
        """
        url = self._url()
        wait_healthy(url, self._lives, timeout_s=_PATIENCE_S)
        return url

    def close(self) -> None:
        """Kill it; on return it is gone."""
        if self._ended:
            return
        self._ended = True
        if self._fresh is None:
            self._template.kill(self._pid)
        else:
            os.kill(self._pid, signal.SIGKILL)
            self._fresh.wait()

    def last_words(self) -> str:
        """Return the end of what it printed."""
        return " | ".join(self._log.read_text(errors="replace").strip().splitlines()[-5:])

    def _url(self) -> str:
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until and self._lives():
            found = _URL.search(self._log.read_text()) if self._log.exists() else None
            if found:
                return found[0]
            time.sleep(_POLL_S)
        raise EngineError("the server did not start")

    def _lives(self) -> bool:
        return (
            not self._template.ended(self._pid)
            if self._fresh is None
            else self._fresh.poll() is None
        )


class _Lane:
    """Rounds on one store after the other."""

    def __init__(
        self, template: Template, folder: Path, draw: Random, references: list[Any]
    ) -> None:
        self._template = template
        self._folder = folder
        self._draw = draw
        self._references = references
        self._prompts = prompts()
        self.figures = Figures()

    def run(self, kills: int, say: Callable[[int], None], stores: Iterable[int]) -> Figures:
        """Kill so many servers, or until something is wrong."""
        figures = self.figures
        for number in stores:
            folder = self._folder / str(number)
            folder.mkdir(parents=True)
            scene = _Scene(self, folder, tight=number % 2 == 1)
            while figures.kills < kills and not figures.faults and scene.kills < STORE_KILLS:
                scene.round()
                say(1)
            if figures.kills >= kills or figures.faults:
                return figures
            shutil.rmtree(folder)
        return figures

    def start(self, store: Path, log: Path, *, tight: bool) -> tuple[_Server, bool]:
        """Start a server with drawn settings; whether it is to be killed while it starts."""
        flags = ["--store", str(store), "--ram-bytes", self._draw.choice(("0", "300kB", "1GB"))]
        # A busy machine is slow, and loses nothing.
        flags += ["--restore-floor-s", str(_PATIENCE_S)]
        if tight:
            flags += ["--ssd-bytes", TIGHT_BYTES]
        fresh = self.figures.kills % FRESH_EVERY == FRESH_EVERY - 1
        starting = self._draw.random() < 0.25
        server = _Server(self._template, log, flags, fresh=fresh)
        if starting:
            time.sleep(self._draw.random() * (FRESH_STARTING_S if fresh else STARTING_S))
            self.figures.starting += 1
        return server, starting

    def ask(self, client: Client, ask: Ask) -> dict[str, Any]:
        """Ask, compare with the cold answer, and return the receipt."""
        answer = client.ask(body(ask, self._prompts))
        if answer.bits != self._references[ask.prompt]:
            self.figures.faults.append(f"{ask} differs from its cold answer: {answer}")
        self.figures.answers += 1
        self.figures.restored += answer.receipt["restored_tokens"] > 0
        return answer.receipt

    def drawn(self, salts: range) -> Ask:
        """Draw a request."""
        return Ask(self._draw.randrange(len(self._prompts)), self._draw.choice(salts))

    def sample(self, asks: list[Ask]) -> list[Ask]:
        """Draw some of these."""
        return self._draw.sample(asks, min(PROBES, len(asks)))

    def number(self, most: int) -> int:
        """Draw a number from 0 to ``most``."""
        return self._draw.randint(0, most)

    def share(self) -> float:
        """Draw from 0 to 1."""
        return self._draw.random()


class _Scene:
    """One store, and what was acknowledged of it."""

    def __init__(self, lane: _Lane, folder: Path, *, tight: bool) -> None:
        self._lane = lane
        self._folder = folder
        self._tight = tight
        self._must: set[Ask] = set()
        self._must_lie: set[str] = set()  # file names
        self.kills = 0

    def round(self) -> None:
        """Start, check, load, kill."""
        lane, figures = self._lane, self._lane.figures
        log = self._folder / f"{self.kills}.log"
        server, starting = lane.start(self._folder / "store", log, tight=self._tight)
        try:
            if not starting:
                url = server.ready()
                with closing(Client(url)) as client:
                    self._check(client)
                if not figures.faults:
                    self._load(server, url)
        except (SurefootError, httpx.HTTPError) as error:
            figures.faults.append(f"{error!r}")
        finally:
            server.close()
        self.kills += 1
        figures.kills += 1
        if figures.faults:
            where = f"{self._folder}, kill {self.kills}, {server.last_words()}"
            figures.faults[:] = [f"{where}: {fault}" for fault in figures.faults]

    def _check(self, client: Client) -> None:
        figures = self._lane.figures
        status = told_in_time(client.wait_written, _PATIENCE_S)
        found = take_census(self._folder / "store", status, writers=1)
        figures.checked += 1
        figures.records += len(found.records)
        figures.faults += found.faults
        lying = record_files(self._folder / "store")
        figures.acknowledged += len(self._must_lie)
        figures.faults += [f"acknowledged, and lost: {name}" for name in self._must_lie - lying]
        for ask in self._lane.sample(sorted(self._must)):
            receipt = self._lane.ask(client, ask)
            whole = receipt["restored_tokens"] == receipt["state_tokens"]
            seen = all(one["feature_hit"] for one in receipt["media"])
            figures.probes += 1
            if not (whole and seen):
                figures.faults.append(f"acknowledged, and lost of {ask}: {receipt}")
        counters = client.wait_written()["counters"]
        for name in ("corrupt", "disagreements", "verification_failures", "feature_failures"):
            if counters[name]:
                figures.faults.append(f"the server counts {counters[name]} {name}")

    def _load(self, server: _Server, url: str) -> None:
        # The salts of some rounds in turn: prefixes are shared, and there is always something new.
        first = self._lane.number(SALTS - 2)
        asks = [self._lane.drawn(range(first, first + 2)) for _ in range(64)]
        load = _Load(self._lane, url, asks, self._folder / "store")
        answers, delay_s = self._lane.number(ANSWERS_MOST), self._lane.share() * _DELAY_S
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            for _ in range(CLIENTS):
                pool.submit(load.work)
            pool.submit(load.watch)
            load.wait_for(answers)
            time.sleep(delay_s)
            load.end()
            server.close()
        self._lane.figures.evictions += load.evictions
        if not self._tight:
            self._must |= load.acknowledged
            self._must_lie |= load.lying


class _Load:
    """Clients that ask until the server is killed, and one that watches what is written."""

    def __init__(self, lane: _Lane, url: str, asks: list[Ask], store: Path) -> None:
        self._lane = lane
        self._url = url
        self._store = store
        self._left = asks
        self._done: list[Ask] = []
        self._changed = Condition()
        self._ending = False
        self.acknowledged: set[Ask] = set()
        self.lying: set[str] = set()  # records on disk, seen before nothing was pending
        self.evictions = 0

    def work(self) -> None:
        """Ask one request after the other."""
        with closing(Client(self._url)) as client:
            while not self._ending and self._left:
                ask = self._left.pop()
                with self._until_killed():
                    self._lane.ask(client, ask)
                    with self._changed:
                        self._done.append(ask)
                        self._changed.notify_all()

    def watch(self) -> None:
        """Ask what is pending; with nothing pending, all that was answered before is written."""
        with closing(Client(self._url)) as client:
            while not self._ending:
                with self._until_killed():
                    done, lying = len(self._done), record_files(self._store)
                    status = client.wait("a status", lambda _: True, timeout_s=_PATIENCE_S)
                    self.evictions = status["tiers"]["ssd"]["evictions"]
                    unwritten = ("unqueued_writes", "refused_writes")
                    lost = any(status["counters"][name] for name in unwritten)
                    if status["pending_writes"] == 0 and not lost:
                        self.acknowledged, self.lying = set(self._done[:done]), lying
                    time.sleep(_POLL_S)

    def wait_for(self, answers: int) -> None:
        """Wait until so many requests were answered, or something went wrong."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._done) >= answers or self._lane.figures.faults, _PATIENCE_S
            )

    def end(self) -> None:
        """Say that what fails from now on was killed."""
        self._ending = True

    def _until_killed(self) -> "_UntilKilled":
        return _UntilKilled(self)

    def failed(self, error: BaseException) -> bool:
        """Take in what a client met; true if the kill explains it."""
        if not self._ending:
            with self._changed:
                self._lane.figures.faults.append(f"before the kill: {error!r}")
                self._changed.notify_all()
            self._ending = True
        return True


class _UntilKilled:
    """Asking a server that is killed fails in many ways, and each is a fault before the kill."""

    def __init__(self, load: _Load) -> None:
        self._load = load

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and self._load.failed(error)


def _serve(arguments: list[str]) -> None:
    sys.argv = ["surefoot", *arguments]
    main()


def _import_all() -> None:
    """Import what a server imports while it starts."""
    from surefoot.chat import load_chat
    from surefoot.cli.serve import serve_forever
    from surefoot.engine.hf import load_engine

    assert all((load_chat, serve_forever, load_engine))


if __name__ == "__main__":
    _import_all()
    breed(_serve)
