"""How far apart first tokens are, by hand."""

import pytest

from surefoot.probe.asking import Reply, Token
from surefoot.probe.distance import distance_nat


def reply(*top):
    return Reply(200, tokens=(Token(top[0][0], top[0][1], tuple(top)),))


@pytest.mark.parametrize(
    ("one", "other", "nat"),
    [
        ((("a", -0.1), ("b", -2.0)), (("a", -0.1), ("b", -2.0)), 0.0),
        ((("a", -0.1), ("b", -2.0)), (("a", -0.3), ("b", -1.5)), 0.5),
        # Unlikely tokens are not compared: rounding moves them most and decides nothing.
        ((("a", -0.1), ("b", -9.0)), (("a", -0.1), ("b", -6.0)), 0.0),
        # Unlikely in one and likely in the other: compared.
        ((("a", -0.1), ("b", -9.0)), (("a", -0.1), ("b", -3.0)), 6.0),
        # Listed in one only: at least as far as the other's least likely listed token.
        ((("a", -0.1), ("b", -2.5)), (("c", -0.2), ("a", -4.0)), 3.9),
        ((("a", -0.1), ("b", -1.0)), (("a", -0.1), ("c", -1.0)), 0.0),
    ],
)
def test_the_distance_is_the_largest_difference_of_likely_tokens(one, other, nat):
    assert distance_nat(reply(*one), reply(*other)) == pytest.approx(nat)
    assert distance_nat(reply(*other), reply(*one)) == pytest.approx(nat)


def test_without_logprobs_there_is_no_distance():
    assert distance_nat(Reply(200), reply(("a", -1.0))) is None
    assert distance_nat(reply(("a", -1.0)), Reply(200, tokens=())) is None


def test_of_two_tokens_that_read_alike_the_likelier_counts():
    """Some servers show a token and its bytes, or two byte tokens, with one text."""
    assert distance_nat(reply(("a", -0.1), ("a", -3.0)), reply(("a", -0.1))) == 0.0
