"""Server-sent events, cut in every way."""

from itertools import product

import pytest

from surefoot.events import Events

SAID = "one\u2028two\u0085three"


def read(pieces):
    events = Events()
    data = [one for piece in pieces for one in events.feed(piece)]
    return data + events.end()


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_an_event_is_the_same_wherever_the_stream_is_cut(end):
    stream = f": ping{end}{end}event: x{end}data: {SAID}{end}{end}data:b{end}data: c{end}{end}"
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            cut = (stream[:first], stream[first:second], stream[second:])
            assert read(cut) == [SAID, "b\nc"], (first, second)


def test_an_event_ends_where_its_empty_line_does_and_not_before():
    events = Events()
    assert events.feed("data: a\r") == []
    assert events.feed("\ndata: b") == []
    assert events.feed("\r\n\r") == []
    assert events.feed("\n") == ["a\nb"]


@pytest.mark.parametrize("end", ["", "\n", "\r", "\r\n"])
def test_what_a_stream_ends_with_counts(end):
    assert read([f"data: a{end}"]) == ["a"]


def test_comments_names_and_empty_lines_say_nothing():
    for lines in product([": ping", "event: x", "id: 7", "retry: 1", ""], repeat=3):
        assert read(["\n".join(lines)]) == []


def test_an_empty_event_says_nothing_but_is_one():
    assert read(["data:\n\n"]) == [""]
