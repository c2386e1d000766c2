"""The longest boundary that every group can stand at, given what is stored (I4)."""

from collections.abc import Callable, Sequence

from surefoot.laws.kinds import Law


def restorable(
    laws: Sequence[Law], ends: Sequence[int], held: Callable[[int, int], bool], *, limit: int
) -> int:
    """Return the greatest ``n <= limit`` at which every law's needs are held, else 0 (I4).

    Linear in blocks and groups: because a need is a run that ends at the boundary, it is held when
    the unbroken run of held blocks that ends there is at least as long.

    Args:
        laws: one law per group.
        ends: block ends in tokens, ascending.
        held: ``held(group, block)`` is true if that group's part of that block is usable.
        limit: the largest boundary worth standing at, in blocks; at most ``len(ends)``.

    Returns:
        A boundary in blocks; 0 means start cold.
    """
    assert 0 <= limit <= len(ends), (limit, len(ends))
    best = 0
    runs = [0] * len(laws)
    for n in range(1, limit + 1):
        for group in range(len(laws)):
            runs[group] = runs[group] + 1 if held(group, n - 1) else 0
        if all(run >= len(law.needs(ends, n)) for law, run in zip(laws, runs, strict=True)):
            best = n
    return best
