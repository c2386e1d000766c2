"""``make crash``: kill servers and workers by the hundred, and see what their stores are worth.

    python -m surefoot.testing.kills [--server-kills 200] [--worker-kills 2000] [--seed N]

Prints the seed, the kills as they happen, figures, and every fault with the folder that shows it;
exits 1 if there is any. The seed decides every drawn number; what the machine makes of a moment
differs from run to run.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from threading import Lock

from surefoot.testing import kill_rounds, kill_servers

LANES = 2  # stores worked on at a time, one for each core of a small machine
_SHOWN_FAULTS = 20


@dataclass(slots=True)
class _Progress:
    """Counts kills on one line of the terminal, or by the hundred where there is none."""

    what: str
    kills: int
    done: int = 0
    lock: Lock = field(default_factory=Lock)

    def __call__(self, kills: int) -> None:
        """Take in the kills of one round."""
        with self.lock:
            before, self.done = self.done, self.done + kills
            if sys.stdout.isatty():
                sys.stdout.write(f"\r{self.what}: {self.done} of {self.kills}")
            elif before // 100 != self.done // 100:
                sys.stdout.write(f"{self.what}: {self.done} of {self.kills}\n")
            sys.stdout.flush()


def run_all(*, server_kills: int, worker_kills: int, seed: int, folder: Path) -> list[str]:
    """Run both parts, print their figures, and return the faults."""
    faults: list[str] = []
    parts: tuple[tuple[str, int, Callable[..., object]], ...] = (
        ("workers", worker_kills, kill_rounds.kill_workers),
        ("servers", server_kills, kill_servers.kill_servers),
    )
    for what, kills, kill in parts:
        if not kills:
            continue
        place = folder / what
        place.mkdir()
        began = time.monotonic()
        figures = kill(kills, seed=seed, lanes=LANES, folder=place, say=_Progress(what, kills))
        assert isinstance(figures, kill_rounds.Figures | kill_servers.Figures)
        took_s = time.monotonic() - began
        counted = [f"{value} {name}" for name, value in asdict(figures).items() if name != "faults"]
        verdict = f"{len(figures.faults)} faults, {took_s:.0f} s"
        sys.stdout.write(f"\n{what}: {', '.join(chain(counted, [verdict]))}\n")
        faults += figures.faults
    return faults


def main() -> int:
    """Read the arguments, run, and return the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--server-kills", type=int, default=200)
    options.add_argument("--worker-kills", type=int, default=2000)
    options.add_argument("--seed", type=int, default=int(time.time()))
    read = options.parse_args()
    sys.stdout.write(f"seed {read.seed}\n")
    folder = Path(tempfile.mkdtemp(prefix="surefoot-kills-"))
    faults = run_all(
        server_kills=read.server_kills,
        worker_kills=read.worker_kills,
        seed=read.seed,
        folder=folder,
    )
    for fault in faults[:_SHOWN_FAULTS]:
        sys.stdout.write(f"FAULT {fault}\n")
    if faults:
        sys.stdout.write(f"what was left is in {folder}\n")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
