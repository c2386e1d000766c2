"""What a turn's ledger says beyond its receipt: the records that it stood on, and those it made."""

from surefoot.cache.evidence import (
    BlockSpan,
    Committed,
    Evidence,
    Failure,
    Item,
    RestoredFrom,
)
from surefoot.prompt import TOKEN_BYTES
from surefoot.turn.ledger import Ledger


def evidence_of(ledger: Ledger) -> Evidence:
    """Return what to keep beside the receipt; copies nothing, and so costs microseconds.

    Its tokens are the whole prompt's: whoever takes it digests them, and writes none down.
    """
    plan, restored = ledger.plan, ledger.restored
    blocks = plan.blocks if plan is not None else ()
    came_from: list[RestoredFrom] = []
    failed: list[Failure] = []
    if plan is not None and restored is not None:
        came_from = [
            RestoredFrom(group, index, plan.usable[blocks[index].name, group].value, content)
            for (group, index), content in restored.contents.items()
        ]
        failed = [Failure(group, index, fault) for (group, index), fault in restored.failed.items()]
    made = [Committed(*one) for one in ledger.committed]
    return Evidence(
        root=blocks[0].parent if blocks else None,
        fence=plan.fence if plan is not None else 0,
        blocks=tuple(BlockSpan(one.name, one.start, one.end) for one in blocks),
        restored=tuple(sorted(came_from, key=_place)),
        failed=tuple(sorted(failed, key=_place)),
        committed=tuple(sorted(made, key=_place)),
        media=tuple(
            Item(span.media, ledger.features.get(span.media), span.start, span.length)
            for span in ledger.spans
        ),
        ids=ledger.ids[: (ledger.prompt_tokens or 0) * TOKEN_BYTES],
    )


def _place(one: RestoredFrom | Failure | Committed) -> tuple[int, str]:
    return one.block, one.group
