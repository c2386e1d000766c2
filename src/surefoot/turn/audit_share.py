"""Which chain an idle server audits next, and when: a share of what its turns consumed.

Every token of a prompt that a turn consumed earns a share of a token's audit. What is earned adds
up to one whole context and no further, so the longest chain has its turn and a quiet night is no
debt. The chain that comes first waits until what was earned covers it; nothing shorter is let past,
or long chains would never be audited. What an audit computed is paid for, finished or not: a chain
that is interrupted again and again is tried no more often than the share allows, and after
``RESTARTS`` times behind all others.

A chain with images is audited while the items of the last turns are at hand, so many bytes of them.
"""

from collections import Counter, OrderedDict, deque
from math import inf

from surefoot.cache.audit import AuditVerdict
from surefoot.identity import Block, BlockName
from surefoot.prompt import MediaItem, MediaName
from surefoot.turn.audit import Audit
from surefoot.turn.ledger import Ledger, Serving

RESTARTS = 3  # audits of one chain that a request may end before others come first
TRIES = 16  # chains looked up at a time, of those that may be gone: a request would wait so long
LAST_TURNS = 16  # whose blocks are kept: a model of snapshots alone stores few of their tokens


class AuditShare:
    """What was earned and on what it is spent; called on the engine thread alone."""

    def __init__(self, serving: Serving, *, share: float, media_bytes: int) -> None:
        assert share >= 0, share
        self._serving = serving
        self._share = 0.0 if serving.engine.unsupported is not None else share
        self._media_bytes = media_bytes
        self._media: OrderedDict[MediaName, MediaItem] = OrderedDict()
        self._turns: deque[tuple[Block, ...]] = deque(maxlen=LAST_TURNS)
        self._earned = 0.0  # tokens
        self._wanted: float = serving.engine.block_tokens  # tokens that the next audit needs
        self._restarts: Counter[BlockName] = Counter()
        self._audited: set[BlockName] = set()  # since the last turn: once is enough

    @property
    def due(self) -> bool:
        """Whether enough was earned to look for a chain."""
        earned = self._share > 0 and self._earned >= self._wanted
        # Of an engine that differs from itself, audits can tell nothing more.
        return earned and self._serving.cache.exact == "bitwise"

    def earn(self, ledger: Ledger) -> None:
        """Count what a turn consumed, and keep its blocks and its media items at hand."""
        if not self._share:
            return
        engine = self._serving.engine
        self._earned += ledger.position * self._share
        self._earned = min(self._earned, float(engine.context_tokens))
        self._audited.clear()
        if self._wanted == inf:
            self._wanted = engine.block_tokens
        if ledger.plan is not None:
            self._turns.append(ledger.plan.blocks)
        for item in ledger.media:
            self._media[item.name] = item
            self._media.move_to_end(item.name)
        while sum(len(item.data) for item in self._media.values()) > self._media_bytes:
            self._media.popitem(last=False)

    def take(self) -> Audit | None:
        """Return the audit that comes next; None if no chain is left, or what was earned is short.

        Costs a look at the index.
        """
        listed = self._serving.cache.auditor.leaves()
        leaves = [leaf for leaf in listed if leaf.name not in self._audited]
        tried = [leaf for leaf in leaves if self._restarts[leaf.name] < RESTARTS]
        if not tried:
            self._restarts.clear()
        for leaf in (tried or leaves)[:TRIES]:
            chain = self._chain(leaf.name)
            if chain is None or leaf.end > self._serving.engine.context_tokens:
                self.give_up(leaf.name)
                continue
            self._wanted = leaf.end
            return Audit(chain, dict(self._media)) if self.due else None
        if len(tried or leaves) <= TRIES:
            self._wanted = inf
        return None

    def spend(self, audit: Audit, *, interrupted: bool) -> None:
        """Pay for what an audit computed; one that came to no end by itself is given up."""
        leaf = audit.chain[-1].name
        self._earned -= audit.computed_tokens
        self._wanted = self._serving.engine.block_tokens
        if interrupted:
            self._restarts[leaf] += 1
        else:
            del self._restarts[leaf]
            self._audited.update({leaf, *audit.verdicts})
            if audit.finding is None and leaf not in audit.verdicts:
                self.give_up(leaf)

    def give_up(self, leaf: BlockName) -> None:
        """Put a chain behind all others: it cannot be audited, or its audit broke."""
        self._audited.add(leaf)
        self._serving.cache.auditor.note({leaf: AuditVerdict.UNAUDITABLE})

    def _chain(self, leaf: BlockName) -> tuple[Block, ...] | None:
        stored = self._serving.cache.lineage(leaf)
        if stored is not None:
            return stored
        for blocks in self._turns:
            for count, block in enumerate(blocks, 1):
                if block.name == leaf:
                    return blocks[:count]
        return None
