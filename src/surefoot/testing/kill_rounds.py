"""Kill workers (``kill_workers``) at drawn moments, open what they leave, and count it.

A round starts one worker, or several on one store, and ends when all are killed: at the first
moments of a start, after a drawn number of told steps, or one after the other while newcomers open
the store beside those that live. One wait in ``PATIENT`` lasts until something is acknowledged:
how often that comes by itself, the disk decides (at 20 ms a sync, never). Then the store is opened
as the next process would, and:

    every record is whole, true, and accounted for (``census``); no row is without its file
    what was acknowledged is there
    a restore stands where the files say it can, and hands over what computing would have given
"""

import os
import select
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from surefoot.cache import Cache
from surefoot.errors import SurefootError
from surefoot.identity import Block
from surefoot.laws import restorable
from surefoot.record import key as record_key
from surefoot.testing import cache_kit
from surefoot.testing.census import Census, take_census, told_in_time
from surefoot.testing.forks import Template
from surefoot.testing.kill_workers import (
    AMPLE,
    TIGHT,
    Ledger,
    Orders,
    lie,
    open_worker_cache,
    order,
    prompt,
)

STORE_KILLS = 40  # then a new store is begun, so that first moments are met often
CROWD = 3
STEPS_MOST = 120
PATIENT = 8
STARTING_S = 0.03  # a worker has opened its store by then
DELAY_S = 0.003  # a few disk operations
_SILENCE_S = 30.0
_PROBES = 10
_MODULE = "surefoot.testing.kill_workers"


@dataclass(slots=True)
class Figures:
    """What a run did and found."""

    kills: int = 0
    opened: int = 0  # stores opened and checked after a kill
    records: int = 0  # read and unsealed in those
    acknowledged: int = 0  # of those, that had to be there
    restores: int = 0  # that stood at some boundary
    evicted: int = 0  # acknowledged ones that were told to leave
    faults: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Figures") -> "Figures":
        self.kills += other.kills
        self.opened += other.opened
        self.records += other.records
        self.acknowledged += other.acknowledged
        self.restores += other.restores
        self.evicted += other.evicted
        self.faults += other.faults
        return self


def kill_workers(
    kills: int, *, seed: int, lanes: int, folder: Path, say: Callable[[int], None]
) -> Figures:
    """Kill at least so many workers, in ``lanes`` at once.

    Args:
        kills: how many.
        seed: what every moment is drawn from.
        lanes: stores that are worked on at a time.
        folder: an empty one to use.
        say: called with the kills of a round as it ends.
    """
    total = Figures()
    with Template(_MODULE) as template, ThreadPoolExecutor(lanes) as pool:

        def work(number: int) -> Figures:
            lane = _Lane(template, folder / f"lane-{number}", Random(f"{seed}/{number}"))
            # Every other store is tight, and so is every other lane's first one.
            return lane.run(-(-kills // lanes), say, stores=count(number))

        for figures in pool.map(work, range(lanes)):
            total += figures
    return total


class _Pipe:
    """A named pipe whose lines outlive their writers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path, 0o600)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def lines(self, timeout_s: float) -> list[str]:
        """Return the lines that have come, or that come within ``timeout_s``."""
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return []
        *whole, self._rest = (self._rest + os.read(self._descriptor, 1 << 20)).split(b"\n")
        return [line.decode() for line in whole]

    def close(self) -> None:
        """Close it, and remove its name."""
        os.close(self._descriptor)
        self.path.unlink()


class _Lane:
    """Rounds on one store after the other."""

    def __init__(self, template: Template, folder: Path, draw: Random) -> None:
        self._template = template
        self._folder = folder
        self._draw = draw
        self._names = (f"w{number}" for number in count())
        self.waits = count(1)
        self.figures = Figures()

    def run(self, kills: int, say: Callable[[int], None], stores: Iterable[int]) -> Figures:
        """Kill so many workers, or until something is wrong."""
        figures = self.figures
        for number in stores:
            if figures.kills >= kills or figures.faults:
                break
            folder = self._folder / str(number)
            folder.mkdir(parents=True)
            least = min(kills, figures.kills + STORE_KILLS)
            ssd_bytes = TIGHT if number % 2 else AMPLE
            ledger = Ledger(tight=ssd_bytes == TIGHT)
            with closing(_Pipe(folder / "pipe")) as pipe:
                scene = _Scene(self, folder, pipe, ledger, ssd_bytes)
                while figures.kills < least and not figures.faults:
                    before = figures.kills
                    scene.round()
                    say(figures.kills - before)
            figures.evicted += ledger.evicted
            if not figures.faults:
                shutil.rmtree(folder)
        return figures

    def fork(self, folder: Path, pipe: Path, ssd_bytes: int) -> int:
        """Start a worker on the store in ``folder``; what it prints stays if something is wrong."""
        orders = Orders(
            next(self._names), str(folder / "store"), ssd_bytes, str(pipe), self.number()
        )
        return self._template.fork(order(orders), folder / f"{orders.who}.out")

    def kill(self, victim: int) -> None:
        """Kill a worker."""
        self._template.kill(victim)
        self.figures.kills += 1

    def number(self, most: int = 1 << 30) -> int:
        """Draw a number from 0 to ``most``."""
        return self._draw.randint(0, most)

    def share(self) -> float:
        """Draw from 0 to 1."""
        return self._draw.random()


@dataclass(frozen=True, slots=True)
class _Scene:
    """One store, those who work on it, and what they told."""

    lane: _Lane
    folder: Path
    pipe: _Pipe
    ledger: Ledger
    ssd_bytes: int

    def round(self) -> None:
        """Start, kill, open, check."""
        drawn = self.lane.share()
        if drawn < 0.2:
            self._solo(steps=0, delay_s=self.lane.share() * STARTING_S)
        elif drawn < 0.6:
            steps = 1 + self.lane.number(STEPS_MOST)
            self._solo(steps=steps, delay_s=self.lane.share() * DELAY_S)
        else:
            self._crowd()
        while lines := self.pipe.lines(0):
            self._read(lines)
        if not self._wrong():
            self._check()
        if self._wrong():
            where = f"{self.folder}, after {self.lane.figures.kills} kills"
            self.lane.figures.faults += [f"{where}: {fault}" for fault in self.ledger.faults]

    def _solo(self, *, steps: int, delay_s: float) -> None:
        victim = self._fork()
        self._wait(steps, delay_s)
        self.lane.kill(victim)

    def _crowd(self) -> None:
        living = [self._fork() for _ in range(CROWD)]
        for _ in range(CROWD):
            self._wait(1 + self.lane.number(STEPS_MOST), self.lane.share() * DELAY_S)
            self.lane.kill(living.pop(self.lane.number(CROWD - 1)))
            living.append(self._fork())
        for victim in living:
            self._wait(1 + self.lane.number(STEPS_MOST // CROWD), self.lane.share() * DELAY_S)
            self.lane.kill(victim)

    def _fork(self) -> int:
        return self.lane.fork(self.folder, self.pipe.path, self.ssd_bytes)

    def _wait(self, steps: int, delay_s: float) -> None:
        patient = steps > 0 and next(self.lane.waits) % PATIENT == 0
        settled = self.ledger.settled
        while (steps > 0 or (patient and self.ledger.settled == settled)) and not self._wrong():
            lines = self.pipe.lines(_SILENCE_S)
            if not lines:
                self.ledger.faults.append(f"nobody told of a step for {_SILENCE_S:g} s")
            self._read(lines)
            steps -= len(lines)
        time.sleep(delay_s)

    def _read(self, lines: list[str]) -> None:
        for line in lines:
            self.ledger.read(line)

    def _wrong(self) -> bool:
        return bool(self.ledger.faults)

    def _check(self) -> None:
        def tell(*words: object) -> None:
            self.ledger.read(" ".join(map(str, ("checker", *words))))

        store = self.folder / "store"
        try:
            cache = open_worker_cache(store, ssd_bytes=self.ssd_bytes, ram_bytes=0, tell=tell)
        except SurefootError as error:
            self.ledger.faults.append(f"the store cannot be opened: {error}")
            return
        with closing(cache):
            cache.drain(_SILENCE_S)
            found = take_census(store, told_in_time(cache.status, _SILENCE_S), writers=1)
            self.ledger.faults += found.faults
            self.ledger.faults += missing(self.ledger, found)
            for number in self._probes():
                self._probe(cache, prompt(number), found)
            for number in self.ledger.fenced[-_PROBES:]:
                self._probe(cache, lie(number), found)
        figures = self.lane.figures
        figures.opened += 1
        figures.records += len(found.records)
        figures.acknowledged += len(self.ledger.must)

    def _probes(self) -> list[int]:
        begun = sorted(set(self.ledger.prompts))
        known = [begun[self.lane.number(len(begun) - 1)] for _ in range(_PROBES if begun else 0)]
        return [*dict.fromkeys((*self.ledger.prompts[-3:], *known))]

    def _probe(self, cache: Cache, tokens: tuple[int, ...], found: Census) -> None:
        blocks = cache_kit.blocks_of(tokens)
        limit = sum(block.end < len(tokens) for block in blocks)
        least, most = (
            _boundary(cache, blocks, held, limit=limit)
            for held in (self.ledger.must, found.records.keys())
        )
        plan = cache.plan(blocks, limit=limit)
        with cache.pinned(plan):
            restored = cache.restore(plan, deadline_s=_SILENCE_S)
        cache_kit.check_restored(cache, plan, restored)
        # Where something is quarantined, not all that lies there may be served.
        least = max(least, 0 if tokens[0] >= lie(0)[0] else most)
        if not least <= restored.boundary <= most:
            self.ledger.faults.append(
                f"{tokens} was restored to block {restored.boundary}, not {least} to {most}"
            )
        self.lane.figures.restores += restored.boundary > 0


def _boundary(cache: Cache, blocks: Sequence[Block], there: Collection[str], *, limit: int) -> int:
    def held(group: int, index: int) -> bool:
        return record_key(blocks[index].name, cache.groups[group].name) in there

    ends = [block.end for block in blocks]
    return restorable([one.law for one in cache.groups], ends, held, limit=limit)


def missing(ledger: Ledger, found: Census) -> list[str]:
    """Return what was acknowledged and is not there, and what is there and is not true."""
    lost = [
        f"acknowledged, and lost: {key} ({ledger.history(key)})"
        for key in sorted(ledger.must - found.records.keys())
    ]
    groups = {one.name: one for one in cache_kit.EVERY_LAW}
    false = [
        f"not what computing gives: {key}"
        for key, (block, part) in found.parts.items()
        if part != cache_kit.part_of(groups[part.group], block) and key not in ledger.lies
    ]
    return lost + false
