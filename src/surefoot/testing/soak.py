"""``make soak``: a crowd at one server for as long as one likes; memory and open files stay flat.

The crowds of a few seeds take turns, over and over, at a server whose RAM and SSD tiers hold a part
of what they say: everything is evicted, restored, computed and written again, as on a server that
has run for weeks. Every answer is held against the cold one. Between two waves, when nothing runs
and everything is written, the server's resident bytes and open files are counted in ``/proc``.

The slope is a least-squares line through the samples after a warm-up, in which tiers, pools of
memory and lazily made things fill up. A run is good if that line rises by less than 1 % of its mean
from the first sample to the last, no more files are open, and no answer was wrong.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from surefoot.bench.client import Client
from surefoot.bench.process import ServerProcess
from surefoot.testing.crowds import KEYS, Ask, Crowd, References, faults, visit, wait_at_rest

SESSION_BYTES = 1_100_000  # that one client's session stores, measured
HELD_SESSIONS = 1 / 3  # of all: what the SSD tier has room for
RAM_SHARE = 1 / 4  # of the SSD tier's room
WARM_UP = 0.4  # of the run: its samples are shown and not counted
SLOPE_MOST = 0.01  # of the mean, over what was counted of the run
# One thread a forward pass: the number decides bits, and the reference's must be the server's.
FLAGS = ("--threads", "1", "--restore-floor-s", "60", "--free-floor", "0")


@dataclass(frozen=True, slots=True)
class Sample:
    """The server between two waves."""

    at_s: float  # since the first wave began
    resident: int  # bytes
    files: int  # open ones, and folders
    sockets: int


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares line through resident bytes over time."""

    mean: float  # bytes
    slope: float  # bytes per second
    over_s: float  # from the first sample to the last

    @property
    def share(self) -> float:
        """What the line rises by over its length, as a share of the mean."""
        return self.slope * self.over_s / self.mean

    @classmethod
    def through(cls, samples: Sequence[Sample]) -> "Line":
        """Fit two samples or more, at different times."""
        assert len(samples) >= 2, samples
        times = [one.at_s for one in samples]
        middle = sum(times) / len(times)
        mean = sum(one.resident for one in samples) / len(samples)
        rise = sum((one.at_s - middle) * (one.resident - mean) for one in samples)
        return cls(mean, rise / sum((at - middle) ** 2 for at in times), times[-1] - times[0])


@dataclass(slots=True)
class Soak:
    """What a run found."""

    samples: list[Sample] = field(default_factory=list)
    answers: int = 0
    restored: int = 0  # tokens
    wrong: list[str] = field(default_factory=list)
    evictions: dict[str, int] = field(default_factory=dict)  # by tier

    @property
    def counted(self) -> list[Sample]:
        """The samples after the warm-up; the last two if there are no more."""
        begins = self.samples[-1].at_s * WARM_UP
        return [one for one in self.samples[:-2] if one.at_s >= begins] + self.samples[-2:]

    @property
    def line(self) -> Line:
        """The line through resident bytes after the warm-up."""
        return Line.through(self.counted)

    @property
    def more_files(self) -> int:
        """How many more files are open at the end of the run than when counting began."""
        return self.counted[-1].files - self.counted[0].files

    @property
    def more_sockets(self) -> int:
        """How many more connections are, likewise; no client is there when they are counted."""
        return self.counted[-1].sockets - self.counted[0].sockets

    @property
    def flat(self) -> bool:
        """Whether nothing grew and nothing was wrong."""
        grew = self.more_files > 0 or self.more_sockets > 0
        return self.line.share < SLOPE_MOST and not grew and not self.wrong


def soak(
    folder: Path,
    crowds: Sequence[Crowd],
    *,
    seconds: float,
    waves: int = 2,
    say: Callable[[Sample], None],
) -> Soak:
    """Let the crowds take turns for so long, and for so many waves.

    Args:
        folder: an empty one to use.
        crowds: each is one wave; cold answers to all of them are computed first.
        seconds: after which no new wave begins,
        waves: unless there were fewer than these; two or more.
        say: called with each sample.
    """
    found = Soak()
    sessions = sum(len(crowd.scripts) for crowd in crowds)
    room = int(sessions * SESSION_BYTES * HELD_SESSIONS)
    with ServerProcess("spark", folder / "cold.log", ["--store", "off", *FLAGS]) as process:
        references = References(process.client)
        for crowd in crowds:
            for ask in (ask for script in crowd.scripts for ask in script):
                references.of(ask)
    flags = ["--store", str(folder / "store"), *FLAGS, "--ssd-bytes", str(room)]
    flags += ["--ram-bytes", str(int(room * RAM_SHARE))]
    flags += [flag for key in KEYS for flag in ("--api-key", key)]
    with ServerProcess("spark", folder / "soak.log", flags) as process:
        client = Client(process.client.url, KEYS[0])
        begun = time.monotonic()
        while time.monotonic() - begun < seconds or len(found.samples) < waves:
            _wave(crowds[len(found.samples) % len(crowds)], client, references, found)
            found.samples.append(sample(process.pid, time.monotonic() - begun))
            say(found.samples[-1])
        client.close()
    return found


def _wave(crowd: Crowd, client: Client, references: References, found: Soak) -> None:
    heard = visit([_known(script) for script in crowd.scripts], [client.url])
    for one in heard:
        found.answers += 1
        found.restored += one.answer.receipt["restored_tokens"] if one.answer else 0
        found.wrong += faults(one, references.of(one.ask), crowd.canaries)
    status = wait_at_rest(client)
    found.evictions = {tier: one["evictions"] for tier, one in status["tiers"].items()}


def _known(script: Sequence[Ask]) -> list[Ask]:
    """Return a script as it is from its second time on: hits are welcome and not owed."""
    return [replace(ask, unseen=False) for ask in script]


def sample(pid: int, at_s: float) -> Sample:
    """Count a process's resident bytes and what it has open."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    files = sockets = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(one)
        except FileNotFoundError:
            continue  # closed since it was listed
        files += target.startswith("/")
        sockets += target.startswith("socket:")
    return Sample(at_s, pages * os.sysconf("SC_PAGE_SIZE"), files, sockets)


def main(arguments: Sequence[str]) -> int:
    """Soak as told on the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="make soak", description="A long run of a crowd.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--crowds", type=int, default=3, help="that take turns")
    options = parser.parse_args(arguments)
    crowds = [Crowd(seed, options.clients, thin=True) for seed in range(options.crowds)]

    def say(one: Sample) -> None:
        print(
            f"{one.at_s:7.1f} s  {one.resident / 1e6:8.1f} MB resident, {one.files} files and "
            f"{one.sockets} sockets open",
            flush=True,
        )

    print("computing the cold answers", flush=True)
    with tempfile.TemporaryDirectory(prefix="surefoot-soak-") as folder:
        found = soak(Path(folder), crowds, seconds=60 * options.minutes, say=say)
    line = found.line
    print(
        f"{found.answers} answers, {found.restored} tokens restored, evictions {found.evictions}; "
        f"{len(found.wrong)} answers wrong"
    )
    print(
        f"from {found.counted[0].at_s:.0f} s on, {len(found.counted)} samples: "
        f"{line.mean / 1e6:.1f} MB resident, slope {line.slope * 3600 / 1e6:+.2f} MB/h, "
        f"{100 * line.share:+.3f} % of the mean over the run; {found.more_files:+d} files, "
        f"{found.more_sockets:+d} sockets"
    )
    for wrong in found.wrong[:20]:
        print(wrong)
    print("flat" if found.flat else "NOT flat")
    return 0 if found.flat else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
