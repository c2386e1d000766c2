"""Prove the prober: run it on every broken server and on every honest one, and count its mistakes.

``python -m surefoot.testing.probe_matrix --seeds 20`` prints a Markdown table. Time is virtual and
nothing is random but by the seed, so a row is the same on every machine. A miss is a run in which
no leg came to an expected verdict; a false alarm is a run in which a leg accuses a server of what
it does not do.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from surefoot.errors import CapacityError, RequestError
from surefoot.probe.asking import Asker
from surefoot.probe.legs import Leg
from surefoot.probe.run import Options, run_probe
from surefoot.probe.trail import Seen, Unsettled
from surefoot.probe.verdicts import LegReport, ProbeReport, Verdict
from surefoot.testing.broken_faults import Behaviour, Fault, Skills
from surefoot.testing.broken_server import BrokenTransport, Front, VirtualClock

KEYS = ("key-of-one", "key-of-two")
LIE = "counter lies"  # how a reason names a counter that lies
SEEDS = 20

_CONTAMINATED = frozenset({Verdict.CONTAMINATED})
_WRONG = frozenset({Verdict.WRONG})
_EITHER = _CONTAMINATED | _WRONG
_INCONCLUSIVE = frozenset({Verdict.INCONCLUSIVE})
_CLEAN = frozenset({Verdict.CLEAN})
_DRIFT = frozenset({Verdict.DRIFT})


@dataclass(frozen=True, slots=True)
class Subject:
    """A server that the probe is run on, and what it must say.

    Attributes:
        name: of the row.
        expected: at least one leg must end in one of these, or the run, for an honest server.
        alarms: verdicts that no leg may end in.
        behaviour: what the server offers.
        fault: what is wrong with it, None for an honest one.
        keys: what the probe is given.
        says: what the reason of an expected verdict holds.
    """

    name: str
    expected: frozenset[Verdict]
    alarms: frozenset[Verdict]
    behaviour: Behaviour
    fault: Fault | None = None
    keys: tuple[str, ...] = ()
    says: str = ""


# What each fault must be found to be; WRONG is right where nothing foreign is in the answer.
FAULTS: dict[Fault, frozenset[Verdict]] = {
    Fault.KEY_IGNORES_MEDIA: _CONTAMINATED,
    Fault.DIGEST_IGNORES_DIMENSIONS: _CONTAMINATED,
    Fault.DONOR_LENGTH: _CONTAMINATED,
    Fault.WRONG_BOUNDARY: _WRONG,
    Fault.SALT_IGNORED_ON_DISK: _CONTAMINATED,
    Fault.SALT_IGNORED: _CONTAMINATED,
    Fault.LAST_TOKEN_TWICE: _WRONG,
    Fault.SHARED_ENTRY: _CONTAMINATED,
    Fault.STALE_AFTER_RESTART: _EITHER,
    Fault.OTHER_WEIGHTS: _WRONG,
    Fault.COUNTER_TOO_HIGH: _INCONCLUSIVE,
    Fault.COUNTER_ZERO: _INCONCLUSIVE,
    Fault.POISONED: _WRONG,
    Fault.EVICTED_MIXUP: _CONTAMINATED,
    Fault.TOOLS_IGNORED_IN_KEY: _EITHER,
    Fault.THINKING_IGNORED_IN_KEY: _EITHER,
    Fault.REMOVED_IMAGE_KEPT: _CONTAMINATED,
    Fault.HANGS_ON_HIT: _WRONG,
    Fault.EMPTY_ON_HIT: _WRONG,
    Fault.WINDOW_LOST: _WRONG,
    Fault.ANSWER_SHIFTED: _WRONG,
    Fault.DONOR_LENGTH_BEYOND_1024: _CONTAMINATED,
    Fault.KEY_FIRST_PICTURE_ONLY: _CONTAMINATED,
    Fault.TOOLS_KEYED_BY_NAMES: _EITHER,
    Fault.SALT_FIRST_16_CHARACTERS: _CONTAMINATED,
    Fault.SALT_CASE_FOLDED: _CONTAMINATED,
    Fault.REWOUND: _EITHER,
    Fault.PICTURE_NUMBER_AFTER_RESTART: _CONTAMINATED,
    Fault.EVICTED_WHILE_SHARED: _EITHER,
    Fault.STRANGERS_IN_FLIGHT: _EITHER,
    Fault.SHARED_ENTRY_FROM_8: _CONTAMINATED,
    Fault.LONG_ANSWER_OVERWRITES: _WRONG,
    Fault.POISONED_IN_DECODE: _WRONG,
}
_HONEST_ALARMS = frozenset({Verdict.CONTAMINATED, Verdict.WRONG, Verdict.DRIFT})
# Where nothing foreign can be in an answer no leg may say that there is; where a counter lies, none
# may accuse the answers, or believe it.
_ALARMS: dict[frozenset[Verdict], frozenset[Verdict]] = {
    _CONTAMINATED: frozenset(),
    _EITHER: frozenset(),
    _WRONG: _CONTAMINATED,
    _INCONCLUSIVE: _HONEST_ALARMS | _CLEAN,
}


def broken(behaviour: Behaviour) -> list[Subject]:
    """Return every broken server that is like this one but for its fault."""
    silent = () if behaviour.offers_counters else (Fault.COUNTER_TOO_HIGH, Fault.COUNTER_ZERO)
    return [
        Subject(
            fault.value,
            expected,
            _ALARMS[expected],
            behaviour,
            fault,
            says=LIE if expected == _INCONCLUSIVE else "",
        )
        for fault, expected in FAULTS.items()
        if fault not in silent
    ]


def honest() -> list[Subject]:
    """Return honest servers that differ in what they offer, and in what that leaves provable."""

    def one(
        name: str,
        behaviour: Behaviour,
        expected: frozenset[Verdict] = _CLEAN,
        *,
        keys: tuple[str, ...] = (),
    ) -> Subject:
        alarms = _HONEST_ALARMS if behaviour.caches else _HONEST_ALARMS | _CLEAN
        return Subject(name, expected, alarms - expected, behaviour, keys=keys)

    apart = Behaviour(api_keys=KEYS, keys_apart=True)
    near = Skills(recall_tokens=700)
    none = Behaviour(caches=False)
    weak = Skills(secret=False, mine=False, colour=False, shape=False)
    return [
        one("plain", Behaviour()),
        one("blocks of 64", Behaviour(block_tokens=64)),
        one("blocks of 256", Behaviour(block_tokens=256)),
        one("one digit a token", Behaviour(digits_together=1)),
        one("keys apart", apart, keys=KEYS),
        one("no salts", Behaviour(knows_salts=False)),
        one("no images", Behaviour(sees_images=False)),
        one("no tools, no thinking", Behaviour(knows_tools=False, knows_thinking=False)),
        one("context of 2,048", Behaviour(context=2048)),
        one("no counters", Behaviour(offers_counters=False)),
        one("no logprobs", Behaviour(offers_logprobs=False)),
        one("no counters, no logprobs", Behaviour(offers_counters=False, offers_logprobs=False)),
        one("times vary by 40 %", Behaviour(unsteady=0.4)),
        one("noise of 0.02 nat", Behaviour(jitter=0.02), _DRIFT),
        one("noise of 0.2 nat", Behaviour(jitter=0.2), _DRIFT),
        one("no cache", none, _INCONCLUSIVE),
        one("no cache, no counters", replace(none, offers_counters=False), _INCONCLUSIVE),
        one("no cache, times vary by 40 %", replace(none, unsteady=0.4), _INCONCLUSIVE),
        one("does not repeat", Behaviour(repeats=False), _INCONCLUSIVE),
        one("finds no code", Behaviour(skills=weak), _INCONCLUSIVE),
        one("finds codes in 700 tokens", Behaviour(skills=near), _INCONCLUSIVE),
        one("blind", Behaviour(skills=Skills(colour=False, shape=False)), _INCONCLUSIVE),
    ]


class _Silent:
    """Watches a run and says nothing."""

    def learned(self, label: str, words: str) -> None:
        """Hear a fact of the server."""

    def began(self, leg: Leg, tokens: int) -> None:
        """Hear that a leg begins."""

    def asked(self, seen: Seen) -> None:
        """Hear of one exchange."""

    def ended(self, report: LegReport) -> None:
        """Hear how a leg ended."""


async def probed(subject: Subject, seed: int, legs: Sequence[str] = ()) -> ProbeReport:
    """Run the probe on a fresh server in virtual time."""
    clock = VirtualClock()
    front = Front(subject.fault, subject.behaviour, pass_time=clock.pass_time)

    async def restart() -> None:
        front.restart()

    asker = Asker(
        "http://broken/v1",
        keys=subject.keys,
        clock=clock.now,
        sleep=clock.pass_time,
        transport=BrokenTransport(front, clock.pass_time),
    )
    async with asker:
        return await run_probe(asker, Options(seed, legs=legs, restart=restart), _Silent())


@dataclass(slots=True)
class Row:
    """How the probe judged one server over all seeds.

    Attributes:
        subject: the server.
        caught: by leg, in how many runs it came to an expected verdict.
        seen: by verdict, how many legs ended in it.
        misses: seeds of runs without an expected verdict.
        alarms: seeds of runs with a verdict that no leg may come to, with the first reason.
    """

    subject: Subject
    caught: Counter[str] = field(default_factory=Counter)
    seen: Counter[Verdict] = field(default_factory=Counter)
    misses: list[int] = field(default_factory=list)
    alarms: dict[int, str] = field(default_factory=dict)
    doubts: Counter[str] = field(default_factory=Counter)

    def add(self, report: ProbeReport) -> None:
        """Count one run."""
        subject = self.subject
        self.seen.update(leg.verdict for leg in report.legs)
        hits = [
            leg.name
            for leg in report.legs
            if leg.verdict in subject.expected and subject.says in leg.reason
        ]
        self.caught.update(hits)
        found = bool(hits) if subject.fault else report.verdict in subject.expected
        if not found:
            self.misses.append(report.seed)
        alarms = [leg for leg in report.legs if leg.verdict in subject.alarms]
        if alarms:
            self.alarms[report.seed] = f"{alarms[0].name}: {alarms[0].reason}"
        unsure = (leg for leg in report.legs if leg.verdict is Verdict.INCONCLUSIVE)
        self.doubts.update(f"{leg.name}: {leg.reason}" for leg in unsure)


def matrix(subjects: Iterable[Subject], seeds: Sequence[int], legs: Sequence[str]) -> Iterator[Row]:
    """Yield a row for every server, of one run of the probe for each seed."""
    for subject in subjects:
        row = Row(subject)
        for seed in seeds:
            try:
                row.add(asyncio.run(probed(subject, seed, legs)))
            except (CapacityError, RequestError, Unsettled) as error:
                row.misses.append(seed)
                row.doubts[f"no report: {error}"] += 1
        yield row


def table(rows: Sequence[Row], runs: int) -> str:
    """Return the matrix in Markdown."""
    lines = [
        "| server | expected | legs that said so, in how many runs | misses | false alarms |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        expected = " or ".join(verdict for verdict in Verdict if verdict in row.subject.expected)
        if row.subject.fault:
            legs = ", ".join(f"{leg} {count}" for leg, count in row.caught.most_common())
        else:
            counts = sorted(row.seen.items(), key=lambda one: [*Verdict].index(one[0]))
            legs = ", ".join(f"{count} {verdict}" for verdict, count in counts)
        fault = row.subject.fault
        name = f"`{fault}`: {fault.says}" if fault else row.subject.name
        lines.append(
            f"| {name} | {expected} | {legs or 'none'} | {len(row.misses)} of {runs} "
            f"| {len(row.alarms)} of {runs} |"
        )
    misses, alarms = sum(len(row.misses) for row in rows), sum(len(row.alarms) for row in rows)
    lines.append(f"| all |  |  | {misses} of {runs * len(rows)} | {alarms} of {runs * len(rows)} |")
    return "\n".join(lines)


def _as_json(row: Row) -> dict[str, object]:
    return {
        "server": row.subject.name,
        "expected": sorted(row.subject.expected),
        "caught": dict(row.caught),
        "verdicts": {verdict.value: count for verdict, count in row.seen.items()},
        "misses": row.misses,
        "false_alarms": row.alarms,
        "inconclusive": dict(row.doubts.most_common(5)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the matrix; return 1 if there is a miss or a false alarm."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--seeds", type=int, default=SEEDS)
    reader.add_argument("--first-seed", type=int, default=1)
    kinds = {subject.name: subject for subject in honest()}
    reader.add_argument("--like", choices=kinds, default="plain", help="what the broken offer")
    reader.add_argument("--only", nargs="*", default=[], help="names of servers")
    reader.add_argument("--legs", nargs="*", default=[], help="names of legs")
    reader.add_argument("--json", action="store_true")
    given = reader.parse_args(argv)
    subjects = [*broken(kinds[given.like].behaviour), *kinds.values()]
    chosen = [one for one in subjects if not given.only or one.name in given.only]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    rows = []
    for row in matrix(chosen, seeds, given.legs):
        rows.append(row)
        said = f"{row.subject.name}: {len(row.misses)} misses, {len(row.alarms)} false alarms"
        print(said, file=sys.stderr, flush=True)
    shown = json.dumps([_as_json(row) for row in rows], indent=1) if given.json else None
    print(shown or table(rows, given.seeds))
    return int(any(row.misses or row.alarms for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
