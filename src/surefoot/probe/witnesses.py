"""Whether reuse took place: what counters say, and what time says.

A counter is the server's own word and may lie, so it is never believed alone. The other witness is
the time to the first token against never-seen controls of equal length: an exact one-sided rank
test, stratified by length. Under the null hypothesis (a warm prompt takes as long as a never-seen
one) every order of the times in a stratum is equally likely, so the chance of a rank sum this small
is counted, not estimated (Wilcoxon 1945; van Elteren 1960 for strata, here with equal weights).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from statistics import median

EQUAL_LENGTH = 0.05  # prompts whose lengths differ by less than this share count as equally long
TTFT = "ttft"
LEAST_SPEED_UP = 1.2  # equally long prompts may differ by twice 5 % in length, and so in time


@dataclass(frozen=True, slots=True)
class Timed:
    """One request's prompt length in tokens and its time to the first token."""

    prompt_tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What each witness says of a leg's warm requests.

    Attributes:
        offered: the counters this server gives.
        shown_by: the witnesses that showed reuse: counters by name, and ``ttft``.
        tokens: the most tokens a counter named, None without counters.
        chance: the probability that never-seen prompts are this fast, None if none was comparable.
        speed_up: median time of the controls over that of the warm requests, None likewise.
    """

    offered: tuple[str, ...] = ()
    shown_by: tuple[str, ...] = ()
    tokens: int | None = None
    chance: float | None = None
    speed_up: float | None = None

    @property
    def proven(self) -> bool:
        """Whether time and every counter on offer show reuse."""
        return TTFT in self.shown_by and set(self.offered) <= set(self.shown_by)


def faster(warm: Sequence[Timed], controls: Sequence[Timed], *, error_rate: float) -> bool:
    """Whether these are faster than never-seen prompts: beyond chance, and beyond their lengths."""
    return beyond(chance_of(warm, controls), speed_up_of(warm, controls), error_rate=error_rate)


def beyond(chance: float | None, speed_up: float | None, *, error_rate: float) -> bool:
    """Whether a chance and a speed-up, if there are any, show what ``faster`` asks for."""
    if chance is None or speed_up is None:
        return False
    return chance <= error_rate and speed_up >= LEAST_SPEED_UP


def chance_of(warm: Sequence[Timed], controls: Sequence[Timed]) -> float | None:
    """Return the probability of warm times this small if they were never-seen prompts' times.

    Args:
        warm: requests that should have reused state.
        controls: never-seen requests, of any length; the equally long ones are taken.

    Returns:
        The exact one-sided p, or None if no warm request has an equally long control.
    """
    strata = _strata(warm, controls)
    if not strata:
        return None
    sums: dict[int, int] = {0: 1}  # doubled rank sum -> number of orders
    seen = 0
    for times, others in strata:
        ranks = _doubled_ranks((*times, *others))
        seen += sum(ranks[: len(times)])
        sums = _convolved(sums, _rank_sums(len(times), tuple(sorted(ranks))))
    orders = sum(sums.values())
    return sum(count for value, count in sums.items() if value <= seen) / orders


def speed_up_of(warm: Sequence[Timed], controls: Sequence[Timed]) -> float | None:
    """Return the median, over strata, of the controls' median time over the warm one's."""
    ratios = [
        median(others) / max(median(times), 1e-9) for times, others in _strata(warm, controls)
    ]
    return median(ratios) if ratios else None


def chance_of_failures(failed: int, of: int, *, failed_cold: int, of_cold: int) -> float:
    """Return the probability of so many failures if warm requests failed as cold ones do.

    Fisher's exact test, one-sided: of all failures, so many or more would fall on the warm ones.
    """
    total, failures = of + of_cold, failed + failed_cold
    most = min(of, failures)
    ways = sum(comb(of, n) * comb(of_cold, failures - n) for n in range(failed, most + 1))
    return ways / comb(total, failures)


def chance_of_hits(hits: int, tries: int, *, each: float) -> float:
    """Return the probability of so many hits or more in independent tries (a binomial tail)."""
    fewer = (
        comb(tries, n) * each**n * (1 - each) ** (tries - n) for n in range(min(hits, tries + 1))
    )
    return max(0.0, 1 - sum(fewer))


def _strata(
    warm: Sequence[Timed], controls: Sequence[Timed]
) -> list[tuple[list[float], list[float]]]:
    """Group warm times with equally long controls; a control serves one group only."""
    groups: list[tuple[int, list[float]]] = []
    for one in sorted(warm, key=lambda timed: timed.prompt_tokens):
        if groups and one.prompt_tokens <= groups[-1][0] * (1 + EQUAL_LENGTH):
            groups[-1][1].append(one.ttft_s)
        else:
            groups.append((one.prompt_tokens, [one.ttft_s]))
    free = list(controls)
    strata = []
    for length, times in groups:
        near = [one for one in free if abs(one.prompt_tokens - length) <= length * EQUAL_LENGTH]
        free = [one for one in free if one not in near]
        if near:
            strata.append((times, [one.ttft_s for one in near]))
    return strata


def _doubled_ranks(times: Sequence[float]) -> list[int]:
    """Return the rank of each time, doubled so that shared ranks stay whole."""
    every = sorted(times)
    return [2 * every.index(one) + every.count(one) + 1 for one in times]


@cache
def _rank_sums(chosen: int, ranks: tuple[int, ...]) -> dict[int, int]:
    """Count, for every rank sum, the ways to choose so many of the ranks."""
    ways: list[dict[int, int]] = [{0: 1}] + [{} for _ in range(chosen)]
    for rank in ranks:
        for taken in range(chosen, 0, -1):
            for value, count in ways[taken - 1].items():
                ways[taken][value + rank] = ways[taken].get(value + rank, 0) + count
    return ways[chosen]


def _convolved(left: Mapping[int, int], right: Mapping[int, int]) -> dict[int, int]:
    sums: dict[int, int] = {}
    for a, ways in left.items():
        for b, more in right.items():
            sums[a + b] = sums.get(a + b, 0) + ways * more
    return sums
