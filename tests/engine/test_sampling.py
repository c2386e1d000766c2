"""Sampling against transformers' own logits processors, over the whole distribution."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from surefoot.engine import Sampling
from surefoot.engine.hf import sampling as room
from surefoot.engine.hf.sampling import choose
from surefoot.errors import EngineError

VOCAB = 12
PROMPT = (3, 5, 3, 7)
GREEDY = Sampling(temperature=0.0)


def logits_of(seed, vocab=VOCAB, scale=2.0):
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale


def pick(logits, sampling, *, prompt=PROMPT, generated=(), position=9):
    return choose(
        logits, prompt_ids=prompt, generated=generated, sampling=sampling, position=position
    )


def distribution(logits, sampling, prompt, generated):
    """What transformers' processors make of the logits, in the order that ``generate`` has."""
    scores = logits.clone()[None]
    history = torch.tensor([[*prompt, *generated]])
    if sampling.logit_bias:
        bias = {(token,): value for token, value in sampling.logit_bias.items()}
        scores = SequenceBiasLogitsProcessor(bias)(history, scores)
    if sampling.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(history, scores)
    for token in range(scores.shape[1]):  # OpenAI's formula, in its own words
        count = list(generated).count(token)
        scores[0, token] -= count * sampling.frequency_penalty
        scores[0, token] -= float(count > 0) * sampling.presence_penalty
    scores = TemperatureLogitsWarper(sampling.temperature)(history, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(history, scores)
    if sampling.top_p < 1.0:
        scores = TopPLogitsWarper(sampling.top_p)(history, scores)
    if sampling.min_p > 0.0:
        scores = MinPLogitsWarper(sampling.min_p)(history, scores)
    return scores[0].double().softmax(-1)


def chosen_at(monkeypatch, uniform, *args, **kwargs):
    monkeypatch.setattr(room, "_uniform", lambda seed, position: uniform)
    return pick(*args, **kwargs).token


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    min_p=st.sampled_from([0.0, 0.05, 0.4]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 0.8]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 0.6]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 2.0])),
)


@settings(max_examples=150)
@given(SAMPLINGS, st.integers(0, 10_000), st.lists(st.integers(0, VOCAB - 1), max_size=5))
def test_every_draw_is_the_one_transformers_distribution_asks_for(sampling, seed, generated):
    logits = logits_of(seed)
    expected = distribution(logits, sampling, PROMPT, generated)
    edges = [0.0, *expected.cumsum(0).tolist()]
    with pytest.MonkeyPatch.context() as patch:
        for token in range(VOCAB):
            width = edges[token + 1] - edges[token]
            if width > 1e-5:
                for part in (0.01, 0.5, 0.99):
                    uniform = edges[token] + part * width
                    drawn = chosen_at(patch, uniform, logits, sampling, generated=generated)
                    assert drawn == token, (uniform, edges)


@settings(max_examples=100)
@given(SAMPLINGS, st.integers(0, 10_000), st.lists(st.integers(0, VOCAB - 1), max_size=5))
def test_greedy_takes_the_most_likely_token_after_bias_and_penalties(sampling, seed, generated):
    logits = logits_of(seed)
    plain = replace(sampling, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    expected = int(distribution(logits, plain, PROMPT, generated).argmax())
    greedy = replace(sampling, temperature=0.0)
    assert pick(logits, greedy, generated=generated).token == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_lowest_id_of_equal_ones(dtype):
    for first in range(40):
        logits = torch.full((49_152,), -3.0, dtype=dtype)
        logits[first * 977 :: 1_231] = 2.0
        assert pick(logits, GREEDY).token == int((logits == 2.0).nonzero()[0])


def test_equal_scores_at_the_edge_of_top_k_are_all_kept(monkeypatch):
    logits = torch.tensor([1.0, 5.0, 1.0, 1.0])
    seen = {
        chosen_at(monkeypatch, place / 200, logits, Sampling(top_k=2, temperature=5.0))
        for place in range(200)
    }
    assert seen == {0, 1, 2, 3}


def test_equal_scores_at_the_edge_of_top_p_are_all_kept(monkeypatch):
    logits = torch.tensor([1.0, 2.0, 1.0, -9.0])
    sampling = Sampling(top_p=0.7)
    seen = {chosen_at(monkeypatch, place / 200, logits, sampling) for place in range(200)}
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(("min_p", "kept"), [(0.499, {0, 1}), (0.501, {0})])
def test_min_p_is_a_share_of_the_most_likely_token(monkeypatch, min_p, kept):
    logits = torch.tensor([math.log(2.0), 0.0, -3.0])
    sampling = Sampling(min_p=min_p)
    seen = {chosen_at(monkeypatch, place / 100, logits, sampling) for place in range(100)}
    assert seen == kept


@pytest.mark.parametrize("top_p", [0.02, 0.5, 0.95, 0.999999999])
def test_a_nucleus_larger_than_the_first_guess_is_found_whole(monkeypatch, top_p):
    logits = logits_of(1, vocab=5_000, scale=0.1)  # nearly flat
    expected = distribution(logits, Sampling(top_p=top_p), PROMPT, ())
    held = (expected > 0).nonzero()[:, 0]
    last = chosen_at(monkeypatch, 1 - 1e-9, logits, Sampling(top_p=top_p))
    first = chosen_at(monkeypatch, 0.0, logits, Sampling(top_p=top_p))
    assert (first, last) == (int(held[0]), int(held[-1]))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-6])
def test_a_vanishing_temperature_is_greedy_and_never_fails(monkeypatch, temperature, uniform):
    logits = logits_of(4)
    token = chosen_at(monkeypatch, uniform, logits, Sampling(temperature=temperature))
    assert token == int(logits.argmax())


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_extremes_of_the_draw_never_choose_an_impossible_token(monkeypatch, uniform):
    logits = torch.tensor([-math.inf, 1.0, -math.inf, 1.0, -math.inf])
    token = chosen_at(monkeypatch, uniform, logits, Sampling())
    assert token == (1 if uniform == 0.0 else 3)


def test_a_token_that_is_biased_away_is_not_drawn():
    logits = logits_of(2)
    best = int(logits.argmax())
    sampling = Sampling(logit_bias={best: -100.0})
    assert all(pick(logits, sampling, position=at).token != best for at in range(300))


def test_a_bias_on_a_token_outside_the_vocabulary_changes_nothing():
    logits = logits_of(2)
    for at in range(50):
        biased = Sampling(logit_bias={VOCAB: 100.0, -1: 100.0, 2**31: 100.0})
        assert pick(logits, biased, position=at) == pick(logits, Sampling(), position=at)


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        ({"presence_penalty": 1.0}, [5.0, 4.5, 5.2]),
        ({"frequency_penalty": 1.0}, [3.0, 4.5, 5.2]),
        ({"repetition_penalty": 2.0}, [3.0, 2.75, 5.2]),
    ],
)
def test_presence_counts_once_frequency_counts_each_and_repetition_divides(penalty, expected):
    logits = torch.tensor([6.0, 5.5, 5.2])
    sampling = replace(GREEDY, **penalty)
    found = room._penalized(logits, (), (0, 0, 0, 1), sampling)
    assert found.tolist() == pytest.approx(expected)


def test_the_same_call_gives_the_same_token_and_leaves_the_logits_alone():
    logits = logits_of(3, vocab=1_000)
    before = logits.clone()
    sampling = Sampling(
        seed=5, top_k=9, logit_bias={1: 2.0}, repetition_penalty=1.2, presence_penalty=1.0
    )
    first = pick(logits, sampling, generated=(4, 4))
    torch.rand(7)  # torch's own generator has no say
    assert pick(logits, sampling, generated=(4, 4)) == first
    assert logits.equal(before)


def test_draws_follow_seed_and_position_and_nothing_else():
    logits = torch.zeros(1_000_000)
    tokens = {
        (seed, at): pick(logits, Sampling(seed=seed), position=at).token
        for seed in (0, 1, 2**63, 2**64 - 1)
        for at in range(20)
    }
    assert len(set(tokens.values())) == len(tokens)
    other = pick(logits, Sampling(seed=1), prompt=(9,), generated=(1, 2), position=3).token
    assert other == tokens[1, 3]


def test_draws_are_uniform():
    # 40,000 draws over 16 equal tokens; chi-square with 15 degrees stays under 44 but for 1 in 1e4.
    counts = [0] * 16
    for seed in range(200):
        for position in range(200):
            counts[int(room._uniform(seed, position) * 16)] += 1
    expected = 40_000 / 16
    assert sum((count - expected) ** 2 / expected for count in counts) < 44


def test_the_mixed_number_is_fixed_for_ever():
    # A seed that a client kept must give the same answer after an upgrade. The first line is
    # splitmix64's published first output for seed 0.
    assert room._mixed(0) == 0xE220A8397B1DCDAF
    assert room._uniform(42, 1000) == room._uniform(42 + 2**64, 1000)
    assert min(room._uniform(0, at) for at in range(1000)) >= 0.0
    assert max(room._uniform(0, at) for at in range(1000)) < 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_of_the_unmodified_logits_in_float32(dtype):
    logits = logits_of(6, vocab=500).to(dtype)
    sampling = Sampling(
        temperature=0.0,
        logit_bias={7: 50.0},
        repetition_penalty=1.5,
        top_logprobs=5,
    )
    drawn = pick(logits, sampling)
    expected = logits.float().log_softmax(-1)
    assert drawn.token == 7
    assert drawn.logprob == expected[7].item()
    ranked = sorted(range(500), key=lambda token: (-expected[token].item(), token))[:5]
    assert drawn.top == tuple((token, expected[token].item()) for token in ranked)


def test_equal_logprobs_are_listed_by_lowest_id():
    logits = torch.zeros(5_000)
    logits[[4_000, 17, 2_500]] = 1.0
    drawn = pick(logits, replace(GREEDY, top_logprobs=5))
    assert [token for token, _ in drawn.top] == [17, 2_500, 4_000, 0, 1]


@pytest.mark.parametrize(("asked", "listed"), [(None, 0), (0, 0), (3, 3), (VOCAB + 5, VOCAB)])
def test_as_many_alternatives_as_asked_for_are_listed(asked, listed):
    drawn = pick(logits_of(8), replace(GREEDY, top_logprobs=asked))
    assert len(drawn.top) == listed
    assert (drawn.logprob is None) == (asked is None)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_p=0.5)])
def test_logits_that_are_no_numbers_are_an_error_of_the_engine(sampling, bad):
    logits = logits_of(9)
    logits[4] = bad
    with pytest.raises(EngineError, match="after 9 tokens are not finite"):
        pick(logits, sampling)


def test_penalties_on_an_empty_history_change_nothing():
    sampling = replace(GREEDY, repetition_penalty=2.0, presence_penalty=2.0)
    logits = logits_of(10)
    assert pick(logits, sampling, prompt=()).token == int(logits.argmax())
