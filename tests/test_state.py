"""Groups, schemas and parts: what a part claims is checked before an engine sees it."""

import itertools

import pytest

from surefoot.laws import PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows
from surefoot.state import DTYPE_BYTES, ROWS, Component, ComponentSchema, Group, Part, by_name

KEYS = ComponentSchema("keys", "bfloat16", (2, ROWS, 3))
VALUES = ComponentSchema("values", "float32", (ROWS,))
STATE = ComponentSchema("state", "float32", (4, 2))
FULL = Group("full", TokenRows(), (KEYS, VALUES))
GROUPS = (
    FULL,
    Group("window", SlidingWindow(3), (KEYS, VALUES)),
    Group("pooled", PooledRows(2), (KEYS,)),
    Group("recurrent", RecurrentSnapshot(), (STATE,)),
    Group("empty", RecurrentSnapshot(), (ComponentSchema("buffer", "float16", (1, 0, 8)),)),
)
BLOCKS = ((0, 4), (4, 8), (2, 8), (6, 8))


def part_of(group, start, end):
    """Return the part that ``group`` must hold for the block ``[start, end)``, all zeros."""
    rows = group.law.rows(start, end)
    components = []
    for one in group.schema:
        shape = tuple(rows if axis == ROWS else axis for axis in one.shape)
        elements = 1
        for axis in shape:
            elements *= axis
        data = bytes(elements * DTYPE_BYTES[one.dtype])
        components.append(Component(one.name, one.dtype, shape, data))
    return Part(group.name, tuple(components))


CASES = list(itertools.product(GROUPS, BLOCKS))
IDS = [f"{group.name} {start}-{end}" for group, (start, end) in CASES]


@pytest.mark.parametrize(("group", "block"), CASES, ids=IDS)
def test_a_part_that_fits_has_no_mismatch_and_the_promised_bytes(group, block):
    part = part_of(group, *block)
    assert group.mismatch(part, *block) is None
    assert part.nbytes == group.part_bytes(*block) == sum(len(c.data) for c in part.components)


def test_bytes_are_counted_by_the_law():
    assert FULL.part_bytes(4, 8) == 4 * (2 * 3 * 2 + 4)
    assert GROUPS[1].part_bytes(4, 8) == 3 * (2 * 3 * 2 + 4)
    assert GROUPS[2].part_bytes(4, 8) == 2 * (2 * 3 * 2)
    assert GROUPS[3].part_bytes(4, 8) == 4 * 2 * 4
    assert GROUPS[4].part_bytes(4, 8) == 0


def altered():
    """Yield parts that differ in one thing from what ``FULL`` holds for ``[4, 8)``."""
    keys, values = part_of(FULL, 4, 8).components
    yield "another group", Part("other", (keys, values))
    yield "a component missing", Part("full", (keys,))
    yield "a component too many", Part("full", (keys, values, values))
    yield "components turned round", Part("full", (values, keys))
    yield "no components", Part("full", ())
    yield "another name", Part("full", (Component("k", "bfloat16", (2, 4, 3), keys.data), values))
    yield (
        "another dtype of one size",
        Part("full", (Component("keys", "float16", (2, 4, 3), keys.data), values)),
    )
    yield (
        "another shape of one size",
        Part("full", (Component("keys", "bfloat16", (2, 3, 4), keys.data), values)),
    )
    yield (
        "another rank of one size",
        Part("full", (Component("keys", "bfloat16", (1, 2, 4, 3), keys.data), values)),
    )
    yield "rows of another block", part_of(FULL, 4, 7)
    yield (
        "rows in one component only",
        Part("full", (keys, Component("values", "float32", (3,), bytes(12)))),
    )


@pytest.mark.parametrize(("what", "part"), list(altered()), ids=[what for what, _ in altered()])
def test_a_part_that_does_not_fit_says_how(what, part):
    text = FULL.mismatch(part, 4, 8)
    assert text is not None
    assert ("'other'" in text and "'full'" in text) or "components" in text


def test_a_component_holds_the_bytes_its_shape_says():
    for dtype, size in DTYPE_BYTES.items():
        for count in (0, 1, 3):
            Component("x", dtype, (count,), bytes(count * size))
            for wrong in {count * size + 1, max(count * size - 1, 0)} - {count * size}:
                with pytest.raises(AssertionError):
                    Component("x", dtype, (count,), bytes(wrong))


def test_bytes_of_a_wide_view_are_counted_as_bytes():
    floats = memoryview(bytes(24)).cast("f")
    part = Part("x", (Component("x", "float32", (2, 3), floats),))
    assert part.nbytes == 24


def test_a_scalar_component_has_one_element():
    assert Component("x", "int64", (), bytes(8)).shape == ()


def test_a_schema_knows_its_dtype_and_has_at_most_one_axis_of_rows():
    with pytest.raises(AssertionError):
        ComponentSchema("x", "complex64", (1,))
    with pytest.raises(AssertionError):
        ComponentSchema("x", "float32", (ROWS, ROWS))
    assert ComponentSchema("x", "float32", (1, ROWS, 2)).shape_for(5) == (1, 5, 2)
    assert ComponentSchema("x", "float32", (1, 2)).shape_for(5) == (1, 2)


def test_groups_are_found_by_name_and_two_of_one_name_are_a_bug():
    assert by_name(GROUPS) == {group.name: group for group in GROUPS}
    assert by_name(iter(GROUPS)) == by_name(GROUPS)
    with pytest.raises(AssertionError):
        by_name((*GROUPS, GROUPS[0]))
