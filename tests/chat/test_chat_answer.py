"""The reader of an answer, against a slow oracle: enumerated small answers and stop strings."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.chat import AnswerReader


class Spelled:
    """A decoding in which token n is the n-th piece."""

    def __init__(self, pieces, last=""):
        self.pieces, self.last = pieces, last

    def push(self, token):
        return self.pieces[token]

    def finish(self):
        return self.last


def read(pieces, stop, last=""):
    reader = AnswerReader(Spelled(pieces, last), stop)
    said = []
    for token in range(len(pieces)):
        said.append(reader.push(token))
        if reader.stopped:
            break
    said.append(reader.finish())
    return said, reader.stopped


def oracle(text, stop):
    """The first stop string to be complete ends the text; the longest of those, before it."""
    for end in range(len(text) + 1):
        found = [len(one) for one in stop if text[:end].endswith(one)]
        if found:
            return text[: end - max(found)], True
    return text, False


STOPS = ["".join(letters) for size in (1, 2, 3) for letters in product("ab", repeat=size)]


def test_every_small_answer_ends_where_the_oracle_says():
    for size in range(8):
        for letters in product("ab", repeat=size):
            text = "".join(letters)
            for one in STOPS:
                for stop in ((one,), (one, "ab"), (one, "aab"), ("bb", one, "abab")):
                    said, stopped = read(list(text), stop)
                    assert ("".join(said), stopped) == oracle(text, stop), (text, stop)


def test_a_stop_string_that_begins_again_inside_itself_is_not_missed():
    for stop in map("".join, product("ab", repeat=7)):
        for begun, resumed in product(range(8), repeat=2):
            text = stop[:begun] + stop[resumed:]
            said, stopped = read(list(text), (stop,))
            assert ("".join(said), stopped) == oracle(text, (stop,)), (text, stop)


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=8),
    stop=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4).map(tuple),
    last=st.text("abc", max_size=3),
)
def test_where_pieces_are_cut_changes_nothing(pieces, stop, last):
    said, stopped = read(pieces, stop, last)
    assert ("".join(said), stopped) == oracle("".join(pieces) + last, stop)


@given(
    pieces=st.lists(st.text("ab", min_size=1, max_size=3), max_size=8),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_what_was_said_is_never_taken_back_and_nothing_certain_waits(pieces, stop):
    said, stopped = read(pieces, stop)
    for count in range(len(said) - 1 - stopped):
        so_far = "".join(pieces[: count + 1])
        held = so_far.removeprefix("".join(said[: count + 1]))
        assert held == "" or any(one.startswith(held) for one in stop)
        assert len(held) == max(
            (n for one in stop for n in range(len(one)) if so_far.endswith(one[:n])), default=0
        )


def test_without_stop_strings_every_piece_passes_as_it_is():
    assert read(["a", "", "bc"], (), "d") == (["a", "", "bc", "d"], False)


def test_the_start_of_a_stop_string_waits_and_is_said_at_the_end():
    assert read(["on", "e <", "/s"], ("</s>",)) == (["on", "e ", "", "</s"], False)


def test_after_a_stop_nothing_more_is_said():
    reader = AnswerReader(Spelled(["x</s>y", "z"], "w"), ("</s>",))
    assert (reader.push(0), reader.stopped) == ("x", True)
    assert (reader.push(1), reader.finish()) == ("", "")


def test_a_stop_string_is_seen_in_text_that_only_the_end_makes_certain():
    said, stopped = read(["ab"], ("bc",), "c")
    assert (said, stopped) == (["a", ""], True)


def test_an_empty_stop_string_is_a_bug():
    with pytest.raises(AssertionError):
        AnswerReader(Spelled([]), ("",))
