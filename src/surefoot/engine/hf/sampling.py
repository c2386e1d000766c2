"""Choosing one token from one row of logits: a pure function of logits, history, seed and position.

The order of the steps is the field's: bias, penalties, temperature, top-k, top-p, min-p, draw. Each
step is what transformers' own logits processor of that name does. Two things differ on purpose.
Equal scores are never split by the order of a sort: at an edge of top-k and top-p all of them are
kept, and a greedy choice takes the lowest id. And the draw uses no generator object: one number in
[0, 1) is mixed from (seed, position), so a token depends neither on how many were drawn before it
nor on torch's version. Everything runs on the CPU, whatever device the model is on.
"""

import math
from array import array
from collections.abc import Sequence

import torch

from surefoot.engine import Sampled, Sampling
from surefoot.errors import EngineError

_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # splitmix64's increment (Steele, Lea, Flood 2014)
_LIKELY_NUCLEUS = 1024  # most nuclei are smaller; a full sort of a vocabulary takes milliseconds


def choose(
    logits: torch.Tensor,
    *,
    prompt_ids: Sequence[int],
    generated: Sequence[int],
    sampling: Sampling,
    position: int,
) -> Sampled:
    """Choose the token that follows ``position`` tokens.

    Args:
        logits: [vocab], as the model gave them; left unchanged.
        prompt_ids: the prompt's tokens, for the repetition penalty.
        generated: the tokens chosen so far, for all penalties.
        sampling: how to choose; temperature 0 is greedy.
        position: tokens consumed so far; with ``sampling.seed`` it decides the draw.

    Raises:
        EngineError: the logits hold NaN or positive infinity.
    """
    row = logits.detach().to(device="cpu", dtype=torch.float32)
    if not math.isfinite(row.max().item()):
        raise EngineError(f"the model's logits after {position} tokens are not finite")
    scores = _penalized(_biased(row, sampling), prompt_ids, generated, sampling)
    if sampling.temperature == 0:
        token = int(scores.argmax())  # the first of equal ones, as torch documents
    else:
        token = _draw(scores, sampling, _uniform(sampling.seed, position))
    if sampling.top_logprobs is None:
        return Sampled(token)
    logprobs = row.log_softmax(-1)
    return Sampled(token, logprobs[token].item(), _top(logprobs, sampling.top_logprobs))


def _biased(row: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    # A token outside the vocabulary cannot be chosen, so a bias on it changes nothing.
    bias = {token: value for token, value in sampling.logit_bias.items() if 0 <= token < len(row)}
    if not bias:
        return row
    scores = row.clone()
    scores[torch.tensor(list(bias))] += torch.tensor(list(bias.values()), dtype=torch.float32)
    return scores


def _penalized(
    scores: torch.Tensor, prompt_ids: Sequence[int], generated: Sequence[int], sampling: Sampling
) -> torch.Tensor:
    if sampling.repetition_penalty != 1.0 and (prompt_ids or generated):
        seen = _ids((*prompt_ids, *generated))
        old = scores[seen]
        factor = sampling.repetition_penalty
        scores = scores.index_put((seen,), torch.where(old < 0, old * factor, old / factor))
    if generated and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = torch.bincount(_ids(generated), minlength=len(scores))
        scores = scores - counts * sampling.frequency_penalty
        scores = scores - (counts > 0) * sampling.presence_penalty
    return scores


def _ids(tokens: Sequence[int]) -> torch.Tensor:
    # Ten times faster than torch.tensor on a long list.
    return torch.frombuffer(array("q", tokens), dtype=torch.int64)


def _draw(scores: torch.Tensor, sampling: Sampling, uniform: float) -> int:
    # Shifted by the maximum and in float64, so that no temperature > 0 makes a NaN.
    scores = scores.double()
    scores = (scores - scores.max()) / sampling.temperature
    ids: torch.Tensor | None = None
    if 0 < sampling.top_k < len(scores):
        ids, scores = _keep(ids, scores, scores >= scores.topk(sampling.top_k).values[-1])
    weights = scores.exp()
    if sampling.top_p < 1.0:
        ids, weights = _keep(ids, weights, weights >= _nucleus_floor(weights, sampling.top_p))
    if sampling.min_p > 0.0:
        ids, weights = _keep(ids, weights, weights >= sampling.min_p * weights.max())
    mass = weights.cumsum(0)
    # A float64 below 1 times the total is below the total, so a token with mass is always found.
    at = int(torch.searchsorted(mass, uniform * mass[-1], right=True))
    return at if ids is None else int(ids[at])


def _keep(
    ids: torch.Tensor | None, values: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    at = kept.nonzero()[:, 0]
    return (at if ids is None else ids[at]), values[at]


def _nucleus_floor(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    # A token belongs to the nucleus while the mass of those before it is below top_p.
    wanted = weights.sum() * top_p
    ranked = weights.topk(min(_LIKELY_NUCLEUS, len(weights))).values
    if ranked.sum() < wanted:
        ranked = weights.sort(descending=True).values
    # Rounding may leave the whole vocabulary below what is wanted; then all of it is kept.
    inside = int(torch.searchsorted(ranked.cumsum(0), wanted))
    return ranked[min(inside, len(ranked) - 1)]


def _top(logprobs: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    count = min(count, len(logprobs))
    ids, values = _keep(None, logprobs, logprobs >= logprobs.topk(count).values[-1])
    ranked, order = values.sort(descending=True, stable=True)  # equal ones by lowest id
    pairs = zip(ids[order[:count]].tolist(), ranked[:count].tolist(), strict=True)
    return tuple(pairs)


def _uniform(seed: int, position: int) -> float:
    word = _mixed((_mixed(seed & _WORD) + position) & _WORD)
    return (word >> 11) / (1 << 53)


def _mixed(word: int) -> int:
    # One step of splitmix64: every bit of the input reaches every bit of the output.
    word = (word + _STEP) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
