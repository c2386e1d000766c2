"""Who leaves the SSD tier when it is over its quota, over all models in the store. Pure.

Orphans first: records of a model that has been open nowhere for ``ORPHAN_S``, the longest unopened
one first. Then dead parts, then the least recently used, whichever model they belong to (``forest``
has the rules). The laws of a model that this process does not serve come from the inventory, where
its own process left them; without them each part is judged alone, by its age.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from surefoot.cache.forest import Node, victims_of
from surefoot.cache.inventory import ModelRow, Trees
from surefoot.cache.lifecycle import PartKey
from surefoot.identity import BlockName, ModelName
from surefoot.laws import Law, PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows
from surefoot.state import Group

ORPHAN_S = 7 * 24 * 3600.0  # a model that nobody opened for a week

Judged = tuple[dict[BlockName, Node], Mapping[str, Law]]


def leavers(
    trees: Trees,
    models: Mapping[ModelName, ModelRow],
    *,
    open_models: Collection[ModelName],
    free: float,
    now: float,
) -> Iterator[PartKey]:
    """Yield what must go to free ``free`` bytes; every dead part goes in any case (I13).

    Args:
        trees: the stored blocks by model; consumed.
        models: when each model was last open, and its laws.
        open_models: the models that some process serves right now.
        free: bytes to free; infinity for everything that is not pinned.
        now: the wall clock.
    """
    rows = {model: models.get(model, ModelRow(now, None)) for model in trees}
    old = orphans(rows, open_models=open_models, now=now)
    for model in old:
        sizes = _sizes(trees[model])
        for key in victims_of(_judged(trees[model], rows[model].laws), free=free):
            free -= sizes[key]
            yield key
    rest = [
        one
        for model, nodes in trees.items()
        if model not in old
        for one in _judged(nodes, rows[model].laws)
    ]
    yield from victims_of(rest, free=free)


def orphans(
    models: Mapping[ModelName, ModelRow], *, open_models: Collection[ModelName], now: float
) -> list[ModelName]:
    """Return the models that have been open nowhere for a week, the longest unopened first."""
    old = [
        (row.last_open, model)
        for model, row in models.items()
        if model not in open_models and now - row.last_open > ORPHAN_S
    ]
    return [model for _, model in sorted(old)]


def laws_of(groups: Sequence[Group]) -> dict[str, Law]:
    """Return each group's law by its name."""
    return {group.name: group.law for group in groups}


def encode_laws(groups: Sequence[Group]) -> str:
    """Return the laws of a model's groups as text, for whoever evicts without the model."""
    return json.dumps({group.name: _encode(group.law) for group in groups}, sort_keys=True)


def decode_laws(text: str | None) -> dict[str, Law] | None:
    """Return the laws that ``encode_laws`` wrote; None for a text this release cannot read."""
    try:
        return {name: _decode(*fields) for name, fields in json.loads(text or "").items()}
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError):
        return None


def _encode(law: Law) -> list[str | int]:
    match law:
        case TokenRows():
            return ["rows"]
        case PooledRows(stride):
            return ["pooled", stride]
        case SlidingWindow(keep):
            return ["window", keep]
        case RecurrentSnapshot():
            return ["snapshot"]
    raise AssertionError(law)


def _decode(kind: str, *numbers: int) -> Law:
    kinds = {
        "rows": TokenRows,
        "pooled": PooledRows,
        "window": SlidingWindow,
        "snapshot": RecurrentSnapshot,
    }
    law: Law = kinds[kind](*numbers)
    return law


def _judged(nodes: dict[BlockName, Node], laws: str | None) -> list[Judged]:
    known = decode_laws(laws)
    if known:
        return [(nodes, known)]
    # One tree per group, in which every part stands for itself.
    groups = sorted({group for node in nodes.values() for group in node.parts})
    return [
        (
            {
                name: Node(node.parent, node.start, node.end, {group: node.parts[group]})
                for name, node in nodes.items()
                if group in node.parts
            },
            {group: RecurrentSnapshot()},
        )
        for group in groups
    ]


def _sizes(nodes: Mapping[BlockName, Node]) -> dict[PartKey, int]:
    return {
        (name, group): part.nbytes
        for name, node in nodes.items()
        for group, part in node.parts.items()
    }
