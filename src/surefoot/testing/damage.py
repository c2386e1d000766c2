"""Damage stored records at random and look what is served: ``python -m surefoot.testing.damage``.

One fault at a time: a bit flipped, an end cut off, or two files' bytes exchanged. ``shelf`` goes
through the real SSD tier and the whole cache, without a model; ``live`` damages the files of a
serving process between requests. After each fault the same turn is taken again, and must be the
cold one, bit for bit; the fault must show in a counter, and what is on disk afterwards must be
whole (I2, I8, I10).
"""

import argparse
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from surefoot.bench.client import Client
from surefoot.bench.process import ServerProcess
from surefoot.cache import Cache, Restored
from surefoot.errors import CorruptRecord
from surefoot.identity import Block, FeatureName, Salt, salt_of
from surefoot.pictures import COLOURS, said, shown, solid, user
from surefoot.prompt import MediaItem, MediaSpan
from surefoot.record import (
    Header,
    content,
    feature_key,
    key,
    read_header,
    read_key,
    unseal,
    unseal_features,
)
from surefoot.state import Group
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    SALT,
    Bench,
    blocks_of,
    check_restored,
    feature_name_of,
    features_of,
    image_of,
    part_of,
)
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier

DRAIN_S = 30.0
DEADLINE_S = 30.0
COUNTED = ("corrupt", "feature_failures")  # what a damaged record shows in
STORE_FAULTS = 1_000  # after so many a new store is begun, since each leaves a fence for ever


class Damaged(NamedTuple):
    """One fault: what was done, and the files that hold something else now."""

    what: str
    paths: tuple[Path, ...]


def damage(random: Random, path: Path, others: Sequence[Path]) -> Damaged:
    """Flip a bit of a file, cut its end off, or exchange its bytes with those of another."""
    data = path.read_bytes()
    match random.randrange(3):
        case 0:
            at, bit = random.randrange(len(data)), random.randrange(8)
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            return Damaged(f"bit {bit} of byte {at} of {len(data)} flipped", (path,))
        case 1:
            length = random.randrange(len(data))
            path.write_bytes(data[:length])
            return Damaged(f"{length} of {len(data)} bytes left", (path,))
        case _:
            other = random.choice(others)
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
            return Damaged(f"exchanged with {other.name}", (path, other))


def is_whole(path: Path) -> bool:
    """Return whether a file is gone, or is the record of its name."""
    named = read_key(path.name.removesuffix(".rec"))
    try:
        data = path.read_bytes()
        match named:
            case (name, group):
                unseal(data, name=name, group=group)
            case bytes():
                unseal_features(data, name=named)
            case None:
                return False
    except FileNotFoundError:
        return True
    except CorruptRecord:
        return False
    return True


@dataclass(slots=True)
class Tally:
    """How the faults of a run ended."""

    faults: int = 0
    served: int = 0  # something else than the cold answer was handed out
    crashes: int = 0
    uncounted: int = 0  # no counter moved
    left: int = 0  # a damaged file was still in place after the turn
    kinds: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.faults + other.faults,
            self.served + other.served,
            self.crashes + other.crashes,
            self.uncounted + other.uncounted,
            self.left + other.left,
            self.kinds + other.kinds,
        )

    @property
    def sound(self) -> bool:
        """Whether every fault cost time alone."""
        return not (self.served or self.crashes or self.uncounted or self.left)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return (
            f"{self.faults:,} faults ({kinds}): {self.served} served, {self.crashes} crashes, "
            f"{self.uncounted} uncounted, {self.left} left in place"
        )


@dataclass(frozen=True, slots=True)
class Subject:
    """A conversation that can be damaged: take its turn, and find the files that it stands on."""

    name: str
    turn: Callable[[], bool]  # false if what came back is not the cold answer
    files: Callable[[], Sequence[Path]]


def run(
    subjects: Sequence[Subject],
    faults: int,
    random: Random,
    *,
    counted: Callable[[], int],
    say: Callable[[str], None],
) -> Tally:
    """Damage so many files, one after the other, and take each damaged conversation's turn.

    Args:
        subjects: conversations, each with files of its own.
        faults: how many.
        random: which file, and what is done to it.
        counted: the counters in which a damaged record shows, summed.
        say: told of each fault that did not end well.
    """
    tally = Tally()
    for _ in range(faults):
        subject = random.choice(subjects)
        try:
            if not (subject.turn() and subject.files()):
                raise AssertionError(f"{subject.name} is not whole before a fault")
            _one(subject, subjects, random, tally, counted, say)
        except Exception:  # noqa: BLE001 - a crash is what is looked for
            tally.crashes += 1
            say(traceback.format_exc())
    return tally


def _one(
    subject: Subject,
    subjects: Sequence[Subject],
    random: Random,
    tally: Tally,
    counted: Callable[[], int],
    say: Callable[[str], None],
) -> None:
    owner = {path: one for one in subjects for path in one.files()}
    path = random.choice(subject.files())
    before = counted()
    damaged = damage(random, path, [other for other in owner if other != path])
    tally.faults += 1
    tally.kinds["exchanged" if len(damaged.paths) > 1 else damaged.what.split()[-1]] += 1
    told = f"{subject.name}: {path.name}: {damaged.what}"
    for hurt in dict.fromkeys(owner[one].name for one in damaged.paths):
        if not next(one for one in subjects if one.name == hurt).turn():
            tally.served += 1
            say(f"SERVED {told}")
    if counted() <= before:
        tally.uncounted += 1
        say(f"UNCOUNTED {told}")
    if not all(map(is_whole, damaged.paths)):
        tally.left += 1
        say(f"LEFT {told}")


# Without a model.


class _Unsynced(RealDisk):
    """The real disk, not forced down: no power is cut here, and forcing is most of the time."""

    def sync_file(self, path: Path) -> None:
        """Leave it to the system."""

    def sync_folder(self, path: Path) -> None:
        """Leave it to the system."""


class Shelves(Bench):
    """Caches without RAM on a folder, whose tier is the real one."""

    def __init__(self, folder: Path, groups: tuple[Group, ...] = EVERY_LAW) -> None:
        super().__init__(folder, groups)
        self.ram_bytes = self.feature_ram_bytes = 0

    def _tier(self, records: Path, writer: str) -> Any:
        return SsdTier(records, _Unsynced(), writer)


class Told(NamedTuple):
    """One conversation: its tokens, its tenant, and a picture that stands at the sixth token."""

    tokens: tuple[int, ...]
    salt: Salt = SALT
    picture: MediaItem | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its whole blocks."""
        shown = self.picture
        media = (MediaSpan(5, shown.tokens, shown.name),) if shown else ()
        return blocks_of(self.tokens, media=media, salt=self.salt)

    @property
    def feature(self) -> FeatureName | None:
        """The name of its picture's features."""
        return feature_name_of(self.picture, salt=self.salt) if self.picture else None

    @property
    def consumed(self) -> list[tuple[FeatureName, ...]]:
        """The features that each block consumes."""
        feature = self.feature
        return [(feature,) if feature and block.spans else () for block in self.blocks]

    def files(self, cache: Cache, folder: Path) -> list[Path]:
        """Return the files that a whole restore reads; none if it would not be whole."""
        blocks, feature = self.blocks, self.feature
        plan = cache.plan(blocks, limit=len(blocks), features=self.consumed)
        if plan.boundary < len(blocks):
            return []
        keys = [key(blocks[load.block].name, load.group) for load in plan.loads]
        keys += [feature_key(feature)] if feature else []
        return [folder / "records" / one[:2] / f"{one}.rec" for one in keys]


class Taken(NamedTuple):
    """What a turn found: the restore, and whether its picture's features were there."""

    restored: Restored
    found: bool


def take_turn(cache: Cache, told: Told, *, computing: bool = True) -> Taken:
    """Plan, restore and check a turn; then compute and commit what is missing, if told to.

    Raises:
        AssertionError: something else was handed out than computing would have given.
    """
    blocks, consumed = told.blocks, told.consumed
    plan = cache.plan(blocks, limit=len(blocks), features=consumed)
    with cache.pinned(plan):
        restored = cache.restore(plan, deadline_s=DEADLINE_S)
        check_restored(cache, plan, restored)
        found = _find(cache, told, computing=computing)
        for index in range(restored.boundary, len(blocks)) if computing else ():
            kept = cache.kept_groups(plan, index, prompt_tokens=len(told.tokens))
            made = [part_of(one, blocks[index]) for one in cache.groups if one.name in kept]
            parts = [(part, content(part)) for part in made]
            cache.commit(blocks[index], parts, turn=plan, features=consumed[index])
    assert cache.drain(DRAIN_S), "writes that do not end"
    return Taken(restored, found)


def _find(cache: Cache, told: Told, *, computing: bool) -> bool:
    """Look a picture's features up, and make them if they are not there."""
    if not (told.picture and told.feature):
        return True
    made = features_of(told.picture)
    found = cache.features({told.feature: told.picture}, deadline_s=DEADLINE_S).get(told.feature)
    if found is not None:
        pairs = zip(found.components, made.components, strict=True)
        assert all(bytes(one.data) == bytes(other.data) for one, other in pairs)
    elif computing:
        cache.commit_features(told.feature, told.picture, made)
    return found is not None


# Two share a beginning, two differ in their tenant alone, one shows a picture.
CONVERSATIONS = {
    "long": Told(tuple(range(33))),
    "forked": Told((*range(13), *range(100, 113))),
    "short": Told(tuple(range(200, 206))),
    "tenant": Told(tuple(range(200, 217)), salt_of(None, "another")),
    "picture": Told(tuple(range(300, 319)), SALT, image_of(1)),
}


def damages(cache: Cache) -> int:
    """Return how many damaged records a cache has met."""
    counters = cache.status()["counters"]
    return sum(int(counters[name]) for name in COUNTED)


def shelf(folder: Path, faults: int, seed: int, say: Callable[[str], None]) -> Tally:
    """Damage records under a cache of every law, without a model."""
    bench = Shelves(folder)
    with closing(bench.start()) as cache:
        subjects = [
            Subject(name, partial(_is_cold, cache, told), partial(told.files, cache, folder))
            for name, told in CONVERSATIONS.items()
        ]
        for subject in subjects:
            subject.turn()
        return run(subjects, faults, Random(seed), counted=partial(damages, cache), say=say)


def _is_cold(cache: Cache, told: Told) -> bool:
    try:
        take_turn(cache, told)
    except AssertionError:
        return False
    return True


# Under a serving process.

WALK = "Tell me about a long walk in the hills, and name three birds that sing there. " * 3


def live(folder: Path, faults: int, seed: int, say: Callable[[str], None]) -> Tally:
    """Damage the records of a server of ``spark`` between its requests."""
    store = folder / "store"
    flags = ["--store", str(store), "--ram-bytes", "0", "--feature-ram-bytes", "0", "--idle", "0"]
    flags += ["--restore-floor-s", "60"]  # a disk that is slow is no fault here
    with ServerProcess("spark", folder / "server.log", flags) as process:
        client = process.client
        subjects = [
            _spoken(client, store, name, messages) for name, messages in _messages().items()
        ]

        def counted() -> int:
            counters = client.wait("status", lambda _: True, timeout_s=DRAIN_S)["counters"]
            return sum(int(counters[name]) for name in COUNTED)

        return run(subjects, faults, Random(seed), counted=counted, say=say)


def _messages() -> dict[str, list[dict[str, Any]]]:
    texts = {"walk": "You are a guide.", "birds": "You know birds.", "brief": "Answer briefly."}
    told: dict[str, list[dict[str, Any]]] = {
        name: [{"role": "system", "content": text}, {"role": "user", "content": WALK}]
        for name, text in texts.items()
    }
    for colour in ("red", "blue"):
        picture = shown(solid(COLOURS[colour]))
        asked = user(picture, said("One word: what color?"))
        # Long enough to restore something, and short enough to need the features for the rest.
        told[colour] = [{"role": "system", "content": "You are a helpful assistant."}, asked]
    return told


def _spoken(client: Client, store: Path, name: str, messages: Sequence[dict[str, Any]]) -> Subject:
    """Ask once, so that the files which appear are known to be this conversation's."""
    body = {"model": "spark", "messages": messages, "max_tokens": 2, "temperature": 0}
    body |= {"logprobs": True, "top_logprobs": 3}
    cold = client.ask(body, mode="bypass").bits
    before = set(store.glob("records/*/*.rec"))
    client.ask(body)
    client.wait_written()
    files = _read_back(set(store.glob("records/*/*.rec")) - before)

    def take() -> bool:
        same = client.ask(body).bits == cold
        client.wait_written()
        return same

    return Subject(name, take, lambda: [path for path in files if path.exists()])


def _read_back(files: set[Path]) -> list[Path]:
    """Return the files that a whole restore reads: of snapshots, the last one alone."""
    snapshots = [path for path in files if ".snapshot" in path.name]
    last = max(snapshots, key=_end, default=None)
    return sorted(path for path in files if path not in snapshots or path == last)


def _end(path: Path) -> int:
    header = read_header(path.read_bytes())
    return header.block.end if isinstance(header, Header) else 0


def main(arguments: list[str]) -> int:
    """Damage as many records as told, print how it ended, and return 1 if it did not end well."""
    parser = argparse.ArgumentParser(prog="damage", description="Damage stored records.")
    parser.add_argument("--faults", type=int, default=10_000, help="without a model")
    parser.add_argument("--live-faults", type=int, default=0, help="under a server of spark")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    ended = []
    for what, faults in ((shelf, options.faults), (live, options.live_faults)):
        for first in range(0, faults, STORE_FAULTS):
            seed, some = options.seed + first, min(faults - first, STORE_FAULTS)
            with tempfile.TemporaryDirectory() as folder:
                tally = what(Path(folder), some, seed, print)
            print(f"{what.__name__}, seed {seed}: {tally}", flush=True)
            ended.append(tally)
    print(f"in all: {sum(ended, Tally())}", flush=True)
    return 0 if all(tally.sound for tally in ended) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
