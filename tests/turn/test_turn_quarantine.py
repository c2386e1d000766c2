"""I8, I10: a fence that falls while a turn runs, wherever it is held, costs time and no token.

The fence falls between any two units of the turn: before its plan, between plan and restore and
each commit, and between tokens; put up by its own process or by another on the same store.
"""

from itertools import islice

import pytest

from surefoot.cache.fences import Reason
from surefoot.chat.request import TokensInput
from surefoot.engine import Sampling
from surefoot.identity import name_blocks, salt_of
from surefoot.prompt import Prompt, grid
from surefoot.receipt import Miss
from surefoot.testing.cache_kit import Bench
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.fake_engine import GROUPS, FakeEngine
from surefoot.turn import CacheMode, Delta, Done, Ledger, Serving, TurnRequest, turn

pytestmark = pytest.mark.usefixtures("patience")

C = 4
TOKENS = tuple((37 + at * 11) % 250 + 1 for at in range(6 * C + 2))
UNITS = 1 + 7 + 4  # what it needs, six blocks and the tail with the first token, more tokens


class House:
    """An engine, and caches of two processes on one store."""

    def __init__(self, folder, *, ram_bytes=1 << 20):
        self.engine = FakeEngine(block_tokens=C)
        self.bench = Bench(folder, GROUPS)
        self.bench.ram_bytes = ram_bytes
        self.bench.feature_schema = self.engine.features
        self.caches = [self.start(), self.start()]

    def start(self):
        return self.bench.start(model=self.engine.model)

    def ledger(self, cache, *, mode=CacheMode.USE, tokens=TOKENS):
        request = TurnRequest(
            id="t",
            input=TokensInput(tokens),
            mode=mode,
            sampling=Sampling(top_logprobs=1),
            max_tokens=6,
            ignore_eos=True,
        )
        serving = Serving(self.engine, FakeChat(), cache, self.bench.clock, 5.0)
        return Ledger(request, serving, self.bench.clock())

    def ask(self, cache, **how):
        return finish(turn(self.ledger(cache, **how)), [])

    def drain(self):
        for cache in self.caches:
            assert cache.drain(60)

    def close(self):
        self.drain()
        for cache in self.caches:
            cache.close()


def finish(steps, units):
    units += list(steps)
    tokens = tuple(t.token for one in units if isinstance(one, Delta) for t in one.tokens)
    return tokens, units[-1].receipt


@pytest.fixture(params=["ram", "ssd"])
def house(request, tmp_path):
    one = House(tmp_path / "store", ram_bytes=1 << 20 if request.param == "ram" else 0)
    yield one
    one.close()


def held_turn(house, cache, units):
    """Run a turn for so many units; return how to go on."""
    ledger = house.ledger(cache)
    steps = turn(ledger)
    return ledger, steps, list(islice(steps, units))


@pytest.mark.parametrize("who", ["own process", "another process"])
@pytest.mark.parametrize("stored", [0, 3, 6], ids=lambda blocks: f"{blocks} stored")
@pytest.mark.parametrize("units", range(UNITS + 1))
def test_a_fence_that_falls_between_two_units_costs_no_token(house, units, stored, who):
    mine, other = house.caches
    cold, cold_receipt = house.ask(mine, mode=CacheMode.BYPASS)
    if stored:
        house.ask(mine, tokens=TOKENS[: stored * C + 1])
        house.drain()
    names = [block.name for block in blocks_of(house)]
    ledger, steps, before = held_turn(house, mine, units)
    (mine if who == "own process" else other).quarantine(names[2], Reason.BY_HAND, "a test")
    house.drain()  # what moves aside is out of the way of what is stored anew
    number = mine.plan((), limit=0).fence
    late = any(isinstance(one, Delta) for one in before)
    ended = any(isinstance(one, Done) for one in before)
    answer, receipt = finish(steps, before)
    assert answer == cold
    assert receipt.state_digest == cold_receipt.state_digest
    assert house.engine.open_runs == 0
    # Once tokens are out it can only be said; before that it is mended, and after the end too late.
    reused = ledger.restored is not None and ledger.restored.boundary > 2
    assert receipt.suspect == (reused and late and not ended)
    assert not reused or late
    house.drain()
    assert nothing_barred_is_offered(house, number)
    # A computation that began after the fence stores the name again, for every process.
    house.ask(mine)
    house.drain()
    for cache in house.caches:
        warm, receipt = house.ask(cache)
        assert warm == cold
        assert receipt.restored_tokens == 6 * C
        assert receipt.miss_reason is None


def blocks_of(house):
    prompt = Prompt.of(TOKENS)
    return name_blocks(prompt, grid(prompt, C), house.engine.model, salt_of(None, None))


def nothing_barred_is_offered(house, number):
    """Below the fence every process stands; above it, only on what was computed since."""
    for cache in house.caches:
        plan = cache.plan(blocks_of(house), limit=6)
        with cache.pinned(plan):
            cache.restore(plan, deadline_s=5)
        for block in plan.blocks[2 : plan.boundary]:
            held = cache._quarantine.look([block.name]).parts.values()
            ram = cache._ram.held(block.name).values()
            assert all(one.fence >= number for one in (*held, *ram))
    return True


@pytest.mark.parametrize("units", range(1, 7))
def test_a_turn_that_stands_on_a_fenced_name_commits_nothing_more(house, units):
    mine, _ = house.caches
    names = [block.name for block in blocks_of(house)]
    ledger, steps, before = held_turn(house, mine, units)
    computed = ledger.position // C
    committed = ledger.committed_tokens
    mine.quarantine(names[0], Reason.BY_HAND, "a test")
    _, receipt = finish(steps, before)
    if computed:
        assert receipt.committed_tokens == committed
    house.drain()
    plan = mine.plan(blocks_of(house), limit=6)
    assert plan.boundary == (0 if computed else 6)
    assert plan.miss_reason is (Miss.QUARANTINED if computed else None)


def test_a_turn_that_meets_a_bad_record_stores_what_it_computes_in_its_place(house):
    mine, _ = house.caches
    cold, _ = house.ask(mine)
    house.drain()
    house.caches[0].close()
    house.caches[0] = mine = house.start()
    bad = blocks_of(house)[3].name.hex()
    for path in house.bench.records():
        if bad in path.name:
            path.write_bytes(path.read_bytes()[:-1])
    answer, receipt = house.ask(mine)
    assert answer == cold
    assert receipt.miss_reason is Miss.CORRUPT
    assert receipt.restored_tokens == 3 * C
    house.drain()
    for cache in house.caches:
        again, receipt = house.ask(cache)
        assert (again, receipt.restored_tokens) == (cold, 6 * C)


def test_a_fence_on_one_branch_leaves_the_other_alone(house):
    mine, other = house.caches
    fork = TOKENS[: 3 * C] + tuple((at * 7) % 250 + 1 for at in range(3 * C + 2))
    first, _ = house.ask(mine)
    second, _ = house.ask(mine, tokens=fork)
    house.drain()
    mine.quarantine(blocks_of(house)[4].name, Reason.BY_HAND, "a test")
    for cache in (mine, other):
        answer, receipt = house.ask(cache, tokens=fork)
        assert (answer, receipt.restored_tokens) == (second, 6 * C)
    answer, receipt = house.ask(other)
    assert (answer, receipt.restored_tokens) == (first, 4 * C)
    assert receipt.miss_reason is Miss.QUARANTINED
