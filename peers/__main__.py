"""Probe other people's servers and ours, one at a time.

python -m peers setup [NAME ...]        install what the servers need, below .peers/
python -m peers run [NAME ...]          install, start, probe and stop each; then the tables
python -m peers serve NAME              start one and leave it running; prints its URL
python -m peers restart NAME            stop it and start it on the same port
python -m peers stop NAME
python -m peers table                   the tables of the results there are

Options that are not known here go to the probe: python -m peers run llama --legs=fork
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from peers.installing import install
from peers.results import keep, kept, legs_table, reasons, results_folder, summary_table
from peers.running import PeerError, free_port, restart, start, stop
from peers.servers import PEERS, Peer

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".peers"
VERBS = ("setup", "run", "serve", "restart", "stop", "table")
BUDGET_S = 1_200  # twice the default: a restart takes some of these a minute on two cores
VERDICTS = (0, 1, 3, 4)  # exit codes of the probe that are an answer; the others are an error


def main() -> int:
    """Do what the command line says; return 1 if a peer could not be set up, run or probed."""
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(PEERS)}")
    parser.add_argument("--seed", type=int, default=1)
    chosen, for_probe = parser.parse_known_args()
    if unknown := set(chosen.names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if for_probe and chosen.verb != "run":
        parser.error(f"no such option: {' '.join(for_probe)}")
    if chosen.verb == "table":
        return _show(list(PEERS))
    names = chosen.names or list(PEERS)
    failed = [name for name in names if not _do(chosen.verb, PEERS[name], chosen.seed, for_probe)]
    if chosen.verb == "run":
        _show(names)
    return 1 if failed else 0


def _do(verb: str, peer: Peer, seed: int, for_probe: Sequence[str]) -> bool:
    """Do one thing with one peer; say why not, so that the others still have their turn."""
    try:
        match verb:
            case "setup":
                install(peer, HOME)
            case "run":
                install(peer, HOME)
                return _probe(peer, seed, for_probe)
            case "serve":
                print(start(peer, HOME, free_port()).url)
            case "restart":
                restart(peer, HOME)
            case "stop":
                stop(peer, HOME)
    except (PeerError, subprocess.CalledProcessError, httpx.HTTPError, OSError) as error:
        print(f"{peer.name}: {error}", file=sys.stderr)
        return False
    return True


def _probe(peer: Peer, seed: int, more: Sequence[str]) -> bool:
    results_folder(HOME).mkdir(parents=True, exist_ok=True)
    print(f"== {peer.server} {peer.version}", file=sys.stderr)
    running = start(peer, HOME, free_port())
    again = shlex.join((sys.executable, "-m", "peers", "restart", peer.name))
    report = results_folder(HOME) / f"{peer.name}.html"
    try:
        ended = subprocess.run(
            (
                *(sys.executable, "-m", "surefoot", "probe", running.url, "--json"),
                *("--html", str(report), "--seed", str(seed), "--restart-cmd", again),
                *("--budget-seconds", str(BUDGET_S), *more),
            ),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        stop(peer, HOME)
    if ended.returncode not in VERDICTS:
        print(f"{peer.name}: the probe ended with {ended.returncode}", file=sys.stderr)
        return False
    keep(peer, HOME, ended.returncode, ended.stdout)
    return True


def _show(names: Sequence[str]) -> int:
    results = kept(HOME, names)
    if not results:
        print("there are no results yet", file=sys.stderr)
        return 1
    print(summary_table(results), legs_table(results), reasons(results), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
