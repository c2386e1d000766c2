"""I2: what comes back is what was sealed under the name asked for, or an error."""

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_forge import (
    FEATURES,
    FIRST,
    MODEL,
    PART,
    PREAMBLE,
    SECOND,
    canonical,
    forged,
    lying,
    opened,
    sealed,
)

from surefoot.errors import CorruptRecord
from surefoot.identity import FeatureName, Salt, name_blocks
from surefoot.prompt import MediaName, MediaSpan, Prompt
from surefoot.record import (
    HEADER_PREFIX_BYTES,
    Header,
    content,
    header_bytes,
    key,
    read_header,
    seal,
    unseal,
)
from surefoot.state import DTYPE_BYTES, Component, Part

RECORD = sealed()


def refused(record, block=SECOND, group="full"):
    with pytest.raises(CorruptRecord) as caught:
        unseal(record, name=block.name, group=group)
    return str(caught.value)


def flips(data, start=0, end=None):
    for place in range(start, len(data) if end is None else end):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            yield place, bytes(flipped)


# What is sealed comes back.


def test_a_part_and_its_header_come_back():
    header, part = unseal(RECORD, name=SECOND.name, group="full")
    assert header == Header(SECOND, "full", content(PART), FEATURES)
    assert part == PART
    assert content(part) == header.content


def test_one_part_has_one_byte_form_and_the_forger_agrees_on_it():
    assert sealed() == RECORD
    fields, payload = opened(RECORD)
    assert forged(canonical(fields), payload) == RECORD


DTYPES = st.sampled_from(sorted(DTYPE_BYTES))
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def components(draw):
    dtype, shape = draw(DTYPES), draw(SHAPES)
    nbytes = prod(shape) * DTYPE_BYTES[dtype]
    data = draw(st.binary(min_size=nbytes, max_size=nbytes))
    return Component(draw(st.from_regex(r"[!-~]{1,9}", fullmatch=True)), dtype, shape, data)


@st.composite
def blocks(draw):
    tokens = draw(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
    start, length = draw(st.integers(0, 5)), draw(st.integers(1, 6))
    spans = (MediaSpan(start, length, MediaName(b"c" * 32)),) if start + length <= 6 else ()
    return draw(st.sampled_from(name_blocks(Prompt.of(tokens, spans), (2, 4, 6), MODEL, Salt(b""))))


@given(
    blocks(),
    st.from_regex(r"[a-z0-9-]{1,8}", fullmatch=True),
    st.lists(components(), max_size=4).map(tuple),
    st.lists(st.binary(min_size=32, max_size=32).map(FeatureName), max_size=2).map(tuple),
)
def test_any_part_of_any_block_comes_back(block, group, held, features):
    part = Part(group, held)
    record = sealed(block, part, features)
    expected = Header(block, group, content(part), features)
    assert unseal(record, name=block.name, group=group) == (expected, part)
    assert read_header(record[: header_bytes(record[:PREAMBLE])]) == expected
    assert header_bytes(record) % 64 == 0


def test_empty_components_keep_their_dtype_and_shape():
    held = tuple(
        Component(f"empty{n}", "float32", shape, b"")
        for n, shape in enumerate([(0,), (2, 0, 3), (0, 0)])
    )
    for part in (Part("full", held), Part("full", (*held, *PART.components, *held)), Part("f", ())):
        _, back = unseal(sealed(part=part), name=SECOND.name, group=part.group)
        assert back == part


def test_components_are_views_into_the_record_and_aligned_with_it():
    data = bytearray(RECORD)
    _, part = unseal(data, name=SECOND.name, group="full")
    at = header_bytes(RECORD)
    for component, offset in zip(part.components, (at, at + 64), strict=True):
        assert offset % 64 == 0
        data[offset] ^= 255
        assert component.data[0] == data[offset]


def test_a_component_may_be_any_contiguous_buffer():
    flat = memoryview(bytes(range(48)))
    views = [flat.cast("f"), flat.cast("f", (3, 4)), memoryview(np.zeros((0, 7), np.float32))]
    for data, shape in zip(views, [(12,), (3, 4), (0, 7)], strict=True):
        given_part = Part("full", (Component("state", "float32", shape, data),))
        plain = Part("full", (Component("state", "float32", shape, data.tobytes()),))
        assert content(given_part) == content(plain)
        assert sealed(part=given_part) == sealed(part=plain)
    whole = memoryview(RECORD + b"\0" * (-len(RECORD) % 4)).cast("I")
    assert read_header(whole).block == SECOND


# What is damaged does not.


def test_every_flipped_bit_is_refused():
    for place, flipped in flips(RECORD):
        assert refused(flipped), place


def test_every_flipped_bit_of_preamble_and_header_is_refused_without_the_payload():
    end = header_bytes(RECORD)
    for place, flipped in flips(RECORD[:end], end=56):
        with pytest.raises(CorruptRecord):
            read_header(flipped)
        assert place < 56
    for _, flipped in flips(RECORD[:end], start=PREAMBLE):
        with pytest.raises(CorruptRecord):
            read_header(flipped)


def test_every_truncation_is_refused():
    end = header_bytes(RECORD)
    for length in range(len(RECORD)):
        assert refused(RECORD[:length]), length
        if PREAMBLE <= length < end:
            assert "inside the header" in refused(RECORD[:length])
        if length < end:
            with pytest.raises(CorruptRecord):
                read_header(RECORD[:length])
        else:
            assert read_header(RECORD[:length]).block == SECOND


@pytest.mark.parametrize("tail", [b"\0", b"x", b"\0" * 64, RECORD])
def test_an_extended_record_is_refused(tail):
    assert "bytes where the record has" in refused(RECORD + tail)


def test_two_pieces_swapped_are_refused():
    at = header_bytes(RECORD)
    swapped = RECORD[:at] + RECORD[at + 64 :] + RECORD[at : at + 64]
    assert refused(swapped)


def test_a_record_under_another_name_is_refused():
    assert FIRST.name.hex() in refused(RECORD, FIRST)
    assert refused(sealed(FIRST), SECOND)


def test_a_record_under_another_group_is_refused():
    assert "'full' where 'window'" in refused(RECORD, group="window")


def test_a_payload_under_another_records_header_is_refused():
    other = Part(
        "full",
        tuple(c.__class__(c.name, c.dtype, c.shape, bytes(len(c.data))) for c in PART.components),
    )
    assert refused(RECORD[: header_bytes(RECORD)] + opened(sealed(part=other))[1])


def test_another_dtype_of_the_same_width_is_refused_and_has_another_content():
    fields, payload = opened(RECORD)
    text = canonical(fields).replace(b'"bfloat16"', b'"float16" ', 1)
    assert refused(RECORD[:PREAMBLE] + text + payload)
    relabelled = Part(
        "full",
        (Component("keys", "float16", (1, 4, 3), PART.components[0].data), PART.components[1]),
    )
    assert content(relabelled) != content(PART)


def test_another_shape_of_the_same_size_is_refused_and_has_another_content():
    assert refused(RECORD.replace(b"[1,4,3]", b"[1,3,4]"))
    reshaped = Part(
        "full",
        (Component("keys", "bfloat16", (1, 3, 4), PART.components[0].data), PART.components[1]),
    )
    assert content(reshaped) != content(PART)


# What lies does not, even where every digest fits.


@pytest.mark.parametrize("field", ["end", "ids", "name", "parent", "spans", "start"])
def test_a_header_with_another_blocks_field_is_refused(field):
    theirs = opened(sealed(FIRST))[0][field]
    ours = opened(RECORD)[0][field]
    assert theirs != ours
    record = lying(**{field: theirs})
    assert refused(record)
    with pytest.raises(CorruptRecord):
        read_header(record)


def test_a_parent_that_swallows_the_next_field_is_refused():
    # The digest's input is the same bytes; only the cut between parent and start has moved.
    fields = opened(RECORD)[0]
    assert refused(lying(parent=fields["parent"] + "0400000000000000", start=4))


def test_a_payload_that_does_not_fit_its_shapes_is_refused():
    fields, payload = opened(RECORD)
    header = canonical(fields)
    for cut in (payload[:-1], payload + b"\0", b""):
        assert "components of" in refused(forged(header, cut))
    assert "where the record has" in refused(forged(header, payload[:-1], payload_bytes=80))


def test_bytes_between_components_are_zero():
    fields, payload = opened(RECORD)
    for place in range(24, 64):
        filled = bytearray(payload)
        filled[place] = 1
        assert "not zero" in refused(forged(canonical(fields), bytes(filled)))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data):
    assert refused(data)
    with pytest.raises(CorruptRecord):
        read_header(data)


@given(st.binary(max_size=300), st.binary(max_size=64))
def test_arbitrary_bytes_under_honest_digests_are_refused(header, payload):
    assert refused(forged(header, payload))


@given(st.integers(0, 87), st.binary(min_size=1, max_size=16))
def test_an_overwritten_preamble_is_refused(place, data):
    altered = bytearray(RECORD)
    altered[place : place + len(data)] = data
    if bytes(altered) != RECORD:
        assert refused(bytes(altered))


# Content, key, and what is asked of a caller.


def test_content_is_of_the_components_alone():
    assert content(Part("window", PART.components)) == content(PART)
    assert unseal(sealed(FIRST), name=FIRST.name, group="full")[0].content == content(PART)


def test_no_two_small_parts_share_a_content():
    described = [
        (name, dtype, shape, fill)
        for name in ("a", "b", "ab")
        for dtype in ("bool", "uint8", "float16", "bfloat16")
        for shape in ((), (0,), (1,), (2,), (1, 1), (1, 2), (2, 1), (0, 1), (1, 0), (8,), (8, 0))
        for fill in (b"\0", b"\1")
    ]
    held = {
        Component(name, dtype, shape, fill * (prod(shape) * DTYPE_BYTES[dtype]))
        for name, dtype, shape, fill in described
    }
    parts = [
        (),
        *((one,) for one in held),
        *itertools.product(sorted(held, key=repr)[::5], repeat=2),
    ]
    contents = {content(Part("full", components)) for components in parts}
    assert len(contents) == len(parts)


def test_the_key_is_the_name_and_the_group():
    assert key(SECOND.name, "full-0") == SECOND.name.hex() + ".full-0"
    for name, group in ((SECOND.name, ""), (SECOND.name, "A"), (SECOND.name, "a.b"), (b"x", "a")):
        with pytest.raises(AssertionError):
            key(name, group)


def test_sealing_what_could_not_be_unsealed_is_a_bug():
    digest = content(PART)
    for block, part, stated in (
        (SECOND._replace(start=5), PART, digest),
        (SECOND._replace(parent=FIRST.parent), PART, digest),
        (SECOND._replace(end=9), PART, digest),
        (SECOND, Part("Full", PART.components), digest),
        (SECOND, Part("full", (Component("k\u00e9ys", "uint8", (0,), b""),)), digest),
        (SECOND, PART, digest[:16]),
    ):
        with pytest.raises(AssertionError):
            seal(block, part, content=stated)


def test_the_prefix_holds_the_header_of_a_block_of_1800_tokens():
    (block,) = name_blocks(Prompt.of([2**32 - 1] * 1800), (1800,), MODEL, Salt(b""))
    record = sealed(block)
    assert header_bytes(record) <= HEADER_PREFIX_BYTES
    assert read_header(record[:HEADER_PREFIX_BYTES]).block == block
