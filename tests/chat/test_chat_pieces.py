"""Tokens to text: byte for byte what the tokenizer says of them all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import KINDS

from surefoot.chat.pieces import Pieces

ALL = tuple(KINDS)


@pytest.fixture(scope="module")
def kinds():
    return {name: make() for name, make in KINDS.items()}


def read(tokenizer, tokens):
    decoding = Pieces(tokenizer).decoding()
    return [decoding.push(token) for token in tokens] + [decoding.finish()]


def check(tokenizer, tokens):
    pieces = read(tokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=True), tokens


@pytest.mark.parametrize("kind", ALL)
def test_every_token_alone_reads_as_the_tokenizer_decodes_it(kinds, kind):
    for token in range(kinds[kind].get_vocab_size() + 2):
        check(kinds[kind], [token])


@pytest.mark.parametrize("kind", ALL)
def test_every_pair_of_telling_tokens_reads_as_the_tokenizer_decodes_it(kinds, kind):
    tokenizer = kinds[kind]
    ids = range(tokenizer.get_vocab_size())
    spaced = [token for token in ids if "▁" in (tokenizer.id_to_token(token) or "")]
    telling = sorted({*range(6), *ids[::17], *spaced[:30], *ids[-30:]})
    pieces = Pieces(tokenizer)
    for first in telling:
        for second in telling:
            decoding = pieces.decoding()
            said = decoding.push(first) + decoding.push(second) + decoding.finish()
            assert said == tokenizer.decode([first, second]), (first, second)


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=150)
@given(data=st.data())
def test_any_tokens_read_as_the_tokenizer_decodes_them(kinds, kind, data):
    tokenizer = kinds[kind]
    most = tokenizer.get_vocab_size()
    # Few spellings are bytes or special; small ids are, and are drawn as often as all others.
    token = st.one_of(st.integers(0, most), st.integers(0, 12), st.integers(5, 261))
    check(tokenizer, data.draw(st.lists(token, max_size=24)))


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "byte_fallback_strip"])
@given(text=st.text(max_size=40))
def test_text_comes_back_and_never_with_half_a_character(kinds, kind, text):
    tokenizer = kinds[kind]
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = read(tokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=True)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_comes_whole_with_its_last_byte(kinds):
    tokenizer = kinds["byte_level"]
    tokens = tokenizer.encode("𝄞", add_special_tokens=False).ids
    assert len(tokens) == 4
    assert read(tokenizer, tokens) == ["", "", "", "𝄞", ""]


def test_an_unfinished_character_is_one_replacement_at_the_end(kinds):
    tokenizer = kinds["byte_level"]
    tokens = tokenizer.encode("𝄞", add_special_tokens=False).ids[:3]
    assert read(tokenizer, tokens) == ["", "", "", "\ufffd"]


@pytest.mark.parametrize(
    ("kind", "text"), [("byte_level", "é"), ("byte_fallback", "é"), ("byte_fallback_strip", "é")]
)
def test_a_token_alone_shows_its_raw_bytes(kinds, kind, text):
    pieces = Pieces(kinds[kind])
    tokens = kinds[kind].encode(text, add_special_tokens=False).ids[-2:]
    shown = [pieces.shown(token) for token in tokens]
    raw = b"".join(raw for _, raw in shown)
    assert raw.endswith("é".encode())
    assert all(one == raw.decode("utf-8", "replace") for one, raw in shown)


def test_a_special_token_alone_shows_its_name_and_an_unknown_one_nothing(kinds):
    for kind, tokenizer in kinds.items():
        pieces = Pieces(tokenizer)
        token = tokenizer.token_to_id("<|im_end|>")
        assert pieces.shown(token) == ("<|im_end|>", b"<|im_end|>"), kind
        assert pieces.shown(10**6) == ("", b""), kind


def test_a_sentencepiece_token_shows_its_space(kinds):
    tokenizer = kinds["metaspace"]
    token = tokenizer.encode("x the", add_special_tokens=False).ids[-1]
    spelled = tokenizer.id_to_token(token)
    assert Pieces(tokenizer).shown(token)[0] == spelled.replace("▁", " ")


def test_only_the_strange_decoder_is_asked_for_the_whole_text(kinds):
    names = {kind: type(Pieces(one).decoding()).__name__ for kind, one in kinds.items()}
    assert names.pop("strange") == "_Whole"
    assert set(names.values()) == {"_ByteLevel", "_Fused"}
