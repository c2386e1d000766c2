"""Each law against a toy layer: its needs are enough to go on, and none of them is idle (I4).

A toy layer stores its rows by block and answers the next token from what it may read. Grids are
enumerated whole, moved ends included, so no law passes by luck.
"""

import itertools

import pytest

from surefoot.laws import PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows

TOKENS_MAX = 8
GRIDS = tuple(
    ends
    for blocks in range(1, 6)
    for ends in itertools.combinations(range(1, TOKENS_MAX + 1), blocks)
)


class ToyRows:
    """Attention: the next output is a function of the rows in reach; one row per ``stride``."""

    def __init__(self, law, keep=None, stride=1):
        self.law, self.keep, self.stride = law, keep, stride

    def parts(self, ends):
        """Cut each block's last ``law.rows`` rows, as an engine does."""
        starts = (0, *ends)
        cut = []
        for start, end in zip(starts, ends, strict=False):
            rows = [f"row {at}" for at in range(start // self.stride, end // self.stride)]
            kept = self.law.rows(start, end)
            cut.append(tuple(rows[len(rows) - kept :]))
        return cut

    def truth(self, ends, n):
        rows = [f"row {at}" for at in range(ends[n - 1] // self.stride)]
        return tuple(rows if self.keep is None else rows[-self.keep :])

    def next_output(self, parts):
        rows = [row for block in sorted(parts) for row in parts[block]]
        return tuple(rows if self.keep is None else rows[-self.keep :])


class ToyRecurrent:
    """A recurrence: each block's part is the state after it."""

    def __init__(self, law):
        self.law = law

    def parts(self, ends):
        return [(f"state {end}",) for end in ends]

    def truth(self, ends, n):
        return (f"state {ends[n - 1]}",)

    def next_output(self, parts):
        return parts[max(parts)] if parts else None


def toys():
    yield ToyRows(TokenRows())
    for stride in range(1, 5):
        yield ToyRows(PooledRows(stride), stride=stride)
    for keep in range(1, TOKENS_MAX + 2):
        yield ToyRows(SlidingWindow(keep), keep=keep)
    yield ToyRecurrent(RecurrentSnapshot())


def cases(toy):
    """Yield every grid that the law allows, with every boundary in it."""
    stride = toy.law.stride if isinstance(toy.law, PooledRows) else 1
    for ends in GRIDS:
        if all(end % stride == 0 for end in ends):
            for n in range(1, len(ends) + 1):
                yield ends, n


ALL = [pytest.param(toy, id=repr(toy.law)) for toy in toys()]


def stands(toy, needs, ends, n):
    parts = toy.parts(ends)
    return toy.next_output({block: parts[block] for block in needs}) == toy.truth(ends, n)


@pytest.mark.parametrize("toy", ALL)
def test_needed_parts_are_enough(toy):  # I4
    for ends, n in cases(toy):
        assert stands(toy, toy.law.needs(ends, n), ends, n)


@pytest.mark.parametrize("toy", ALL)
def test_every_needed_part_matters(toy):  # I4
    for ends, n in cases(toy):
        needs = toy.law.needs(ends, n)
        for block in needs:
            assert not stands(toy, set(needs) - {block}, ends, n)


@pytest.mark.parametrize("toy", ALL)
def test_a_need_is_a_run_that_ends_at_the_boundary(toy):
    for ends, n in cases(toy):
        needs = toy.law.needs(ends, n)
        assert 0 <= needs.start < needs.stop == n
        assert needs.step == 1


@pytest.mark.parametrize("toy", ALL)
def test_a_need_does_not_depend_on_what_comes_after_the_boundary(toy):
    for ends, n in cases(toy):
        assert toy.law.needs(ends, n) == toy.law.needs(ends[:n], n)


@pytest.mark.parametrize("toy", ALL)
@pytest.mark.parametrize("n", [-1, 0, 3])
def test_there_is_no_need_outside_the_grid(toy, n):
    with pytest.raises(AssertionError):
        toy.law.needs((4, 8), n)


def test_a_window_needs_the_fewest_last_blocks_that_cover_it():
    for keep in range(1, TOKENS_MAX + 2):
        for ends, n in cases(ToyRows(SlidingWindow(keep))):
            fewest = next(
                blocks
                for blocks in range(1, n + 1)
                if ends[n - 1] - (0, *ends)[n - blocks] >= min(ends[n - 1], keep)
            )
            assert SlidingWindow(keep).needs(ends, n) == range(n - fewest, n)


def test_pooled_rows_never_cross_a_block_end():
    for start, end in ((1, 4), (0, 3), (2, 6)):
        with pytest.raises(AssertionError):
            PooledRows(4).rows(start, end)


@pytest.mark.parametrize("law", [PooledRows, SlidingWindow])
@pytest.mark.parametrize("size", [0, -1])
def test_a_law_without_a_size_is_a_bug(law, size):
    with pytest.raises(AssertionError):
        law(size)


def test_rows_of_a_block():
    assert TokenRows().rows(4, 9) == 5
    assert PooledRows(4).rows(4, 12) == 2
    assert SlidingWindow(3).rows(4, 9) == 3
    assert SlidingWindow(7).rows(4, 9) == 5
    assert RecurrentSnapshot().rows(4, 9) == 0
