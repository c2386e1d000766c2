"""What to evict: the tree of blocks with the parts one tier holds, judged by the laws. Pure.

Every need is a run of blocks that ends at its boundary (``laws``), so two passes decide all of it:
run lengths top-down say which boundaries are restorable from these parts; reach bottom-up says how
many blocks upward some restorable boundary still needs, per group:

    reach[v] = max(own need if v is restorable, reach[child] - 1 for each child)

A part with reach 0 is dead: no boundary needs it (an old window's part, rows above a hole). Dead
parts go first. Then boundaries are retired, least recently used first and deepest first among
equals, each taking the parts that it alone still needed. So after an eviction every part left is
needed by a restorable boundary, or pinned (I13).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from surefoot.identity import BlockName
from surefoot.laws import Law


class Stored(NamedTuple):
    """One part in a tier: its bytes, when it was last used, and whether it must stay (I7)."""

    nbytes: int
    tick: float
    fast: bool = False


@dataclass(slots=True)
class Node:
    """One block and the parts of it that a tier holds, by group."""

    parent: BlockName
    start: int
    end: int
    parts: dict[str, Stored] = field(default_factory=dict)


class Retirement(NamedTuple):
    """A restorable boundary in the order of leaving: least recently used, then deepest."""

    tick: float
    above: int  # minus the block's end, so that a deeper one sorts first
    name: BlockName


class Forest:
    """The blocks of one model in one tier; consumes ``nodes``: parts leave it as they go."""

    def __init__(self, nodes: dict[BlockName, Node], laws: Mapping[str, Law]) -> None:
        self._nodes = nodes
        self._groups = tuple(laws)
        self._laws = tuple(laws.values())
        self._children: dict[BlockName | None, list[BlockName]] = {}
        self._own: dict[BlockName, list[int]] = {}
        for name in nodes:
            self._children.setdefault(self._parent(name), []).append(name)
        order = self._measure()
        self._reach: dict[BlockName, list[int]] = {}
        for name in reversed(order):
            self._reach[name] = self._reach_of(name)

    def dead(self) -> list[tuple[BlockName, str]]:
        """Remove and return the parts that no restorable boundary needs, pinned ones excepted."""
        return [(name, group) for name in self._nodes for group in self._release(name)]

    def retirements(self) -> list[Retirement]:
        """Return every restorable boundary in the order of leaving."""
        listed = [
            Retirement(min(part.tick for part in node.parts.values()), -node.end, name)
            for name, node in self._nodes.items()
            if any(self._own[name])
        ]
        return sorted(listed)

    def retire(self, name: BlockName) -> list[tuple[BlockName, str]]:
        """Want this boundary no more; remove and return the parts that nothing else needs."""
        self._own[name] = [0] * len(self._laws)
        freed: list[tuple[BlockName, str]] = []
        at: BlockName | None = name
        while at is not None:
            reach = self._reach_of(at)
            if reach == self._reach[at]:
                break
            self._reach[at] = reach
            freed += [(at, group) for group in self._release(at)]
            at = self._parent(at)
        return freed

    def _parent(self, name: BlockName) -> BlockName | None:
        # Ends rise along every edge, so that even a damaged index cannot hold a cycle.
        node = self._nodes[name]
        above = self._nodes.get(node.parent)
        return node.parent if above is not None and above.end == node.start else None

    def _measure(self) -> list[BlockName]:
        # Depth first from every block whose parent is not here; parents before their children.
        nothing = [0] * len(self._laws)
        order: list[BlockName] = []
        for root in self._children.get(None, ()):
            # What is missing below stands for one block that nothing is held of.
            first = self._nodes[root]
            ends = [first.start] if first.start else []
            runs = [nothing] * len(ends)
            stack = [(root, len(ends))]
            while stack:
                name, depth = stack.pop()
                del ends[depth:], runs[depth:]
                ends.append(self._nodes[name].end)
                runs.append(self._runs(name, runs[-1] if runs else nothing))
                self._own[name] = self._needs(ends, runs[-1])
                order.append(name)
                stack += [(child, depth + 1) for child in self._children.get(name, ())]
        return order

    def _runs(self, name: BlockName, above: list[int]) -> list[int]:
        parts = self._nodes[name].parts
        return [
            run + 1 if group in parts else 0 for group, run in zip(self._groups, above, strict=True)
        ]

    def _needs(self, ends: list[int], runs: list[int]) -> list[int]:
        needs = [len(law.needs(ends, len(ends))) for law in self._laws]
        held = all(run >= need for run, need in zip(runs, needs, strict=True))
        return needs if held else [0] * len(needs)

    def _reach_of(self, name: BlockName) -> list[int]:
        reach = list(self._own[name])
        for child in self._children.get(name, ()):
            for group, depth in enumerate(self._reach[child]):
                reach[group] = max(reach[group], depth - 1)
        return reach

    def _release(self, name: BlockName) -> list[str]:
        parts = self._nodes[name].parts
        reach = dict(zip(self._groups, self._reach[name], strict=True))
        # A group without a law is no longer part of the model: no boundary needs it.
        freed = [one for one in parts if reach.get(one, 0) < 1 and not parts[one].fast]
        for group in freed:
            del parts[group]
        return freed


def victims(
    nodes: dict[BlockName, Node], laws: Mapping[str, Law], *, free: float
) -> Iterator[tuple[BlockName, str]]:
    """Yield the dead parts, then what must go to free ``free`` bytes in all; consumes ``nodes``."""
    yield from victims_of([(nodes, laws)], free=free)


def victims_of(
    models: list[tuple[dict[BlockName, Node], Mapping[str, Law]]], *, free: float
) -> Iterator[tuple[BlockName, str]]:
    """Yield as ``victims`` does, over the blocks of several models in one order of leaving."""
    sizes = {
        (name, group): part.nbytes
        for nodes, _ in models
        for name, node in nodes.items()
        for group, part in node.parts.items()
    }
    forests = [Forest(nodes, laws) for nodes, laws in models]
    for forest in forests:
        for key in forest.dead():
            free -= sizes[key]
            yield key
    leaving = sorted(
        (step, index) for index, forest in enumerate(forests) for step in forest.retirements()
    )
    for step, index in leaving:
        if free <= 0:
            return
        for key in forests[index].retire(step.name):
            free -= sizes[key]
            yield key
