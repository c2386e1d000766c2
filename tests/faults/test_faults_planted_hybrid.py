"""A recurrent snapshot of another conversation, planted in a real hybrid's store (I8)."""

import pytest
import torch

from surefoot.cache import content
from surefoot.cache.audit import AuditVerdict
from surefoot.engine import Sampling
from surefoot.laws import RecurrentSnapshot
from surefoot.prompt import Prompt
from surefoot.record import key, seal, unseal
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.witness import WatchedEngine, opened, ticking
from surefoot.turn import CacheMode, Serving
from surefoot.turn.audit import Audit, audit

pytestmark = pytest.mark.usefixtures("patience")

B = 64
MINE, OTHERS = ([(seed * 37 + i * 11) % 240 for i in range(3 * B + 5)] for seed in (1, 9))
AMPLE = 1 << 26


@pytest.fixture(scope="module")
def engine():
    return WatchedEngine("qwen3_5", torch.float32)


def audited(engine, cache):
    serving = Serving(engine, FakeChat(), cache, ticking(), 1e9)
    (leaf,) = cache.auditor.leaves()
    account = Audit(cache.lineage(leaf.name))
    list(audit(serving, account))
    assert cache.drain(60)
    return account


def plant(engine, cache):
    """Put the state that another conversation left into the deepest snapshot's record."""
    (group,) = [one.name for one in engine.groups if isinstance(one.law, RecurrentSnapshot)][:1]
    (leaf,) = cache.auditor.leaves()
    chain = cache.lineage(leaf.name)
    run = engine.engine.begin(Prompt.of(OTHERS), Sampling())
    for block in chain:
        run.prefill(block.end)
    (lie,) = run.cut(chain[-1].start, [group])
    run.close()
    tier, at = cache._ssd.tier, key(leaf.name, group)
    was, true = unseal(tier.get(at), name=leaf.name, group=group)
    assert content(true) != content(lie)
    tier.put(at, seal(chain[-1], lie, content=content(lie), features=(), fence=was.fence))
    return chain, group


def test_a_planted_snapshot_is_served_then_caught_and_the_answer_is_cold_again(engine, tmp_path):
    with opened(engine, tmp_path, ram_bytes=AMPLE) as cache:
        cold = engine.answer(cache, MINE, CacheMode.BYPASS)
        engine.answer(cache, MINE, CacheMode.USE)
    with opened(engine, tmp_path, ram_bytes=0) as cache:
        chain, group = plant(engine, cache)
        false = engine.answer(cache, MINE, CacheMode.USE)
        assert false["restored"] == 3 * B
        assert (false["logits"], false["state_digest"]) != (cold["logits"], cold["state_digest"])
    with opened(engine, tmp_path, ram_bytes=AMPLE) as cache:
        account = audited(engine, cache)
        assert account.fence.name == chain[-1].name
        assert group in account.finding
        assert [account.verdicts[block.name] for block in chain] == [
            *[AuditVerdict.AGREED] * (len(chain) - 1),
            AuditVerdict.DIFFERED,
        ]
        for warm in (False, True):
            again = engine.answer(cache, MINE, CacheMode.USE)
            assert (again["restored"] == 3 * B) == warm
            for what in ("tokens", "logits", "state", "state_digest"):
                assert again[what] == cold[what], what
        assert set(audited(engine, cache).verdicts.values()) == {AuditVerdict.AGREED}
