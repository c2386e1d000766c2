"""One JSON value checked: the sentence names the field, the value and the limit."""

import pytest

from surefoot.errors import RequestError
from surefoot.server.values import MOST_SHOWN, only, parse_object, shown, text, wrong


def test_a_sentence_names_field_value_and_limit():
    with pytest.raises(RequestError) as caught:
        wrong("temperature", -1, "a number from 0 to 2")
    assert str(caught.value) == "'temperature' must be a number from 0 to 2, not -1"
    assert caught.value.param == "temperature"


def test_param_may_be_wider_than_the_place_or_nothing():
    for param in ("logit_bias", None):
        with pytest.raises(RequestError) as caught:
            wrong("logit_bias.5", 1, "x", param=param)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (None, "null"),
        (True, "true"),
        ("é", '"é"'),
        (float("nan"), "NaN"),
        ({"a": []}, '{"a": []}'),
        ("x" * 1000, '"' + "x" * (MOST_SHOWN - 1) + "..."),
    ],
)
def test_a_value_is_shown_as_json_and_cut_short(value, spelled):
    assert shown(value) == spelled


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        ("secret", "a string of 6 characters"),
        (["secret"], "a list of 1"),
        ({"secret": 1}, "an object of 1 fields"),
        (None, "null"),
        (False, "false"),
        (77, "a number"),
        (1e99, "a number"),
    ],
)
@pytest.mark.parametrize(
    "place", ["the body", "prompt", "messages", "messages[3].content[0].text", "tools[1]", "stop"]
)
def test_a_value_in_the_place_of_a_prompt_is_named_by_kind(place, value, spelled):
    with pytest.raises(RequestError) as caught:
        wrong(place, value, "x")
    assert str(caught.value) == f"'{place}' must be x, not {spelled}"


def test_a_word_of_the_api_is_shown_wherever_it_stands():
    with pytest.raises(RequestError, match='not "assistent"'):
        wrong("messages[0].role", "assistent", "one of these")


def test_a_number_that_python_will_not_spell_is_described():
    assert shown(10**5000) == "a number of thousands of digits"


def test_an_object_is_parsed_with_nan_in_it():
    assert parse_object(b'{"a": [1, null, "\xc3\xa9"]}') == {"a": [1, None, "é"]}
    assert parse_object(b'{"a": NaN}')["a"] != 0


def test_half_a_surrogate_pair_is_no_json():
    with pytest.raises(RequestError, match="not JSON"):
        parse_object(rb'{"a": "\ud83d"}')
    assert parse_object(rb'{"a": "\ud83d\ude00"}') == {"a": "😀"}


def test_a_key_that_would_be_ignored_is_refused():
    only("a", {"x": 1}, ("x", "y"))
    with pytest.raises(RequestError, match=r"'a\.z'"):
        only("a", {"x": 1, "z": 2}, ("x", "y"))


def test_only_a_string_is_text():
    assert text("a", "") == ""
    for value in (None, 1, ["x"]):
        with pytest.raises(RequestError):
            text("a", value)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"max_tokens": 1, "model": "m", "max_tokens": 2}', "max_tokens"),
        (b'{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "content"),
        (b'{"logit_bias": {"5": 1, "5": 2}}', "5"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(body, key):
    with pytest.raises(RequestError, match=f"'{key}' is there twice"):
        parse_object(body)
