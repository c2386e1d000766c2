"""I2: features come back as they were sealed under the name asked for, or an error does; and no
record of one kind is ever read as the other."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_forge import (
    MEDIA,
    MODEL,
    NAME,
    OTHER_NAME,
    PREAMBLE,
    SECOND,
    SEEN,
    canonical,
    forged,
    lying_features,
    opened,
    sealed,
    sealed_features,
)

from surefoot.errors import CorruptRecord
from surefoot.identity import BlockName, FeatureName
from surefoot.record import (
    FeatureHeader,
    UnknownFormat,
    content,
    feature_key,
    header_bytes,
    key,
    read_header,
    read_key,
    seal_features,
    unseal,
    unseal_features,
)
from surefoot.state import Component, Features, Part
from surefoot.tiers import KEY

RECORD = sealed_features()
FIELDS, PAYLOAD = opened(RECORD)


def refused(record, name=NAME, kind=CorruptRecord):
    with pytest.raises(kind) as caught:
        unseal_features(record, name=name)
    return str(caught.value)


def refused_by_every_reader(record, kind=CorruptRecord):
    with pytest.raises(kind):
        read_header(record)
    return refused(record, kind=kind)


def flips(data, start=0, end=None):
    for place in range(start, len(data) if end is None else end):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            yield place, bytes(flipped)


# What is sealed comes back.


def test_features_and_their_header_come_back():
    header, features = unseal_features(RECORD, name=NAME)
    assert header == FeatureHeader(NAME, MODEL, MEDIA, 3, content(SEEN))
    assert features == SEEN
    assert read_header(RECORD[: header_bytes(RECORD)]) == header


def test_one_item_has_one_byte_form_and_the_forger_agrees_on_it():
    assert sealed_features() == RECORD
    assert forged(canonical(FIELDS), PAYLOAD, kind=2) == RECORD


@given(st.integers(1, 2**63 - 1), st.lists(st.integers(0, 4), max_size=3).map(tuple))
def test_any_count_of_tokens_and_any_shape_comes_back(tokens, shape):
    size = 1
    for axis in shape:
        size *= axis
    features = Features((Component("rows", "uint8", shape, bytes(range(size))),))
    record = sealed_features(features=features, tokens=tokens)
    header, back = unseal_features(record, name=NAME)
    assert (header.tokens, back) == (tokens, features)


def test_content_is_the_same_for_equal_components_of_either_kind():
    assert content(SEEN) == content(Part("full", SEEN.components))
    assert content(SEEN) != content(Features(SEEN.components[:1]))


# What is damaged does not.


def test_every_flipped_bit_is_refused():
    for place, flipped in flips(RECORD):
        assert refused(flipped), place
    end = header_bytes(RECORD)
    for start, stop in ((0, 56), (PREAMBLE, end)):
        for place, flipped in flips(RECORD[:end], start, stop):
            with pytest.raises(CorruptRecord):
                read_header(flipped)
            assert place < stop


def test_every_truncation_and_extension_is_refused():
    for length in range(len(RECORD)):
        assert refused(RECORD[:length]), length
    for tail in (b"\0", b"\0" * 64, RECORD):
        assert "bytes where the record has" in refused(RECORD + tail)


def test_bytes_between_components_are_zero():
    for place in range(24, 64):
        filled = bytearray(PAYLOAD)
        filled[place] = 1
        assert "not zero" in refused(forged(canonical(FIELDS), bytes(filled), kind=2))


def test_a_payload_that_does_not_fit_its_shapes_is_refused():
    for cut in (PAYLOAD[:-1], PAYLOAD + b"\0", b""):
        assert "components of" in refused_by_every_reader(forged(canonical(FIELDS), cut, kind=2))


# What is another thing does not.


def test_features_under_another_name_are_refused():
    assert NAME.hex() in refused(RECORD, OTHER_NAME)
    assert OTHER_NAME.hex() in refused(sealed_features(OTHER_NAME))


def test_a_part_is_no_features_and_features_are_no_part():
    part = sealed()
    assert "a part where" in refused(part, FeatureName(SECOND.name))
    with pytest.raises(CorruptRecord, match="features where a part"):
        unseal(RECORD, name=BlockName(NAME), group="full")


def test_each_kinds_header_under_the_others_kind_is_refused():
    part_fields, part_payload = opened(sealed())
    assert "malformed" in refused_by_every_reader(
        forged(canonical(part_fields), part_payload, kind=2)
    )
    swapped = forged(canonical(FIELDS), PAYLOAD, kind=1)
    for read in (read_header, lambda data: unseal(data, name=BlockName(NAME), group="full")):
        with pytest.raises(CorruptRecord, match="malformed"):
            read(swapped)


def test_a_missing_or_a_foreign_field_is_refused():
    for field in FIELDS:
        rest = {name: value for name, value in FIELDS.items() if name != field}
        assert field in refused_by_every_reader(forged(canonical(rest), PAYLOAD, kind=2))
    for field in ("group", "ids", "salt", "note"):
        assert "canonical" in refused_by_every_reader(lying_features(**{field: "x"}))


@pytest.mark.parametrize(
    "spell",
    [
        lambda text: text.replace(b'":', b'": ', 1),
        lambda text: text + b" " * 64,
        lambda text: text.rstrip(b" "),
        lambda text: text.replace(b"{", b'{"tokens":3,', 1),
        lambda text: text.replace(NAME.hex().encode(), NAME.hex().upper().encode()),
        lambda text: json.dumps(dict(reversed(json.loads(text).items()))).encode(),
    ],
)
def test_another_spelling_of_the_same_fields_is_refused(spell):
    text = canonical(FIELDS)
    assert spell(text) != text
    assert refused_by_every_reader(forged(spell(text), PAYLOAD, kind=2))


@pytest.mark.parametrize(
    "record",
    [
        lying_features(tokens=0),
        lying_features(tokens=-3),
        lying_features(tokens=3.0),
        lying_features(tokens=True),
        lying_features(tokens="3"),
        lying_features(tokens=2**63),
        lying_features(media=FIELDS["media"][:-2]),
        lying_features(media=""),
        lying_features(model="zz" * 32),
        lying_features(name=FIELDS["name"] + "00"),
        lying_features(content=None),
        lying_features(components=None),
        lying_features(components=[]),
    ],
)
def test_a_lie_in_one_field_is_refused_though_every_digest_fits(record):
    assert refused_by_every_reader(record)


def test_an_unknown_codec_is_refused_and_says_so():
    assert "codec" in refused_by_every_reader(lying_features(codec="zstd"), UnknownFormat)


def test_model_item_tokens_and_content_are_as_the_writer_stated_them():
    # A reader compares them with what it asks for: a name commits to a salt that no record holds.
    record = lying_features(model="00" * 32, media="11" * 32, tokens=9, content="22" * 32)
    header, features = unseal_features(record, name=NAME)
    assert header == FeatureHeader(NAME, bytes(32), b"\x11" * 32, 9, b"\x22" * 32)
    assert features == SEEN


# Keys.


def test_no_key_of_features_is_a_parts():
    name = feature_key(NAME)
    assert name == NAME.hex() + ".media.features"
    assert KEY.fullmatch(name)
    for group in ("features", "media", "media-features"):
        assert key(BlockName(NAME), group) != name
    with pytest.raises(AssertionError):
        key(BlockName(NAME), "media.features")
    with pytest.raises(AssertionError):
        feature_key(NAME[:-1])


def test_a_key_tells_what_it_names():
    assert read_key(feature_key(NAME)) == NAME
    assert read_key(key(SECOND.name, "full-0")) == (SECOND.name, "full-0")
    hexed = NAME.hex()
    for other in (
        hexed,
        hexed + ".",
        hexed + "..",
        hexed + ".media.features.x",
        hexed + ".other.features",
        hexed.upper() + ".full",
        hexed[:-2] + ".full",
        hexed + "00.media.features",
        "zz" + hexed[2:] + ".full",
        "",
    ):
        assert read_key(other) is None, other
    assert read_key(hexed + ".media") == (NAME, "media")


def test_sealing_what_could_not_be_unsealed_is_a_bug():
    fields = {"model": MODEL, "media": MEDIA, "tokens": 3, "content": content(SEEN)}
    wrong = Features((Component("two words", "uint8", (0,), b""),))
    for name, features, changes in (
        (NAME[:-1], SEEN, {}),
        (NAME, SEEN, {"model": b"m"}),
        (NAME, SEEN, {"media": b"c"}),
        (NAME, SEEN, {"tokens": 0}),
        (NAME, SEEN, {"content": b""}),
        (NAME, wrong, {}),
    ):
        with pytest.raises(AssertionError):
            seal_features(name, features, **(fields | changes))
