"""How far two answers' first tokens are apart, in nats of log-probability.

Only the first token is compared by size: it is a function of the state after the prompt alone,
while every later one also depends on the tokens chosen before it.
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
    left, right = _listed(one.tokens[0]), _listed(other.tokens[0])
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
