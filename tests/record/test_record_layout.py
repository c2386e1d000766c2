"""Where components lie, against the plainest way to say it."""

from hypothesis import given
from hypothesis import strategies as st

from surefoot.record.layout import layout, padding, payload_bytes


def test_components_follow_each_other_at_aligned_offsets():
    slots = layout([("a", "uint8", (1,)), ("b", "float32", (16,)), ("c", "bool", (65,))])
    assert [(slot.start, slot.end) for slot in slots] == [(0, 1), (64, 128), (128, 193)]
    assert payload_bytes(slots) == 193
    assert payload_bytes(()) == 0


@given(st.lists(st.integers(0, 200)))
def test_no_two_components_overlap_and_no_gap_is_wider_than_it_must_be(sizes):
    slots = layout([("x", "uint8", (size,)) for size in sizes])
    end = 0
    for slot, size in zip(slots, sizes, strict=True):
        assert slot.start % 64 == 0
        assert 0 <= slot.start - end < 64
        assert slot.end - slot.start == size
        end = slot.end


def test_padding_reaches_the_next_aligned_offset():
    assert [padding(offset) for offset in (0, 1, 63, 64, 65)] == [0, 63, 1, 0, 63]
