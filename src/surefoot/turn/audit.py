"""An audit: compute a stored chain of blocks cold, and compare it with the bytes that are stored.

A generator that yields after each unit, as a turn does: closing it between two units frees its
buffers and keeps the verdicts so far. Nothing that is stored goes into the computation, features
included, and nothing that a record says of itself is believed: what is compared is the digest of
the state just computed with that of the bytes each tier holds.

A first difference is computed again, before anything is blamed. If the two computations differ, the
engine does not repeat itself: nothing is quarantined. Else the record is wrong, and with it all
that was computed on top. Where the first computation agrees there is no second one. It would find
no further lie: a lie is a record unlike what an engine that repeats itself computes, and that shows
at once; of one that does not, no computation says what is a lie.
"""

from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from surefoot.cache import content
from surefoot.cache.audit import AuditVerdict, Copies
from surefoot.cache.fences import Fence, Reason
from surefoot.engine import Run, Sampling
from surefoot.errors import TierError
from surefoot.identity import Block, BlockName, FeatureName
from surefoot.prompt import MediaItem, MediaName, MediaSpan, Prompt, grid
from surefoot.turn.answer import Steps
from surefoot.turn.ledger import Serving
from surefoot.turn.request import Needs

Contents: TypeAlias = dict[str, bytes]  # group -> content digest of one block's part


@dataclass(slots=True)
class Audit:
    """The running account of one chain's audit; true whenever it ends."""

    chain: tuple[Block, ...]  # from a root's first block to the leaf
    media: Mapping[MediaName, MediaItem] = field(default_factory=dict)  # the items at hand
    done: Collection[BlockName] = frozenset()  # audited before: computed, but not compared again
    verdicts: dict[BlockName, AuditVerdict] = field(default_factory=dict)
    features: dict[FeatureName, AuditVerdict] = field(default_factory=dict)
    computed_tokens: int = 0
    finding: str | None = None  # what differed, and from what
    fence: Fence | None = None  # what was quarantined for it


def audit(serving: Serving, account: Audit) -> Steps:
    """Audit one chain, block by block from its root; yields between units.

    The first block that differs, and does so again, is quarantined, and the rest of the chain goes
    with it. Verdicts are noted in the cache whenever the audit ends.

    Raises:
        EngineError: at any unit.
    """
    prompt = prompt_of(account.chain)
    blocks = 0 if prompt is None else _computable(serving, account, prompt)
    for block in account.chain[blocks:]:
        if block.name not in account.done:
            account.verdicts[block.name] = AuditVerdict.UNAUDITABLE
    try:
        if blocks and prompt is not None:
            chain = account.chain[:blocks]
            cold = _Computation(serving, account, prompt.upto(chain[-1].end))
            yield Needs.of(serving.engine, chain[-1].end, cold.items)
            yield from _compare(serving, account, chain, cold)
    finally:
        serving.cache.auditor.note(account.verdicts)
        serving.cache.auditor.note(account.features)


def audit_chains(
    serving: Serving, leaves: Iterable[BlockName], on_chain: Callable[[Audit], None]
) -> None:
    """Audit the chains that end in these blocks, each shared block once; for a command.

    Args:
        serving: what the audits stand on; nothing else may use its engine meanwhile.
        leaves: last blocks of chains.
        on_chain: told each account, of chains that could not be computed as well.
    """
    judged: dict[BlockName, AuditVerdict] = {}
    for leaf in leaves:
        chain = serving.cache.lineage(leaf)
        account = Audit(_upto_wrong(chain or (), judged), done=frozenset(judged))
        if chain is None:
            account.verdicts[leaf] = AuditVerdict.UNAUDITABLE
            serving.cache.auditor.note(account.verdicts)
        elif account.chain and account.chain[-1].name not in judged:
            deque(audit(serving, account), maxlen=0)
        judged.update(account.verdicts)
        on_chain(account)


def _upto_wrong(
    chain: Sequence[Block], judged: Mapping[BlockName, AuditVerdict]
) -> tuple[Block, ...]:
    """Return a chain up to the first block that was quarantined: the rest went with it."""
    wrong = (at for at, one in enumerate(chain) if judged.get(one.name) is AuditVerdict.DIFFERED)
    return tuple(chain[: next(wrong, len(chain))])


def outcome(account: Audit) -> str:
    """Say what was done about an audit's finding."""
    if AuditVerdict.UNREPEATABLE in {*account.verdicts.values(), *account.features.values()}:
        return "computed again it differed from itself: nothing is quarantined, answers are numeric"
    if account.fence is None:
        return "barred in this process; its fence is not on disk yet"
    return f"quarantined by fence {account.fence.number}, with all that was computed on top of it"


def prompt_of(chain: Sequence[Block]) -> Prompt | None:
    """Return the prompt that these blocks were cut from; None if no prompt gives such blocks.

    A name commits to its own block and to its parent's name. That the two fit together, no name
    says.
    """
    spans: list[MediaSpan] = []
    end = 0
    for block in chain:
        if block.start != end:
            return None
        end = block.end
        for piece in block.spans:
            at = block.start + piece.start
            if piece.length < 1 or at + piece.length > end or piece.offset > at:
                return None
            if not piece.offset and at >= (spans[-1].end if spans else 0):
                spans.append(MediaSpan(at, piece.length, piece.media))
            elif (
                piece.offset
                and spans
                and spans[-1] == MediaSpan(at - piece.offset, piece.offset, piece.media)
            ):
                spans[-1] = MediaSpan(at - piece.offset, piece.offset + piece.length, piece.media)
            else:
                return None
    return Prompt(b"".join(block.ids for block in chain), tuple(spans))


def _computable(serving: Serving, account: Audit, prompt: Prompt) -> int:
    """Return how many first blocks this engine can compute with the media that is at hand."""
    engine, chain = serving.engine, account.chain
    ends = grid(prompt, engine.block_tokens, atomic=engine.atomic_spans)
    foreign = ends != tuple(block.end for block in chain) or len(prompt) > engine.context_tokens
    if foreign or max(prompt.tokens(), default=0) >= serving.chat.tokens:
        return 0
    for span in prompt.media:
        item = account.media.get(span.media)
        if item is None or (span.length != item.tokens and span.end != len(prompt)):
            return next(at for at, block in enumerate(chain) if block.end > span.start)
    return len(chain)


class _Computation:
    """One cold computation of a chain, and the digests of all that it made."""

    def __init__(self, serving: Serving, account: Audit, prompt: Prompt) -> None:
        self._serving = serving
        self._account = account
        self._prompt = prompt
        self._items = {one.media: account.media[one.media] for one in prompt.media}
        self.contents: dict[BlockName, Contents] = {}
        self.features: dict[MediaName, bytes] = {}

    @property
    def items(self) -> list[MediaItem]:
        """The prompt's items, in their order."""
        return [self._items[span.media] for span in self._prompt.media]

    def begin(self) -> Run:
        """Start at position 0."""
        return self._serving.engine.begin(self._prompt, Sampling(), self.items)

    def look(self, run: Run, block: Block) -> Iterator[None]:
        """Make and supply the features of the items that begin in a block; one item a unit."""
        for media in _media(block):
            if media not in self.features:
                made = self._serving.engine.encode(self._items[media])
                self.features[media] = content(made)
                run.supply(media, made)
                yield None

    def compute(self, run: Run, block: Block, groups: Collection[str]) -> Contents:
        """Prefill one block; return, and remember, the contents of its parts of these groups."""
        run.prefill(block.end)
        self._account.computed_tokens += block.end - block.start
        made = {part.group: content(part) for part in run.cut(block.start, groups)}
        self.contents[block.name] = made
        return made

    def repeated(self, upto: Block) -> Generator[None, None, bool]:
        """Compute everything once more; return whether it came out the same."""
        again = _Computation(self._serving, self._account, self._prompt)
        with closing(again.begin()) as run:
            for block in self._account.chain:
                yield from again.look(run, block)
                again.compute(run, block, self.contents[block.name].keys())
                yield None
                if block is upto:
                    break
        return (again.contents, again.features) == (self.contents, self.features)

    def made_again(self, media: MediaName) -> bool:
        """Run the vision tower once more; return whether it made the same."""
        return content(self._serving.engine.encode(self._items[media])) == self.features[media]


def _compare(serving: Serving, account: Audit, chain: Sequence[Block], cold: _Computation) -> Steps:
    """Compute block by block until one differs from what is stored of it, or all agree."""
    auditor, deadline_s = serving.cache.auditor, serving.restore_floor_s
    copies, wrong = Copies(), None
    with closing(cold.begin()) as run:
        for block in chain:
            cover = copies.cover
            copies = Copies(cover=cover)
            if block.name not in account.done:
                copies = auditor.copies(block, cover=cover, deadline_s=deadline_s)
            yield from cold.look(run, block)
            if not (yield from _compare_features(serving, account, block, copies, cold)):
                return
            wrong = copies.unlike(cold.compute(run, block, copies.groups))
            if wrong:
                break
            if copies.groups:
                account.verdicts[block.name] = AuditVerdict.AGREED
            yield None
    if wrong is None:
        return
    yield None
    account.finding = f"block {block.name.hex()} at {block.start}: {wrong}"
    damaged = bool(copies.faults)  # nothing has to be computed again to tell
    repeats = damaged or (_bitwise(serving) and (yield from cold.repeated(block)))
    account.verdicts[block.name] = (
        _quarantine(serving, account, block.name, damaged=damaged)
        if repeats
        else _unrepeatable(serving, account)
    )


def _compare_features(
    serving: Serving, account: Audit, block: Block, copies: Copies, cold: _Computation
) -> Generator[None, None, bool]:
    """Compare what is stored of the items that a block consumed; false if something differs."""
    auditor = serving.cache.auditor
    for media, name in zip(_media(block), copies.features, strict=False):
        if name in account.features:
            continue
        item = account.media[media]
        stored = auditor.feature_copies(name, item, deadline_s=serving.restore_floor_s)
        wrong = stored.unlike({"": cold.features[media]})
        yield None
        if wrong is None:
            if stored.found:
                account.features[name] = AuditVerdict.AGREED
            continue
        account.finding = f"features {name.hex()} of {media.hex()}: {wrong}"
        damaged = bool(stored.faults)
        account.features[name] = (
            _quarantine(serving, account, name, damaged=damaged)
            if damaged or (_bitwise(serving) and cold.made_again(media))
            else _unrepeatable(serving, account)
        )
        return False
    return True


def _bitwise(serving: Serving) -> bool:
    # Of an engine that is known to differ from itself, no computation proves anything.
    return serving.cache.exact == "bitwise"


def _quarantine(
    serving: Serving, account: Audit, name: BlockName | FeatureName, *, damaged: bool
) -> AuditVerdict:
    """Blame the record."""
    assert account.finding is not None
    reason = Reason.CORRUPT if damaged else Reason.AUDITED
    # A fence that is not on disk yet bars here all the same, and is written when the disk answers.
    with suppress(TierError):
        account.fence = serving.cache.quarantine(name, reason, account.finding)
    return AuditVerdict.DIFFERED


def _unrepeatable(serving: Serving, account: Audit) -> AuditVerdict:
    """Blame the engine."""
    assert account.finding is not None
    serving.cache.not_repeating(account.finding)
    return AuditVerdict.UNREPEATABLE


def _media(block: Block) -> tuple[MediaName, ...]:
    """Return the items that a block consumes, as often as its records name their features."""
    return tuple(dict.fromkeys(span.media for span in block.spans))
