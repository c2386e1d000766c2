"""Codes that nobody says by chance, and who was told them."""

import pytest

from surefoot.probe.plants import SENTENCES, Plants, codes_in, texts_of


def test_a_code_is_one_that_nobody_says_by_chance():
    plants = Plants(3)
    codes = [plants.code() for _ in range(3_000)]
    assert len(set(codes)) == len(codes)
    for code in codes:
        digits = [int(digit) for digit in code]
        assert len(code) == 6
        assert digits[0] != 0
        assert len(set(digits)) >= 4
        for a, b, c in zip(digits, digits[1:], digits[2:], strict=False):
            assert b - a != c - b, code
    for likely in ("123456", "654321", "111111", "135790", "112233", "000000"):
        assert likely not in codes


def test_one_seed_draws_the_same_and_another_something_else():
    def drawn(seed):
        plants = Plants(seed)
        return plants.code(), plants.opening(), plants.filler(40), plants.shuffled(9)

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_a_code_in_an_answer_is_traced_to_who_was_told_it():
    plants = Plants(1)
    mine, theirs, nobodys = plants.code(), plants.code(), plants.code()
    plants.told("A", {"messages": [{"role": "user", "content": f"My code is {mine}."}]})
    plants.told("B", {"messages": [{"role": "user", "content": f"My code is {theirs}."}]})
    body = {"messages": [{"role": "user", "content": f"My code is {mine}."}]}
    assert plants.foreign(f"It is {mine}", body) == {}
    assert plants.foreign(f"It is {theirs}.", body) == {theirs: ["B"]}
    assert plants.foreign(f"It is {nobodys}.", body) == {}  # drawn, and told nobody
    assert plants.foreign("It is 918273.", body) == {}  # never drawn
    assert plants.holder(theirs)[0] == "B"


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("483920", {"483920"}),
        ("483 920", {"483920"}),
        ("4-8-3-9-2-0", {"483920"}),
        ("The code: **483,920**.", {"483920"}),
        ("4839201", set()),
        ("483920 and 115577", {"483920", "115577"}),
        ("in 2024", set()),
    ],
)
def test_codes_are_read_however_they_are_written(text, codes):
    assert codes_in(text) == codes


def test_texts_hold_everything_said_and_no_picture():
    body = {"messages": [{"content": [{"text": "a"}, {"image_url": {"url": "data:image/png;x"}}]}]}
    assert texts_of(body).split() == ["a"]


@pytest.mark.parametrize("words", [1, 7, 40, 555])
def test_filler_has_the_words_asked_for_and_never_a_digit(words):
    text = Plants(words).filler(words)
    assert len(text.split()) == words
    assert not any(letter.isdigit() for letter in text)
    assert len(set(SENTENCES)) == len(SENTENCES)
