"""Eviction against an oracle that knows only what a law says: enumerated, then sampled (I13)."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.cache.forest import Forest, Node, Stored, victims, victims_of
from surefoot.laws import PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows

BLOCK = 4
LAWS = {
    "rows": TokenRows(),
    "pooled": PooledRows(2),
    "window": SlidingWindow(6),
    "narrow": SlidingWindow(3),
    "state": RecurrentSnapshot(),
}
ROOT = b"root"


def tree(parents, depths, parts):
    """Nodes named by index; a parent is an index, -1 for the root, or None for one missing."""
    nodes = {}
    for index, parent in enumerate(parents):
        above = ROOT if parent == -1 else b"gone" if parent is None else bytes([parent])
        start = depths[index] * BLOCK
        nodes[bytes([index])] = Node(above, start, start + BLOCK, dict(parts[index]))
    return nodes


def depths_of(parents):
    depths = []
    for parent in parents:
        depths.append(0 if parent == -1 else 2 if parent is None else depths[parent] + 1)
    return depths


def path_to(nodes, name):
    path = []
    while name in nodes:
        path.append(name)
        name = nodes[name].parent
    return path[::-1]


def needed_at(nodes, laws, name):
    """Every part that standing at this block needs; None stands for a block that is missing."""
    path = path_to(nodes, name)
    start = nodes[path[0]].start
    blocks = [None] * (1 if start else 0) + path
    ends = [start] * (1 if start else 0) + [nodes[one].end for one in path]
    return {
        (blocks[index], group)
        for group, law in laws.items()
        for index in law.needs(ends, len(ends))
    }


def boundaries(nodes, laws):
    """The restorable boundaries with what each needs, by the definition."""
    held = {(name, group) for name, node in nodes.items() for group in node.parts}
    needs = {name: needed_at(nodes, laws, name) for name in nodes}
    return {name: needed for name, needed in needs.items() if needed and needed <= held}


def oracle(nodes, laws, free):
    """What is left once ``free`` bytes are freed: retire boundaries one by one, from scratch."""
    parts = {
        (name, group): part for name, node in nodes.items() for group, part in node.parts.items()
    }
    wanted = boundaries(nodes, laws)
    order = sorted(
        wanted,
        key=lambda name: (
            min(part.tick for part in nodes[name].parts.values()),
            -nodes[name].end,
            name,
        ),
    )
    left = dict(parts)

    def sweep():
        needed = set().union(*wanted.values())
        for key in list(left):
            if key not in needed and not left[key].fast:
                del left[key]

    def freed():
        return sum(part.nbytes for key, part in parts.items() if key not in left)

    sweep()
    for name in order:
        if freed() >= free:
            break
        del wanted[name]
        sweep()
    return set(left)


def left_after(nodes, laws, free):
    gone = list(victims(nodes, laws, free=free))
    assert len(gone) == len(set(gone))
    left = {(name, group) for name, node in nodes.items() for group in node.parts}
    assert not left & set(gone)
    return left


def check(parents, parts, laws, free):
    depths = depths_of(parents)
    expected = oracle(tree(parents, depths, parts), laws, free)
    nodes = tree(parents, depths, parts)
    assert left_after(nodes, laws, free) == expected
    # I13: what is left is needed by a boundary restorable from what is left, or pinned.
    needed = set().union(*boundaries(nodes, laws).values())
    for name, node in nodes.items():
        for group, part in node.parts.items():
            assert part.fast or (name, group) in needed


SHAPES = [
    parents
    for count in (1, 2, 3)
    for parents in product(*[[-1, None, *range(index)] for index in range(count)])
]
PAIRS = [
    ("rows",),
    ("window",),
    ("state",),
    ("rows", "state"),
    ("rows", "window"),
    ("window", "state"),
]


@pytest.mark.parametrize("groups", PAIRS, ids="+".join)
def test_every_small_tree_is_judged_as_the_definition_says(groups):
    laws = {group: LAWS[group] for group in groups}
    for parents in SHAPES:
        for held in product(product((False, True), repeat=len(groups)), repeat=len(parents)):
            parts = [
                {
                    group: Stored(1, tick=index)
                    for group, has in zip(groups, flags, strict=True)
                    if has
                }
                for index, flags in enumerate(held)
            ]
            if not all(parts):
                continue
            for free in (0, 1, 2, 9):
                check(parents, parts, laws, free)


@st.composite
def forests(draw):
    count = draw(st.integers(1, 12))
    parents = [
        draw(st.sampled_from([-1, None, *range(index), *[index - 1] * 3 * index]))
        for index in range(count)
    ]
    groups = draw(st.lists(st.sampled_from(sorted(LAWS)), min_size=1, max_size=3, unique=True))
    stored = st.builds(
        Stored,
        st.integers(0, 9),
        st.integers(0, 3).map(float),
        st.sampled_from([False, False, True]),
    )
    parts = [
        draw(st.dictionaries(st.sampled_from(groups), stored, min_size=1)) for _ in range(count)
    ]
    return parents, parts, {group: LAWS[group] for group in groups}, draw(st.integers(0, 60))


@given(forests())
def test_any_tree_is_judged_as_the_definition_says(case):
    check(*case)


def chain(count, groups, *, tick=lambda index, group: 0.0, nbytes=1):
    return {
        bytes([index]): Node(
            bytes([index - 1]) if index else ROOT,
            index * BLOCK,
            (index + 1) * BLOCK,
            {group: Stored(nbytes, tick(index, group)) for group in groups},
        )
        for index in range(count)
    }


def test_a_conversation_is_eaten_from_its_end():
    nodes = chain(6, ["rows"])
    gone = list(victims(nodes, {"rows": TokenRows()}, free=2))
    assert gone == [(b"\5", "rows"), (b"\4", "rows")]


def test_an_old_snapshot_goes_before_the_rows_it_stands_on():
    nodes = chain(6, ["rows", "state"], tick=lambda index, group: float(index))
    for index, node in enumerate(nodes.values()):
        if index not in (2, 5):
            del node.parts["state"]
        node.parts["rows"] = Stored(1, 5.0)  # every row was read by the last turn
    laws = {"rows": TokenRows(), "state": RecurrentSnapshot()}
    assert list(victims(nodes, laws, free=1)) == [(b"\2", "state")]


def test_rows_above_the_last_snapshot_are_dead():
    nodes = chain(4, ["rows"])
    nodes[b"\1"].parts["state"] = Stored(1, 0.0)
    laws = {"rows": TokenRows(), "state": RecurrentSnapshot()}
    assert sorted(Forest(nodes, laws).dead()) == [(b"\2", "rows"), (b"\3", "rows")]


def test_a_part_whose_group_has_no_law_is_dead():
    nodes = chain(1, ["rows", "old"])
    assert Forest(nodes, {"rows": TokenRows()}).dead() == [(b"\0", "old")]


def test_pinned_parts_stay_whatever_is_asked():
    nodes = chain(3, ["rows"])
    nodes[b"\2"].parts["rows"] = Stored(1, 0.0, fast=True)
    assert (b"\2", "rows") not in list(victims(nodes, {"rows": TokenRows()}, free=99))
    assert list(nodes[b"\2"].parts) == ["rows"]


def test_models_leave_in_one_order():
    old = chain(2, ["rows"], tick=lambda index, group: 1.0)
    new = {b"n" + name: node for name, node in chain(2, ["rows"], tick=lambda *_: 2.0).items()}
    new[b"n\1"].parent = b"n\0"
    laws = {"rows": TokenRows()}
    gone = list(victims_of([(new, laws), (old, laws)], free=3))
    assert gone == [(b"\1", "rows"), (b"\0", "rows"), (b"n\1", "rows")]


def test_a_long_conversation_is_judged_in_linear_time():
    # A path is never copied: 20,000 blocks in one chain would take minutes otherwise.
    nodes = {
        index.to_bytes(4, "big"): Node(
            (index - 1).to_bytes(4, "big") if index else ROOT,
            index * BLOCK,
            (index + 1) * BLOCK,
            {"rows": Stored(1, 0.0)},
        )
        for index in range(20_000)
    }
    assert len(list(victims(nodes, {"rows": TokenRows()}, free=1_000))) == 1_000
