"""Planning against brute force, over every small inventory and every way to cut a prompt (I4)."""

import itertools

import pytest

from surefoot.laws import PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows, restorable

BLOCKS = 4
GRIDS = ((4, 8, 12, 16), (4, 10, 12, 19), (1, 2, 3, 4), (9, 10, 11, 30))
MODELS = (
    (TokenRows(),),
    (RecurrentSnapshot(),),
    (SlidingWindow(3),),
    (SlidingWindow(5),),
    (SlidingWindow(9),),
    (SlidingWindow(100),),
    (PooledRows(1), RecurrentSnapshot()),
    (TokenRows(), SlidingWindow(5), RecurrentSnapshot()),
    (SlidingWindow(2), SlidingWindow(6), RecurrentSnapshot()),
    (),
)


def brute_force(laws, ends, inventory, limit):
    """Return the greatest boundary whose every need is in the inventory, by trying them all."""
    good = [
        n
        for n in range(1, limit + 1)
        if all(
            (group, block) in inventory
            for group, law in enumerate(laws)
            for block in law.needs(ends, n)
        )
    ]
    return max(good, default=0)


def inventories(groups):
    cells = list(itertools.product(range(groups), range(BLOCKS)))
    for bits in itertools.product((False, True), repeat=len(cells)):
        yield frozenset(itertools.compress(cells, bits))


def check(plan, ends):
    for laws in MODELS:
        for inventory in inventories(len(laws)):
            for limit in range(BLOCKS + 1) if len(laws) < 3 else (BLOCKS - 1, BLOCKS):

                def held(group, block, inventory=inventory):
                    return (group, block) in inventory

                found = plan(laws, ends, held, limit=limit)
                assert found == brute_force(laws, ends, inventory, limit)


@pytest.mark.parametrize("ends", GRIDS, ids=str)
def test_a_plan_is_the_greatest_boundary_that_all_laws_accept(ends):  # I4
    check(restorable, ends)


def least(laws, ends, held, *, limit):
    return next((n for n in range(1, limit + 1) if accepted(laws, ends, held, n)), 0)


def first_group_decides(laws, ends, held, *, limit):
    return restorable(laws[:1], ends, held, limit=limit)


def stop_at_the_first_hole(laws, ends, held, *, limit):
    n = 0
    while n < limit and accepted(laws, ends, held, n + 1):
        n += 1
    return n


def past_the_limit(laws, ends, held, *, limit):
    return restorable(laws, ends, held, limit=len(ends))


def any_group(laws, ends, held, *, limit):
    return max(
        (
            restorable((law,), ends, lambda _, block, group=group: held(group, block), limit=limit)
            for group, law in enumerate(laws)
        ),
        default=0,
    )


def accepted(laws, ends, held, n):
    needs = ((group, block) for group, law in enumerate(laws) for block in law.needs(ends, n))
    return all(held(group, block) for group, block in needs)


@pytest.mark.parametrize(
    "wrong", [least, first_group_decides, stop_at_the_first_hole, past_the_limit, any_group]
)
def test_the_enumeration_rejects_a_wrong_plan(wrong):
    with pytest.raises(AssertionError):
        check(wrong, GRIDS[0])


@pytest.mark.parametrize("limit", [-1, 3])
@pytest.mark.parametrize("laws", [(), (TokenRows(),)])
def test_the_limit_lies_inside_the_grid(laws, limit):
    with pytest.raises(AssertionError):
        restorable(laws, (4, 8), lambda group, block: True, limit=limit)


def test_nothing_above_the_limit_is_asked_for():
    asked = []
    restorable((TokenRows(),), (4, 8, 12), lambda g, block: not asked.append(block), limit=2)
    assert asked == [0, 1]
