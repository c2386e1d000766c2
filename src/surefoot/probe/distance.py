"""How far two answers are apart, in nats of log-probability.

Only a token before which both said the same is compared by size: the first, which is a function of
the state after the prompt alone, or the one where they part.
"""

from surefoot.probe.asking import Reply, Token

LIKELY_NAT = -4.6  # logprob of 1 %: below it differences of rounding grow and mean little


def distance_nat(one: Reply, other: Reply) -> float | None:
    """Return the largest difference of logprob over tokens likely in either answer.

    A token that only one of the two lists is taken to be as likely in the other as the least likely
    token listed there, so the distance is never overstated. None where either has no logprobs.
    """
    if not one.tokens or not other.tokens:
        return None
    return _apart(one.tokens[0], other.tokens[0])


def parting_nat(one: Reply, other: Reply) -> float | None:
    """Return the same of the first tokens that differ in text: up to there both said the same.

    A server that samples, or a choice between two tokens that are nearly as likely, is near there.
    None where nothing parts or either has no logprobs.
    """
    pairs = zip(one.tokens or (), other.tokens or (), strict=False)
    return next((_apart(*pair) for pair in pairs if pair[0].text != pair[1].text), None)


def _apart(one: Token, other: Token) -> float:
    left, right = _listed(one), _listed(other)
    gaps = [
        abs(left[text] - right[text])
        for text in left.keys() & right.keys()
        if max(left[text], right[text]) >= LIKELY_NAT
    ]
    gaps += _missing(left, right) + _missing(right, left)
    return max(gaps, default=0.0)


def _listed(token: Token) -> dict[str, float]:
    """Return the listed logprobs; of two tokens that read alike, the likelier one's."""
    listed: dict[str, float] = {}
    for text, logprob in (*token.top, (token.text, token.logprob)):
        listed[text] = max(logprob, listed.get(text, logprob))
    return listed


def _missing(left: dict[str, float], right: dict[str, float]) -> list[float]:
    least = min(right.values())
    return [
        max(0.0, logprob - least)
        for text, logprob in left.items()
        if text not in right and logprob >= LIKELY_NAT
    ]
