"""An audit as a turn's sibling: what it can compute, what it says else, how it is ended."""

import itertools

import pytest

from surefoot.cache import open_cache
from surefoot.cache.audit import AuditVerdict
from surefoot.cache.fences import Reason
from surefoot.chat.request import TokensInput
from surefoot.engine import Sampling
from surefoot.errors import TierError
from surefoot.identity import SpanSlice, name_blocks, salt_of
from surefoot.prompt import MediaSpan, Prompt, grid
from surefoot.record import key, seal, unseal
from surefoot.testing.cache_kit import spoiled
from surefoot.testing.fake_chat import FakeChat, image_item
from surefoot.testing.fake_engine import GROUPS, FakeEngine
from surefoot.turn import Ledger, Needs, Serving, TurnRequest, turn
from surefoot.turn.audit import Audit, audit, audit_chains, outcome, prompt_of

C = 4
SALT = salt_of(None, None)
AGREED, UNAUDITABLE = AuditVerdict.AGREED, AuditVerdict.UNAUDITABLE


class Place:
    """A cache in RAM over the fake engine, with one conversation or two in it."""

    def __init__(self, groups=GROUPS):
        self.engine = FakeEngine(block_tokens=C, groups=groups)
        self.now = 0.0
        self.cache = open_cache(
            model=self.engine.model,
            groups=self.engine.groups,
            feature_schema=self.engine.features,
            store=None,
            ram_bytes=1 << 20,
            ssd_bytes=0,
            feature_ram_bytes=1 << 20,
            feature_ssd_bytes=0,
            free_floor_bytes=0,
            io_threads=1,
            queue_bytes=1 << 20,
            clock=self.clock,
            wall_clock=self.clock,
            random_bytes=lambda n: bytes(n),
        )
        self.serving = Serving(self.engine, FakeChat(), self.cache, self.clock, 60.0)

    def clock(self):
        self.now += 0.001
        return self.now

    def ask(self, tokens):
        """Take a turn; return the blocks that are stored of it."""
        request = TurnRequest(
            id="t", input=TokensInput(tuple(tokens)), sampling=Sampling(), max_tokens=1
        )
        list(turn(ledger := Ledger(request, self.serving, 0.0)))
        self.engine.computed.clear()
        return ledger.plan.blocks


@pytest.fixture
def place():
    one = Place()
    yield one
    one.cache.close()


def prompt(n, *, seed=1):
    return [(seed * 37 + i * 11) % 250 + 1 for i in range(n)]


def run(place, account):
    list(audit(place.serving, account))
    assert place.engine.open_runs == 0
    return account


# --- from blocks back to the prompt ---------------------------------------------------------------

ITEMS = [image_item(bytes([seed]) * 9) for seed in (2, 4, 6)]


def laid_out(*pieces):
    ids, spans = [], []
    for piece in pieces:
        if isinstance(piece, int):
            ids += [7] * piece
        else:
            spans.append(MediaSpan(len(ids), piece.tokens, piece.name))
            ids += [1] * piece.tokens
    return Prompt.of(ids, tuple(spans))


LAYOUTS = [
    pieces for count in range(4) for pieces in itertools.product([0, 1, 3, 4, *ITEMS], repeat=count)
]


@pytest.mark.parametrize("atomic", [False, True])
def test_the_prompt_of_a_chain_is_the_prompt_its_blocks_were_cut_from(atomic):
    for pieces in LAYOUTS:
        made = laid_out(*pieces)
        ends = grid(made, C, atomic=atomic)
        chain = name_blocks(made, ends, b"m" * 32, SALT)
        assert prompt_of(chain) == made.upto(ends[-1] if ends else 0), pieces


def changed(block, *spans):
    return block._replace(spans=tuple(SpanSlice(*span, ITEMS[0].name) for span in spans))


def test_blocks_that_no_prompt_gives_have_no_prompt():
    chain = name_blocks(laid_out(4, 4, 4), (4, 8, 12), b"m" * 32, SALT)
    assert prompt_of(chain) is not None
    for wrong in (
        chain[1:],
        (chain[0], chain[2]),
        (changed(chain[0], (0, 5, 0)), *chain[1:]),  # longer than its block
        (changed(chain[0], (1, 0, 0)), *chain[1:]),  # of no token
        (changed(chain[0], (0, 2, 1)), *chain[1:]),  # begun before there was anything
        (changed(chain[0], (0, 3, 0), (2, 2, 0)), *chain[1:]),  # two at once
        (chain[0], changed(chain[1], (0, 2, 2)), chain[2]),  # goes on with what never began
        (changed(chain[0], (2, 2, 0)), changed(chain[1], (0, 2, 1)), chain[2]),  # with a gap
        (changed(chain[0], (1, 2, 0)), changed(chain[1], (0, 2, 2)), chain[2]),  # not to the end
    ):
        assert prompt_of(wrong) is None, wrong


# --- what is computed, and how --------------------------------------------------------------------


def test_an_audit_computes_the_chain_from_nothing_by_the_grid(place):
    blocks = place.ask(prompt(5 * C + 1))
    account = run(place, Audit(blocks))
    assert place.engine.computed == [*itertools.pairwise(range(0, 5 * C + 1, C))]
    assert account.verdicts == {block.name: AGREED for block in blocks}
    assert account.computed_tokens == 5 * C
    assert (account.finding, account.fence) == (None, None)
    assert place.cache.status()["counters"]["audits_agreed"] == 5


def test_an_audit_says_what_it_needs_before_it_holds_anything(place):
    blocks = place.ask(prompt(5 * C + 1))
    steps = audit(place.serving, Audit(blocks))
    assert next(steps) == Needs.of(place.engine, 5 * C)
    assert place.engine.open_runs == 0
    steps.close()


@pytest.mark.parametrize("units", range(1, 7))
def test_an_audit_that_is_ended_at_any_unit_frees_its_buffers_and_keeps_its_verdicts(place, units):
    blocks = place.ask(prompt(5 * C + 1))
    account = Audit(blocks)
    steps = audit(place.serving, account)
    for _ in range(units):
        next(steps)
    steps.close()
    assert place.engine.open_runs == 0
    assert account.verdicts == {block.name: AGREED for block in blocks[: units - 1]}
    assert account.computed_tokens == (units - 1) * C
    assert place.cache.status()["counters"]["audits_agreed"] == units - 1


def test_what_was_audited_before_is_computed_and_not_compared_again(place):
    blocks = place.ask(prompt(5 * C + 1))
    done = frozenset(block.name for block in blocks[:3])
    account = run(place, Audit(blocks, done=done))
    assert account.verdicts.keys() == {block.name for block in blocks[3:]}
    assert account.computed_tokens == 5 * C


def test_a_block_of_which_nothing_is_stored_any_more_gets_no_verdict(place):
    blocks = place.ask(prompt(5 * C + 1))
    for group in place.engine.groups:
        place.cache._ram.remove((blocks[2].name, group.name))
    account = run(place, Audit(blocks))
    assert account.verdicts.keys() == {block.name for block in blocks} - {blocks[2].name}


def foreign(place, kind):
    """Return a chain that this engine would never compute."""
    blocks = place.ask(prompt(5 * C + 1))
    match kind:
        case "another grid":
            made = Prompt.of(prompt(5 * C))
            return name_blocks(made, (C, C + 3), place.engine.model, SALT)
        case "a token that is none":
            made = Prompt.of([999, *prompt(4 * C)])
            return name_blocks(made, grid(made, C), place.engine.model, SALT)
        case "longer than the context":
            place.engine.context_tokens = 4 * C
        case "a gap":
            return (blocks[0], *blocks[2:])
    return blocks


@pytest.mark.parametrize(
    "kind", ["another grid", "a token that is none", "longer than the context", "a gap"]
)
def test_a_chain_that_this_engine_never_computes_is_unauditable(place, kind):
    chain = foreign(place, kind)
    account = run(place, Audit(chain))
    assert account.verdicts == {block.name: UNAUDITABLE for block in chain}
    assert place.engine.computed == []


@pytest.mark.parametrize("atomic", [False, True])
def test_an_item_of_another_length_is_not_the_one(place, atomic):
    place.engine.atomic_spans = atomic
    item, other = ITEMS[0], ITEMS[1]
    made = laid_out(6, item, 9)
    false = Prompt(made.ids, (MediaSpan(6, item.tokens, other.name),))
    chain = name_blocks(false, grid(false, C, atomic=atomic), place.engine.model, SALT)
    account = run(place, Audit(chain, {other.name: other}))
    assert account.verdicts == {block.name: UNAUDITABLE for block in chain[1:]}


# --- what follows from a difference ---------------------------------------------------------------


def lie(place, block, group="rows-0", fence=None):
    """Change what the RAM tier holds into the state of another block."""
    tier, at = place.cache._ram._tier, key(block.name, group)
    header, part = unseal(tier.get(at), name=block.name, group=group)
    tier.put(
        at,
        seal(
            block,
            spoiled(part),
            content=header.content,
            fence=header.fence if fence is None else fence,
        ),
    )


def test_a_difference_is_computed_again_before_anything_is_blamed(place):
    blocks = place.ask(prompt(5 * C + 1))
    lie(place, blocks[2])
    account = run(place, Audit(blocks))
    once = [*itertools.pairwise(range(0, 3 * C + 1, C))]
    assert place.engine.computed == once * 2
    assert account.computed_tokens == 6 * C
    assert account.fence.reason is Reason.AUDITED
    assert outcome(account).startswith("quarantined by fence 1")


def test_a_damaged_copy_is_blamed_without_computing_again(place):
    blocks = place.ask(prompt(5 * C + 1))
    tier, at = place.cache._ram._tier, key(blocks[2].name, "rows-0")
    tier.put(at, tier.get(at)[:-1] + b"?")
    account = run(place, Audit(blocks))
    assert account.computed_tokens == 3 * C
    assert account.fence.reason is Reason.CORRUPT
    assert account.verdicts[blocks[2].name] is AuditVerdict.DIFFERED


def test_what_an_ancestors_fence_bars_is_not_blamed_again(place):
    place.ask(prompt(5 * C + 1))
    blocks = place.ask(prompt(5 * C + 1))
    place.cache.quarantine(blocks[0].name, Reason.BY_HAND, "")
    place.ask(prompt(5 * C + 1))
    lie(place, blocks[2], fence=0)  # as it would be if an old file came back
    account = run(place, Audit(blocks))
    assert account.fence is None
    assert set(account.verdicts.values()) == {AGREED}


def test_a_fence_that_is_not_on_disk_yet_is_said_to_bar_here(place, monkeypatch):
    blocks = place.ask(prompt(5 * C + 1))
    lie(place, blocks[2])

    def fails(*_):
        raise TierError("the disk is full")

    monkeypatch.setattr(place.cache, "quarantine", fails)
    account = run(place, Audit(blocks))
    assert account.fence is None
    assert account.verdicts[blocks[2].name] is AuditVerdict.DIFFERED
    assert outcome(account).startswith("barred in this process")


def test_chains_that_share_blocks_are_compared_once_and_a_lie_in_those_ends_both(place):
    shared = prompt(3 * C)
    first, second = (place.ask([*shared, *prompt(2 * C + 1, seed=s)]) for s in (3, 5))
    accounts = []
    audit_chains(place.serving, [first[-1].name, second[-1].name], accounts.append)
    assert [len(account.verdicts) for account in accounts] == [5, 2]
    assert place.cache.status()["counters"]["audits_agreed"] == 7
    lie(place, first[1])
    accounts.clear()
    audit_chains(place.serving, [first[-1].name, second[-1].name], accounts.append)
    assert accounts[0].fence.name == first[1].name
    assert accounts[1].fence is None
    assert accounts[1].computed_tokens == 0


def test_a_chain_whose_tokens_are_gone_is_unauditable(place):
    blocks = place.ask(prompt(5 * C + 1))
    for group in place.engine.groups:
        place.cache._ram.remove((blocks[1].name, group.name))
    accounts = []
    audit_chains(place.serving, [blocks[-1].name], accounts.append)
    assert accounts[0].verdicts == {blocks[-1].name: UNAUDITABLE}
    assert place.cache.status()["counters"]["audits_unauditable"] == 1
