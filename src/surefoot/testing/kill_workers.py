"""Workers that only write and read a store, without a model, and are killed at it.

A worker tells of each step before and after it over a pipe, a line at a time; lines outlive it.
Whoever kills it reads them, and so knows what was acknowledged: committed, and then seen with
nothing pending. In a store with room, all of that must be there ever after; in a store that is too
small, all that was not told to leave.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from surefoot.cache import Cache, open_cache
from surefoot.cache.fences import Reason
from surefoot.errors import TierError
from surefoot.record import feature_key
from surefoot.record import key as record_key
from surefoot.testing import cache_kit
from surefoot.testing.forks import breed
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier

PROMPTS = 160
IMAGES = 40
AMPLE, TIGHT = 1 << 30, 300_000  # the latter holds 70 records of some 400
_RAM_BYTES = 6_000  # a dozen parts, so that most restores read the SSD
_QUEUE_BYTES = 1 << 26
_DEADLINE_S = 60.0

Tell = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is told: its name, the store and its quota, the pipe, and what to draw from."""

    who: str
    store: str
    ssd_bytes: int
    pipe: str
    seed: int


def prompt(number: int) -> tuple[int, ...]:
    """Return the tokens of one of ``PROMPTS`` prompts: a tree of four roots, forked twice."""
    root, fork, leaf = number % 4, number // 4 % 4, number // 16
    return (*[root + 1] * 12, *[10 + fork] * 8, *[20 + leaf] * 9)


def lie(number: int) -> tuple[int, ...]:
    """Return the tokens of a prompt under which one worker stores what is not true."""
    return (1000 + number, *[7] * 19)


def open_worker_cache(store: Path, *, ssd_bytes: int, ram_bytes: int, tell: Tell) -> Cache:
    """Open a cache on the real disk that tells what it is about to delete and what it has put."""

    def make_tier(root: Path, writer: str) -> SsdTier:
        return _TellingTier(root, writer, tell)

    return open_cache(
        model=cache_kit.MODEL,
        groups=cache_kit.EVERY_LAW,
        feature_schema=cache_kit.FEATURES,
        store=store,
        ram_bytes=ram_bytes,
        ssd_bytes=ssd_bytes,
        feature_ram_bytes=1_000,
        feature_ssd_bytes=ssd_bytes // 4,
        free_floor_bytes=0,
        io_threads=2,
        queue_bytes=_QUEUE_BYTES,
        clock=time.monotonic,
        wall_clock=time.time,
        make_tier=make_tier,
    )


def order(orders: Orders) -> Sequence[str]:
    """Return the arguments that a template of this module forks a worker with."""
    return [json.dumps(asdict(orders))]


class Ledger:
    """What the workers of one store told, and what must therefore be in it; survives them all.

    ``tight``: the store is too small, so what is told to leave may leave.
    """

    def __init__(self, *, tight: bool) -> None:
        self.tight = tight
        self.must: set[str] = set()  # tier keys
        self.prompts: list[int] = []  # that somebody has begun, the latest last
        self.lies: set[str] = set()  # tier keys under which something false was stored
        self.fenced: list[int] = []  # lies whose quarantine was acknowledged
        self.faults: list[str] = []
        self.evicted = 0
        self.settled = 0  # quiet moments that acknowledged something
        self._unsettled: dict[str, set[str]] = defaultdict(set)
        self._put: set[str] = set()
        self._lines: list[str] = []

    def read(self, line: str) -> None:
        """Take in one line."""
        self._lines.append(line)
        who, verb, *rest = line.split(" ", 2)
        what = rest[0] if rest else ""
        match verb:
            case "turn":
                self.prompts.append(int(what))
            case "committed":
                self._unsettled[who].add(what)
            case "put":
                self._put.add(what)
            case "leave":
                self._leave(what)
            case "quiet":
                settled = self._unsettled.pop(who, set())
                self.settled += bool(settled)
                # What found no room in a tight store was never put.
                self.must |= settled & self._put if self.tight else settled
            case "lying":
                self.lies.add(what)
            case "fenced":
                self.fenced.append(int(what))
            case "broke":
                self.faults.append(line)

    def history(self, key: str) -> str:
        """Return what was told of a record, with the starts and the quiet moments in between."""
        words = (key, " begun", " opened", " quiet")
        told = [line for line in self._lines if any(word in line for word in words)]
        first = next((at for at, line in enumerate(told) if key in line), len(told))
        return "; ".join(line.replace(key, "it") for line in told[max(first - 4, 0) :][:40])

    def _leave(self, key: str) -> None:
        self._put.discard(key)
        if self.tight:
            self.evicted += key in self.must
            self.must.discard(key)


class _TellingTier(SsdTier):
    """The SSD tier on the real disk; tells what it has put, and what it is about to delete."""

    def __init__(self, root: Path, writer: str, tell: Tell) -> None:
        super().__init__(root, RealDisk(), writer)
        self._tell = tell

    def put(self, key: str, data: bytes) -> int:
        """Store, then tell."""
        nbytes = super().put(key, data)
        self._tell("put", key)
        return nbytes

    def delete(self, key: str) -> None:
        """Tell, then delete."""
        self._tell("leave", key)
        super().delete(key)


class _Worker:
    """Takes turns for ever, as one engine thread would."""

    def __init__(self, cache: Cache, draw: Random, tell: Tell) -> None:
        self._cache = cache
        self._draw = draw
        self._tell = tell

    def live(self) -> None:
        """Take turns, store features, lie and own up, wait for the store, in drawn order."""
        while True:
            drawn = self._draw.random()
            if drawn < 0.7:
                number = self._draw.randrange(PROMPTS)
                self._tell("turn", number)
                self._turn(prompt(number))
            elif drawn < 0.82:
                self._look(self._draw.randrange(IMAGES))
            elif drawn < 0.86:
                self._lie(self._draw.randrange(1 << 30))
            else:
                self._cache.drain(_DEADLINE_S)
            if self._cache.status()["pending_writes"] == 0:
                self._tell("quiet")

    def _turn(self, tokens: tuple[int, ...]) -> None:
        cache = self._cache
        blocks = cache_kit.blocks_of(tokens)
        plan = cache.plan(blocks, limit=sum(block.end < len(tokens) for block in blocks))
        with cache.pinned(plan):
            restored = cache.restore(plan, deadline_s=_DEADLINE_S)
            cache_kit.check_restored(cache, plan, restored)
            for index in range(restored.boundary, len(blocks)):
                kept = cache.kept_groups(plan, index, prompt_tokens=len(tokens))
                cache_kit.commit(cache, blocks[index], groups=kept, turn=plan)
                for group in sorted(kept):
                    self._tell("committed", record_key(blocks[index].name, group))

    def _lie(self, number: int) -> None:
        """Store what is not true from the second block on, quarantine that, and compute anew."""
        cache, tokens = self._cache, lie(number)
        first, *rest = cache_kit.blocks_of(tokens)
        cache_kit.commit(cache, first)
        for block in rest:
            for group in cache.groups:
                self._tell("lying", record_key(block.name, group.name))
            cache_kit.commit(cache, block, spoil=True)
        if self._draw.random() < 0.5:
            cache.drain(_DEADLINE_S)
        try:
            cache.quarantine(rest[0].name, Reason.BY_HAND, "stored to be quarantined")
        except TierError:  # a slow disk: barred in this process, and nothing was acknowledged
            pass
        else:
            self._tell("fenced", number)
        self._turn(tokens)

    def _look(self, number: int) -> None:
        cache, item = self._cache, cache_kit.image_of(number)
        name = cache_kit.feature_name_of(item)
        found = cache.features({name: item}, deadline_s=_DEADLINE_S)
        expected = cache_kit.features_of(item)
        assert found.get(name, expected) == expected, number
        if not found:
            cache.commit_features(name, item, expected)
            self._tell("committed", feature_key(name))


def _work(arguments: list[str]) -> None:
    orders = Orders(**json.loads(arguments[0]))
    pipe = os.open(orders.pipe, os.O_WRONLY)

    def tell(*words: object) -> None:
        os.write(pipe, " ".join(map(str, (orders.who, *words))).encode() + b"\n")

    try:
        tell("begun")
        cache = open_worker_cache(
            Path(orders.store), ssd_bytes=orders.ssd_bytes, ram_bytes=_RAM_BYTES, tell=tell
        )
        tell("opened")
        _Worker(cache, Random(orders.seed), tell).live()
    except BaseException as error:
        tell("broke", repr(error).replace("\n", " ")[:500])
        raise


if __name__ == "__main__":
    breed(_work)
