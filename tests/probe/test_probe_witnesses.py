"""The time test against a list of all orders."""

import itertools
from math import prod
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import Scene

from surefoot.probe.witnesses import (
    TTFT,
    Timed,
    Witnesses,
    chance_of,
    chance_of_failures,
    chance_of_hits,
    faster,
    speed_up_of,
)

LENGTH = 700


def timed(*seconds, length=LENGTH):
    return [Timed(length, one) for one in seconds]


def chance_by_listing(warm, controls):
    """The oracle: every way to say which of the times are the warm ones."""
    times = [*warm, *controls]

    def rank_sum(chosen):
        ranks = [
            sum(other < times[at] for other in times)
            + (sum(other == times[at] for other in times) + 1) / 2
            for at in chosen
        ]
        return sum(ranks)

    seen = rank_sum(range(len(warm)))
    sums = [rank_sum(chosen) for chosen in itertools.combinations(range(len(times)), len(warm))]
    return sum(one <= seen for one in sums) / len(sums)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
)
def test_the_chance_is_that_of_all_orders_listed(warm, controls):
    expected = chance_by_listing(warm, controls)
    assert chance_of(timed(*warm), timed(*controls)) == pytest.approx(expected)


def test_the_least_chance_is_one_in_all_choices():
    assert chance_of(timed(1, 2, 3), timed(4, 5, 6, 7, 8, 9, 10)) == 1 / 120
    assert chance_of(timed(11, 12, 13), timed(4, 5, 6)) == 1


def test_lengths_are_strata_and_their_evidence_adds_up():
    warm = timed(1, 1.1, length=300) + timed(3, 3.1, length=900)
    controls = timed(2, 2.1, length=303) + timed(6, 6.1, length=895)
    assert chance_of(warm, controls) == pytest.approx(1 / 36)
    # Short prompts beside long ones are no witnesses of anything.
    assert chance_of(timed(1, 2, length=300), timed(6, 7, length=900)) is None


def test_a_control_serves_one_stratum_only():
    warm = timed(1, length=700) + timed(1, length=736)
    assert chance_of(warm, timed(5, length=718)) == 1 / 2


def test_under_the_null_the_error_rate_is_kept():
    """Every order of eight times is equally likely; at most 5 % of them may look warm."""
    chances = [
        chance_of(timed(*(order[at] for at in range(3))), timed(*order[3:]))
        for order in itertools.permutations(range(1, 8))
    ]
    for rate in (0.03, 0.05, 0.2):
        assert sum(one <= rate for one in chances) / len(chances) <= rate


def test_the_speed_up_is_a_ratio_of_medians_within_equal_lengths():
    warm = timed(1, 2, 3, length=300) + timed(10, length=900)
    controls = timed(4, 6, 8, length=300) + timed(50, length=900)
    assert speed_up_of(warm, controls) == median([6 / 2, 50 / 10])
    assert speed_up_of(warm, []) is None


def test_faster_is_beyond_chance_and_beyond_what_lengths_explain():
    controls = timed(*(1 + at * 1e-6 for at in range(8)))
    assert faster(timed(0.5, 0.5001, 0.5002), controls, error_rate=0.01)
    assert not faster(timed(0.5), controls, error_rate=0.01)
    # Never-seen prompts that are five tokens in a hundred shorter are always a little faster.
    assert chance_of(timed(0.95, 0.951, 0.952), controls) < 0.01
    assert not faster(timed(0.95, 0.951, 0.952), controls, error_rate=0.01)
    assert not faster([], controls, error_rate=1)


@pytest.mark.parametrize(
    ("offered", "shown", "proven"),
    [
        ((), (TTFT,), True),
        ((), (), False),
        (("cached_tokens",), (TTFT,), False),
        (("cached_tokens",), ("cached_tokens",), False),
        (("cached_tokens",), ("cached_tokens", TTFT), True),
        (("cached_tokens", "receipt"), ("cached_tokens", TTFT), False),
    ],
)
def test_reuse_is_proven_by_time_and_every_counter_there_is(offered, shown, proven):
    assert Witnesses(offered=offered, shown_by=shown).proven is proven


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
def test_the_chance_of_failures_is_that_of_all_ways_to_deal_them(failed, right, cold, right_cold):
    of, of_cold = failed + right, cold + right_cold
    places = [*range(of + of_cold)]
    deals = [*itertools.combinations(places, failed + cold)]
    as_many = sum(sum(place < of for place in deal) >= failed for deal in deals)
    chance = chance_of_failures(failed, of, failed_cold=cold, of_cold=of_cold)
    assert chance == pytest.approx(as_many / len(deals))


@given(st.integers(0, 6), st.integers(0, 6), st.fractions(0, 1, max_denominator=9))
def test_the_chance_of_hits_is_that_of_all_ways_they_can_fall(hits, tries, each):
    falls = itertools.product((True, False), repeat=tries)
    enough = [
        prod(each if hit else 1 - each for hit in fall) for fall in falls if sum(fall) >= hits
    ]
    chance = chance_of_hits(hits, tries, each=float(each))
    assert chance == pytest.approx(float(sum(enough)), abs=1e-12)


def test_controls_are_alike_from_half_the_length_on():
    scene = Scene(controls=0)
    scene.trail.controls += (timed := [Timed(tokens, 1.0) for tokens in (299, 300, 900)])
    assert scene.trail.controls_like(600) == timed[1:]
