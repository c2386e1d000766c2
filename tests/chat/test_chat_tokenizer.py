"""Special tokens come from the template alone."""

import json
import re
import unicodedata
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import KINDS, SPECIAL
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from surefoot.chat.tokenizer import COMPOSED_MAX, Encoder, strings_in
from surefoot.errors import RequestError

FENCE = "\U0010fffe"


@pytest.fixture(scope="module")
def encoders():
    return {name: (Encoder(tokenizer := make()), tokenizer) for name, make in KINDS.items()}


def specials(tokenizer):
    added = json.loads(tokenizer.to_str())["added_tokens"]
    return {one["id"] for one in added if one["special"]}


# Strings that hold special tokens, pieces of them, and tokens that overlap.
HOSTILE = st.lists(
    st.one_of(
        st.sampled_from([*SPECIAL, "<|late|>", "<unk>", "<|im_", "end|>", "<", "x", " ", "\n"]),
        st.text(max_size=3),
    ),
    max_size=6,
).map("".join)


@pytest.mark.parametrize("kind", tuple(KINDS))
@settings(max_examples=150)
@given(content=HOSTILE.filter(lambda text: FENCE not in text))
def test_a_client_string_never_yields_a_special_token(encoders, kind, content):
    encoder, tokenizer = encoders[kind]
    marker = encoder.marker([content], param="messages")
    text = f"<|im_start|>user\n{marker.put(content)}<|im_end|>"
    tokens = encoder.rendered(text, marker, param="messages")
    unknown = tokenizer.token_to_id("<unk>")  # a character that the vocabulary lacks
    found = [token for token in tokens if token in specials(tokenizer) and token != unknown]
    assert found == [tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")]


@settings(max_examples=150)
@given(content=HOSTILE.filter(lambda text: FENCE not in text))
def test_marked_text_comes_back_as_it_was_sent(encoders, content):
    encoder, tokenizer = encoders["byte_level"]
    marker = encoder.marker([content], param="messages")
    text = f"<|im_start|>user\n{marker.put(content)}<|im_end|>"
    tokens = encoder.rendered(text, marker, param="messages")
    assert tokenizer.decode(tokens[1:-1], skip_special_tokens=False) == f"user\n{content}"


@pytest.mark.parametrize("kind", tuple(KINDS))
@settings(max_examples=60)
@given(content=st.text(max_size=20))
def test_what_surrounds_a_special_token_is_encoded_as_always(encoders, kind, content):
    encoder, tokenizer = encoders[kind]
    if encoder.marker([content], param="messages") or "\U0010fffe" in content:
        return
    marked = encoder.marker(["<|im_end|>"], param="messages")
    text = f"<|im_start|>user \n{content}<|im_end|>\n <|im_start|>x"
    ordinary = tokenizer.encode(text, add_special_tokens=False).ids
    assert encoder.rendered(text, marked, param="messages") == ordinary


def test_nothing_is_marked_where_nothing_needs_it(encoders):
    encoder, _ = encoders["byte_level"]
    marker = encoder.marker(["<|im_", "end|>", "<think>"], param="messages")
    assert not marker
    assert marker.put({"a": ["<|im_"]}) == {"a": ["<|im_"]}


def test_keys_and_nested_values_are_marked(encoders):
    encoder, _ = encoders["byte_level"]
    value = {"<|im_end|>": ["<|im_end|>", {"x": "a<|im_start|>"}, 1, None, True]}
    marked = encoder.marker(strings_in(value), param="tools").put(value)
    assert not any(one in spelled for spelled in strings_in(marked) for one in SPECIAL)
    assert list(strings_in(value)) == ["<|im_end|>", "<|im_end|>", "x", "a<|im_start|>"]


def test_a_marker_escaped_for_json_is_taken_out_too(encoders):
    encoder, tokenizer = encoders["byte_level"]
    value = {"a": 'x<|im_end|>"'}
    marker = encoder.marker(strings_in(value), param="tools")
    twice = json.dumps(json.dumps(marker.put(value)))
    assert "ufdd0" in twice
    tokens = encoder.rendered(twice, marker, param="tools")
    assert tokenizer.decode(tokens) == json.dumps(json.dumps(value))


def test_a_marker_that_the_input_holds_is_passed_over(encoders):
    encoder, tokenizer = encoders["byte_level"]
    content = "\ufdd0 \\uFDD1 <|im_end|> \ufdd2"
    marker = encoder.marker([content], param="messages")
    tokens = encoder.rendered(marker.put(content), marker, param="messages")
    assert tokenizer.decode(tokens, skip_special_tokens=False) == content


@pytest.mark.parametrize("other", ["".join(map(chr, range(0xFDD0, 0xFDF0))), FENCE])
def test_input_that_leaves_no_marker_is_refused(encoders, other):
    encoder, _ = encoders["byte_level"]
    assert not encoder.marker([other], param="messages")
    with pytest.raises(RequestError, match="special token") as caught:
        encoder.marker([other, "<|im_end|>"], param="messages")
    assert caught.value.param == "messages"


def test_a_special_token_of_one_character_cannot_be_kept_text():
    tokenizer = KINDS["byte_level"]()
    tokenizer.add_special_tokens(["§"])
    with pytest.raises(RequestError, match="'§'"):
        Encoder(tokenizer).marker(["a § b"], param="messages")


def test_a_raw_prompt_may_hold_special_tokens(encoders):
    encoder, tokenizer = encoders["byte_level"]
    assert encoder.raw("<|im_end|>", param="prompt") == [tokenizer.token_to_id("<|im_end|>")]


def test_half_a_surrogate_pair_is_refused_by_name(encoders):
    encoder, _ = encoders["byte_level"]
    with pytest.raises(RequestError, match=re.escape("U+D83D")) as caught:
        encoder.raw("a\ud83d", param="prompt")
    assert caught.value.param == "prompt"


def test_ids_may_have_holes(encoders):
    for encoder, tokenizer in encoders.values():
        assert encoder.tokens == max(tokenizer.get_vocab().values()) + 1


def test_truncation_and_padding_left_by_others_are_switched_off():
    tokenizer = KINDS["byte_level"]()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=40)
    assert len(Encoder(tokenizer).raw("the quick brown fox", param="prompt")) in range(3, 20)


def test_of_two_special_tokens_at_one_place_the_longer_is_meant(encoders):
    encoder, tokenizer = encoders["byte_level"]
    marked = encoder.marker(["<|im_end|>"], param="messages")
    for text in ("<|im_end|>x", "<|im_end|>y"):
        ordinary = tokenizer.encode(text, add_special_tokens=False).ids
        assert encoder.rendered(text, marked, param="messages") == ordinary


def letters(vocabulary, merges, special, **more):
    spelled = {one: index for index, one in enumerate([*vocabulary, *special])}
    tokenizer = Tokenizer(models.BPE(vocab=spelled, merges=merges, **more))
    tokenizer.add_special_tokens(special)
    return tokenizer


def test_special_tokens_that_overlap_are_all_broken():
    tokenizer = letters("abc", [], ["ab", "bc"])
    encoder = Encoder(tokenizer)
    marker = encoder.marker(["abc"], param="messages")
    assert encoder.rendered(marker.put("abc"), marker, param="messages") == [0, 1, 2]


def test_a_special_token_that_merges_would_make_is_not_made():
    encoder = Encoder(letters("abcd", [("a", "b"), ("ab", "c")], ["ab", "abc"]))
    marker = encoder.marker(["dab"], param="messages")
    text = marker.put("dab") + "abc"
    assert encoder.rendered(text, marker, param="messages") == [3, 0, 1, 5]


def test_an_unknown_character_is_the_unknown_token_as_always():
    tokenizer = letters("ab", [], ["<u>", "<s>"], unk_token="<u>")
    encoder = Encoder(tokenizer)
    marker = encoder.marker(["<s>"], param="messages")
    ordinary = tokenizer.encode("a?<s>b", add_special_tokens=False).ids
    assert encoder.rendered("a?<s>b", marker, param="messages") == ordinary == [0, 2, 3, 1]


def test_special_tokens_are_parsed_whatever_was_set_before():
    tokenizer = KINDS["byte_level"]()
    tokenizer.encode_special_tokens = True
    tokens = Encoder(tokenizer).raw("<|im_end|>", param="prompt")
    assert tokens == [tokenizer.token_to_id("<|im_end|>")]


def test_a_normalizer_cannot_turn_digits_into_special_tokens():
    tokenizer = KINDS["byte_level"]()
    tokenizer.normalizer = normalizers.Replace(FENCE, "")
    tokenizer.add_special_tokens([AddedToken("<|odd|>", normalized=True)])
    encoder = Encoder(tokenizer)
    content = "<|odd|> 0 1 2 3 4 5 6 7 8 9"
    marker = encoder.marker([content], param="messages")
    tokens = encoder.rendered(marker.put(content) + "<|odd|>", marker, param="messages")
    assert [one for one in tokens if one in specials(tokenizer)] == [tokens[-1]]


@pytest.mark.parametrize("kind", tuple(KINDS))
@settings(max_examples=150)
@given(text=st.one_of(HOSTILE, st.text(), st.text("ab \n", min_size=20, max_size=200)))
def test_a_text_never_makes_fewer_tokens_than_was_said(encoders, kind, text):
    encoder, _ = encoders[kind]
    try:
        tokens = encoder.raw(text, param="prompt")
    except RequestError:  # half a surrogate pair
        return
    assert encoder.least_tokens([text]) <= len(tokens)


def test_a_long_text_is_known_to_be_long(encoders):
    least = [encoder.least_tokens(["a" * 10_000]) for encoder, _ in encoders.values()]
    assert max(least) > 100


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()])
@pytest.mark.parametrize("text", ["\u00e9", "\u65e5", "\U0001f600"])
def test_a_long_text_of_other_letters_is_known_to_be_long(normalizer, text):
    encoder = Encoder(changed(normalizer=normalizer))
    assert 100 < encoder.least_tokens([text * 10_000]) <= len(encoder.raw(text * 10_000, param="p"))


@given(st.text(st.sampled_from("K\u212a\u1fbe\u03b9\u0308\u0301\u0327e\u00e9`\u1fef"), max_size=60))
def test_what_composing_shortens_is_counted_short_enough(text):
    encoder = Encoder(composing())
    assert encoder.least_tokens([text]) <= len(encoder.raw(text, param="prompt"))


@cache
def composing():
    return changed(normalizer=normalizers.NFC())


def test_no_text_composes_to_less_than_a_quarter():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    longest = {}  # a decomposed run -> bytes of the longest character that it is the same as
    for one in characters:
        run = unicodedata.normalize("NFD", one)
        longest[run] = max(longest.get(run, 0), len(one.encode()))
    for one in characters:
        whole = unicodedata.normalize("NFC", one)
        run = unicodedata.normalize("NFD", whole)
        best = [0]
        for end in range(1, len(run) + 1):
            ways = (best[at] + longest[run[at:end]] for at in range(end) if run[at:end] in longest)
            best.append(max(ways))
        assert best[-1] <= COMPOSED_MAX * len(whole.encode()), ascii(one)


def without_z():
    """A byte-level vocabulary that lacks a byte, so that text made of it vanishes."""
    description = json.loads(KINDS["byte_level"]().to_str())
    description["model"]["vocab"] = {
        piece: at for piece, at in description["model"]["vocab"].items() if "z" not in piece
    }
    description["model"]["merges"] = []
    return Tokenizer.from_str(json.dumps(description))


def changed(**parts):
    tokenizer = KINDS["byte_level"]()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def swallowing():
    tokenizer = KINDS["byte_level"]()
    tokenizer.add_special_tokens([AddedToken("<|wide|>", rstrip=True)])
    return tokenizer


SHRINKERS = {
    "a normalizer": (
        lambda: changed(normalizer=normalizers.Replace(Regex("a+"), "a")),
        "a" * 9000,
    ),
    "a split that removes": (
        lambda: changed(
            pre_tokenizer=pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(" ", "removed"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        ),
        " " * 9000,
    ),
    "a byte that is lacking": (without_z, "z" * 9000),
    "an added token that takes spaces along": (swallowing, "<|wide|>" + " " * 9000),
    "unknown characters that become one": (KINDS["metaspace"], "\u6f22" * 9000),
}


@pytest.mark.parametrize("what", tuple(SHRINKERS))
def test_nothing_is_said_of_a_tokenizer_that_shortens_text(what):
    make, text = SHRINKERS[what]
    encoder = Encoder(make())
    assert len(encoder.raw(text, param="prompt")) < 100, "the text is not shortened"
    assert encoder.least_tokens([text]) == 0
