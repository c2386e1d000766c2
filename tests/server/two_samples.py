"""Whether two samples look as if drawn from one source: a permutation test of their medians' place.

The statistic is Mann-Whitney's U, the number of pairs in which the first is the larger one; its
distribution is found by dealing the pooled values out anew, with a seed.
"""

import random
from itertools import pairwise

DEALS = 2000


def p_value(first, second, *, seed=0):
    """How often chance alone sets two samples as far apart as these; small: they differ."""
    ranks = _ranks([*first, *second])
    expected = sum(ranks) * len(first) / len(ranks)
    found = abs(sum(ranks[: len(first)]) - expected)
    deal = random.Random(seed)
    beyond = 0
    for _ in range(DEALS):
        deal.shuffle(ranks)
        beyond += abs(sum(ranks[: len(first)]) - expected) >= found
    return (beyond + 1) / (DEALS + 1)


def _ranks(values):
    """The rank of each value; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    starts = [0]
    for at, (one, next_one) in enumerate(pairwise(order), 1):
        if values[one] != values[next_one]:
            starts.append(at)
    ranks = [0.0] * len(values)
    for start, end in pairwise([*starts, len(values)]):
        for one in order[start:end]:
            ranks[one] = (start + end - 1) / 2
    return ranks
