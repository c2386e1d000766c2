"""State laws: which blocks' parts a layer group needs in hand to stand at a boundary.

A boundary ``n`` (in blocks) means that the model has consumed exactly the tokens before
``ends[n - 1]``. Every kind of layer state differs in one answer, ``needs(ends, n)``:

    token rows          all blocks before        one row per token, kept for ever
    pooled rows         all blocks before        one row per ``stride`` tokens
    sliding window      the last few blocks      that cover the last ``keep`` tokens
    recurrent snapshot  the last block only      one state, valid at that boundary alone

A need is always a run of blocks that ends at the boundary; planning, eviction and restore rely on
that. Laws are pure: they see token counts, never tensors, names or tiers.
"""

from surefoot.laws.boundary import restorable
from surefoot.laws.kinds import Law, PooledRows, RecurrentSnapshot, SlidingWindow, TokenRows

__all__ = [
    "Law",
    "PooledRows",
    "RecurrentSnapshot",
    "SlidingWindow",
    "TokenRows",
    "restorable",
]
