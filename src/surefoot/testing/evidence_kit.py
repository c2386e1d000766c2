"""A store with a journal, and turns on it that leave receipts and evidence, without an engine.

As ``cache_kit``: a part's bytes are a function of its block's name, so a turn can be taken, told
about and captured in milliseconds.
"""

from collections.abc import Sequence
from pathlib import Path

from surefoot.cache import Cache, Plan, Restored
from surefoot.cache.evidence import BlockSpan, Committed, Evidence, Failure, Item, RestoredFrom
from surefoot.cache.folder import Folder
from surefoot.cache.journal import JOURNAL, Journal
from surefoot.cache.origins import note_model
from surefoot.identity import FeatureName, ModelName, Salt, state_digest
from surefoot.prompt import TOKEN_BYTES, MediaItem, MediaName, MediaSpan, Prompt
from surefoot.receipt import Finish, Kind, Media, Receipt
from surefoot.record import content
from surefoot.state import Group
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    MODEL,
    SALT,
    Bench,
    blocks_of,
    feature_name_of,
    features_of,
    part_of,
)

COUNTERS = {"plans": 3, "corrupt": 0, "tier_ssd_stalls": 1}
INGREDIENTS = {"weights": "aa" * 32, "config": '{"layers": 2}', "numerics: torch": "2.13"}
LOADED_AS = {"model": "spark", "dtype": None, "threads": 2, "block_tokens": 4, "device": "cpu"}


class Archive:
    """Opens caches on one store, and takes turns that end in its journal."""

    def __init__(self, folder: Path, groups: tuple[Group, ...] = EVERY_LAW) -> None:
        self.root = folder
        self.bench = Bench(folder, groups)
        self.settings: dict[str, object] = {"ram_bytes": 1 << 20, "threads": 2}

    def journal(self, cache: Cache) -> Journal:
        """Open the store's journal as a server would."""
        note_model(self.root, cache.model, ingredients=INGREDIENTS, loaded_as=LOADED_AS)
        return Journal(self.root / JOURNAL, secret=cache.secret, settings=self.settings)

    def take(
        self,
        cache: Cache,
        tokens: Sequence[int],
        receipt_id: str,
        *,
        media: Sequence[tuple[int, MediaItem]] = (),
        salt: Salt = SALT,
    ) -> tuple[Receipt, Evidence]:
        """Take a turn and enter it into the journal; ``media`` are items by their first token."""
        receipt, evidence = take_turn(cache, tokens, receipt_id, media=media, salt=salt)
        assert cache.drain(60)
        journal = self.journal(cache)
        journal.enter(receipt, evidence, counters=COUNTERS, at=self.bench.wall())
        assert (journal.entered, journal.dropped, journal.failed) == (1, 0, 0)
        journal.close()
        self.bench.wall.pass_(60.0)
        return receipt, evidence

    @property
    def folder(self) -> Folder:
        """The store's folder."""
        return Folder(self.root)


def take_turn(
    cache: Cache,
    tokens: Sequence[int],
    receipt_id: str = "t",
    *,
    media: Sequence[tuple[int, MediaItem]] = (),
    salt: Salt = SALT,
) -> tuple[Receipt, Evidence]:
    """Plan, restore, compute the rest and commit; return the receipt and the evidence of it."""
    spans = tuple(MediaSpan(start, item.tokens, item.name) for start, item in media)
    blocks = blocks_of(tokens, media=spans, model=cache.model, salt=salt)
    items = {item.name: feature_name_of(item, salt=salt) for _, item in media}
    for _, item in media:
        cache.commit_features(items[item.name], item, features_of(item))
    plan = cache.plan(blocks, limit=sum(block.end < len(tokens) for block in blocks))
    with cache.pinned(plan):
        restored = cache.restore(plan, deadline_s=5.0)
        made = _compute(cache, plan, restored.boundary, len(tokens), items)
    evidence = Evidence(
        root=blocks[0].parent if blocks else None,
        fence=plan.fence,
        blocks=tuple(BlockSpan(one.name, one.start, one.end) for one in blocks),
        restored=tuple(
            RestoredFrom(group, index, plan.usable[blocks[index].name, group].value, digest)
            for (group, index), digest in restored.contents.items()
        ),
        failed=tuple(
            Failure(group, index, fault) for (group, index), fault in restored.failed.items()
        ),
        committed=made,
        media=tuple(Item(item.name, items[item.name], start, item.tokens) for start, item in media),
        ids=Prompt.of(tokens).ids,
    )
    return _receipt(receipt_id, cache.model, plan, restored, evidence), evidence


def _compute(
    cache: Cache, plan: Plan, start: int, prompt_tokens: int, items: dict[MediaName, FeatureName]
) -> tuple[Committed, ...]:
    named = {one.name: one for one in cache.groups}
    made: list[Committed] = []
    for index, block in enumerate(plan.blocks[start:], start):
        kept = cache.kept_groups(plan, index, prompt_tokens=prompt_tokens)
        parts = [part_of(named[name], block) for name in sorted(kept)]
        digested = [(part, content(part)) for part in parts]
        consumed = tuple(dict.fromkeys(items[span.media] for span in block.spans))
        cache.commit(block, digested, turn=plan, features=consumed)
        made += [Committed(part.group, index, digest) for part, digest in digested]
    return tuple(made)


def _receipt(
    receipt_id: str, model: ModelName, plan: Plan, restored: Restored, evidence: Evidence
) -> Receipt:
    at, tokens = restored.boundary_tokens, len(evidence.ids) // TOKEN_BYTES
    contents = dict(restored.contents)
    contents |= {(one.group, one.block): one.content for one in evidence.committed}
    digest = state_digest((group, index, one) for (group, index), one in sorted(contents.items()))
    return Receipt(
        id=receipt_id,
        kind=Kind.TURN,
        model=model.hex(),
        finish=Finish.STOP,
        prompt_tokens=tokens,
        restored_tokens=at,
        computed_tokens=tokens - at,
        sources=dict(restored.sources),
        boundary_tokens=at,
        block_name=plan.blocks[restored.boundary - 1].name.hex() if restored.boundary else None,
        state_tokens=plan.blocks[plan.limit - 1].end if plan.limit else None,
        state_digest=digest.hex() if plan.limit else None,
        miss_reason=restored.miss_reason,
        verified=restored.verified or None,
        media=tuple(
            Media("image", one.name.hex(), one.tokens, one.start + one.tokens <= at)
            for one in evidence.media
        ),
    )


__all__ = ["COUNTERS", "INGREDIENTS", "LOADED_AS", "MODEL", "Archive", "take_turn"]
