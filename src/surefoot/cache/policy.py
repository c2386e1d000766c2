"""Which boundaries keep a recurrent snapshot: decided before a block runs, so an unkept one costs
nothing. Rows, pooled rows and windows are cut for every block.

The law of hits. A stored prompt and a new one share ``s`` tokens, the new one has ``t`` more after
them; ``C`` is the grid's step, ``S = s // C``, and ``L = (s + t - 1) // C`` the last boundary below
the new prompt's last token. With nothing evicted, the new prompt restores

    S' = min(S, L) blocks                where no group is a recurrent snapshot;
    S' blocks                            where one is, if the stored prompt ended at S' (the next
                                         turn of a conversation, the same prompt again), if another
                                         prompt has already left it there (the third one does), if
                                         its first or its last image begins in the block after it,
                                         or if a snapshot is no larger than the block's rows;
    the ladder's last rung <= S' blocks  otherwise, or more if some prompt ended in between.

Where an image begins, a script that shows many pictures under one text leaves the prompt that it
sent before. Two such snapshots a prompt, however many images it has: its first, behind what all of
them share, and its last, in the newest turn.

The ladder is 1, 2, 4, 8, 16 and then every 16th block. Below 16 the doubling keeps at least half of
what is shared, for five snapshots; above, a miss costs at most 15 blocks of prefill, once, because
the branch point is kept on the way. A finer ladder would pay a snapshot per block for prefixes that
are almost never left at that very block; a purely doubling one would recompute half of a long
shared prefix.
"""

from bisect import bisect_right
from collections.abc import Sequence

from surefoot.identity import Block
from surefoot.laws import RecurrentSnapshot
from surefoot.state import Group

LADDER_BLOCKS = 16


def on_ladder(n: int) -> bool:
    """Return whether boundary ``n``, in blocks, is a rung of the sparse ladder."""
    assert n > 0, n
    return n % LADDER_BLOCKS == 0 or (n < LADDER_BLOCKS and n & (n - 1) == 0)


def kept_groups(
    groups: Sequence[Group],
    blocks: Sequence[Block],
    block_index: int,
    *,
    prompt_tokens: int,
    branch: int,
) -> frozenset[str]:
    """Return the groups whose part of a block is worth cutting once the block is prefilled.

    Args:
        groups: the model's groups.
        blocks: every whole block of the prompt.
        block_index: the block that is about to run.
        prompt_tokens: length of the whole prompt, tail included.
        branch: the boundary at which the prompt leaves what is stored, in blocks; 0 for none.
    """
    assert 0 <= block_index < len(blocks), (block_index, len(blocks))
    block, n = blocks[block_index], block_index + 1
    rows = [one for one in groups if not isinstance(one.law, RecurrentSnapshot)]
    snapshots = [one for one in groups if isinstance(one.law, RecurrentSnapshot)]
    kept = {one.name for one in rows}
    if n in _wanted(blocks, prompt_tokens, branch) or on_ladder(n):
        kept.update(one.name for one in snapshots)
    rows_bytes = sum(one.part_bytes(block.start, block.end) for one in rows)
    kept.update(
        one.name for one in snapshots if one.part_bytes(block.start, block.end) <= rows_bytes
    )
    return frozenset(kept)


def _wanted(blocks: Sequence[Block], prompt_tokens: int, branch: int) -> set[int]:
    # The same prompt again stands below its last token; the next turn stands at its last boundary.
    ends = [block.end for block in blocks]
    below, last = bisect_right(ends, prompt_tokens - 1), bisect_right(ends, prompt_tokens)
    return {below, last, branch, *_before_images(blocks)} - {0}


def _before_images(blocks: Sequence[Block]) -> list[int]:
    """Return the last boundaries before the first image and before the last one that begin."""
    begun = [
        index for index, block in enumerate(blocks) if any(span.offset == 0 for span in block.spans)
    ]
    return [begun[0], begun[-1]] if begun else []
