"""I2: a header has one byte form, and whatever else is in its place is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_forge import SECOND, canonical, forged, lying, opened, sealed

from surefoot.errors import CorruptRecord
from surefoot.record import UnknownFormat, read_header, unseal
from surefoot.testing.forge import named

FIELDS, PAYLOAD = opened(sealed())


def refused(record, kind=CorruptRecord):
    for read in (read_header, lambda data: unseal(data, name=SECOND.name, group="full")):
        with pytest.raises(kind) as caught:
            read(record)
    return str(caught.value)


def test_a_missing_field_is_refused():
    for field in FIELDS:
        rest = {name: value for name, value in FIELDS.items() if name != field}
        assert field in refused(forged(canonical(rest), PAYLOAD))


def test_a_field_of_its_own_is_refused():
    assert "canonical" in refused(lying(note="hello"))


@pytest.mark.parametrize(
    "spell",
    [
        lambda text: text.replace(b'":', b'": ', 1),
        lambda text: text.replace(b"full", b"\\u0066ull", 1),
        lambda text: text + b" " * 64,
        lambda text: text.rstrip(b" "),
        lambda text: text.replace(b"{", b'{"codec":"raw",', 1),
        lambda text: text.replace(SECOND.name.hex().encode(), SECOND.name.hex().upper().encode()),
        lambda text: text.decode().encode("utf-16"),
        lambda text: json.dumps(dict(reversed(json.loads(text).items()))).encode(),
    ],
)
def test_another_spelling_of_the_same_fields_is_refused(spell):
    text = canonical(FIELDS)
    assert spell(text) != text
    assert refused(forged(spell(text), PAYLOAD))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"[]", b"0", b'"x"', b"[" * 100_000, b"\xff\xfe", b"9" * 5000, b"NaN"],
    ids=lambda text: repr(text[:4]),
)
def test_what_is_no_header_is_refused(text):
    assert "malformed" in refused(forged(text, PAYLOAD))


@pytest.mark.parametrize("codec", ["zstd", "", "RAW", None, 0, [], {"raw": 1}])
def test_an_unknown_codec_is_refused_and_says_so(codec):
    assert "codec" in refused(lying(codec=codec), UnknownFormat)


def component(**changes):
    first, second = FIELDS["components"]
    return lying(components=[first | changes, second])


def span(**changes):
    (only,) = FIELDS["spans"]
    return lying(spans=[only | changes])


@pytest.mark.parametrize(
    "record",
    [
        component(dtype="float8"),
        component(dtype=None),
        component(dtype=["bfloat16"]),
        component(shape=[-1, -4, 3]),
        component(shape=[True, 4, 3]),
        component(shape=[1.0, 4, 3]),
        component(shape=["1", 4, 3]),
        component(shape=12),
        component(shape=[2**63, 0]),
        component(shape=[1] * 62 + [1, 4, 3]),
        component(shape=[2**62] * 64),
        component(shape=[2**62] * 500),
        component(name=""),
        component(name="two words"),
        component(name="k\u00e9ys"),
        component(name="\ud800"),
        component(name=7),
        lying(components=None),
        lying(components={"keys": 1}),
        lying(components=[]),
        lying(content=FIELDS["content"][:-2]),
        lying(content=FIELDS["content"] + "00"),
        lying(content=3),
        lying(model="zz" * 32),
        lying(features=["00" * 31]),
        lying(features="0"),
        lying(group="Full"),
        lying(group=""),
        lying(group=None),
        lying(start=-4),
        lying(start=4.0),
        lying(start=True),
        lying(end=2**63),
        lying(ids=FIELDS["ids"][:-2]),
        lying(ids=FIELDS["ids"] + "00"),
        lying(spans=[]),
        lying(spans="x"),
        span(start=1),
        span(length=2),
        span(offset=0),
        span(media=""),
        span(offset=-1),
        span(offset=2**64),
        span(note=1),
    ],
)
def test_a_lie_in_one_field_is_refused_though_every_digest_fits(record):
    assert refused(record)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PLACES = st.sampled_from(
    [
        *((field,) for field in FIELDS),
        *(("spans", 0, field) for field in FIELDS["spans"][0]),
        *(("components", 0, field) for field in FIELDS["components"][0]),
        ("components", 0, "shape", 1),
        ("features", 0),
    ]
)

CLAIMS = {
    ("components", 0, "name"),
    ("components", 0, "dtype"),
    ("components", 0, "shape"),
    ("features",),
    ("fence",),
}


@given(PLACES, VALUES)
def test_any_value_in_any_field_is_refused_or_is_a_claim_that_no_record_can_check(place, value):
    fields = json.loads(json.dumps(FIELDS))
    inner = fields
    for step in place[:-1]:
        inner = inner[step]
    before, inner[place[-1]] = inner[place[-1]], value
    record = forged(canonical(fields), PAYLOAD)
    try:
        unseal(record, name=SECOND.name, group="full")
    except CorruptRecord:
        return
    assert value == before or place in CLAIMS


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": "", "end": 4, "spans": []},
        {"ids": "", "end": 3, "spans": []},
        {"ids": FIELDS["ids"][:-2]},
        {"ids": FIELDS["ids"] + "00"},
        {"end": 9},
        {"spans": [FIELDS["spans"][0] | {"media": "00" * 31}]},
        {"spans": [FIELDS["spans"][0] | {"media": ""}]},
        {"spans": [FIELDS["spans"][0] | {"length": 0}]},
        {"spans": [FIELDS["spans"][0] | {"length": 5}]},
        {"spans": [FIELDS["spans"][0] | {"start": 4}]},
        {"spans": FIELDS["spans"] * 2},
    ],
)
def test_a_block_that_no_grid_cuts_is_refused_though_it_is_what_it_names(changes):
    """Found by ``make fuzz``: an index cannot hold some of these, and a plan not compare them."""
    record = forged(canonical(named(FIELDS | changes)), PAYLOAD)
    with pytest.raises(CorruptRecord):
        read_header(record)


def test_the_name_that_the_refused_blocks_bear_would_be_right():
    fields = named(FIELDS | {"parent": "77" * 32})
    assert read_header(forged(canonical(fields), PAYLOAD)).block.name.hex() == fields["name"]


def test_the_model_and_the_content_are_as_the_writer_stated_them():
    # Only the root names the model, and only a second pass over the bytes would check the content.
    header, part = unseal(lying(model="00" * 32, content="11" * 32), name=SECOND.name, group="full")
    assert (header.block.model, header.content) == (bytes(32), b"\x11" * 32)
    assert part.nbytes == 40
