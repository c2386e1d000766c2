"""A turn against the real cache and a fake engine that forgives nothing (I5, I10, I11)."""

import itertools

import pytest

from surefoot.cache import open_cache
from surefoot.chat.request import ChatInput, Message, Role, TokensInput
from surefoot.engine import Sampling
from surefoot.errors import RequestError
from surefoot.receipt import Finish, Kind, Miss
from surefoot.testing.fake_chat import FakeChat
from surefoot.testing.fake_engine import GROUPS, FakeEngine
from surefoot.turn import CacheMode, Delta, Done, Ledger, Needs, Serving, TurnRequest, idle, turn

C = 4


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        self.now += 0.001
        return self.now


class Place:
    """A serving with a store that tests can throw away and open again."""

    def __init__(self, store, *, ram_bytes=1 << 20, groups=GROUPS, unsupported=None):
        self.store, self.ram_bytes = store, ram_bytes
        self.engine = FakeEngine(groups=groups, block_tokens=C, unsupported=unsupported)
        self.clock = Clock()
        self.cache = None
        self.open()

    def open(self):
        self.cache = open_cache(
            model=self.engine.model,
            groups=self.engine.groups,
            feature_schema=self.engine.features,
            feature_ram_bytes=1 << 20,
            feature_ssd_bytes=1 << 20,
            store=self.store,
            ram_bytes=self.ram_bytes,
            ssd_bytes=1 << 30,
            free_floor_bytes=0,
            io_threads=2,
            queue_bytes=1 << 20,
            clock=self.clock,
            wall_clock=self.clock,
            random_bytes=lambda n: bytes(range(n)),
        )
        self.serving = Serving(self.engine, FakeChat(), self.cache, self.clock, 60.0)

    def restart(self):
        assert self.cache.drain(60)
        self.cache.close()
        self.open()

    def ask(self, tokens, mode=CacheMode.USE, **fields):
        fields = {"max_tokens": 6, "sampling": Sampling(top_logprobs=1)} | fields
        request = TurnRequest(id="t", input=TokensInput(tuple(tokens)), mode=mode, **fields)
        self.ledger = Ledger(request, self.serving, self.clock())
        units = list(turn(self.ledger))
        assert self.engine.open_runs == 0
        assert isinstance(units[-1], Done)
        deltas = [one for one in units if isinstance(one, Delta)]
        return tuple(t.token for d in deltas for t in d.tokens), units[-1].receipt


@pytest.fixture(params=["ram", "ssd"])
def place(request, tmp_path):
    one = Place(tmp_path / "store", ram_bytes=1 << 20 if request.param == "ram" else 0)
    one.tier = request.param
    yield one
    one.cache.close()


def prompts(n, *, seed=1):
    return [(seed * 37 + i * 11) % 250 + 1 for i in range(n)]


@pytest.mark.parametrize("n", range(1, 4 * C + 2))
def test_a_warm_answer_is_the_cold_answer_at_every_length(place, n):
    tokens = prompts(n)
    cold, cold_receipt = place.ask(tokens, CacheMode.BYPASS)
    first, first_receipt = place.ask(tokens)
    place.cache.drain(60)
    warm, receipt = place.ask(tokens)
    assert cold == first == warm
    assert cold_receipt.state_digest == first_receipt.state_digest == receipt.state_digest
    boundary = (n - 1) // C * C
    assert receipt.restored_tokens == boundary
    assert receipt.computed_tokens == n - boundary
    assert receipt.sources == ({place.tier: boundary} if boundary else {})
    assert receipt.miss_reason == (None if boundary else Miss.TOO_SHORT)
    assert first_receipt.committed_tokens == n // C * C
    assert receipt.committed_tokens == 0
    assert (receipt.state_tokens or 0) == boundary


@pytest.mark.parametrize("shared", range(3 * C + 1))
def test_a_prompt_that_leaves_a_stored_one_anywhere_is_still_exact(place, shared):
    long, other = prompts(5 * C + 3), prompts(4 * C + 2, seed=9)
    mine = long[:shared] + other[shared:]
    cold, cold_receipt = place.ask(mine, CacheMode.BYPASS)
    place.ask(long)
    place.restart()
    warm, receipt = place.ask(mine)
    place.cache.drain(60)
    again, again_receipt = place.ask(mine)
    assert warm == again == cold
    assert receipt.state_digest == again_receipt.state_digest == cold_receipt.state_digest
    assert again_receipt.restored_tokens == (len(mine) - 1) // C * C
    assert receipt.common_prefix_tokens == shared
    if shared:
        assert receipt.diverged_at_token == shared


def test_the_prefill_calls_are_the_grid_whatever_was_restored(place):
    tokens = prompts(4 * C + 1)
    place.ask(tokens, CacheMode.BYPASS)
    cold = place.engine.computed[:]
    place.ask(tokens)
    place.cache.drain(60)
    place.engine.computed.clear()
    _, receipt = place.ask(tokens)
    assert place.engine.computed == [unit for unit in cold if unit[0] >= receipt.restored_tokens]
    assert cold == [*itertools.pairwise(range(0, 4 * C + 1, C)), (4 * C, 4 * C + 1)]


@pytest.mark.parametrize("mode", list(CacheMode))
def test_a_mode_reads_and_writes_what_it_says(place, mode):
    tokens = prompts(3 * C + 1)
    _, first = place.ask(tokens, mode)
    assert (first.committed_tokens > 0) == mode.writes
    place.ask(tokens)
    place.cache.drain(60)
    _, second = place.ask(tokens, mode)
    assert (second.restored_tokens > 0) == mode.reads
    assert (second.miss_reason is Miss.BYPASS) == (not mode.reads)


def test_salts_share_nothing(place):
    tokens = prompts(3 * C)
    _, mine = place.ask(tokens, cache_salt="a")
    for other in ({"cache_salt": "b"}, {}, {"key": b"k" * 32}, {"cache_salt": "a", "key": b"k"}):
        place.cache.drain(60)
        _, receipt = place.ask(tokens, **other)
        assert receipt.restored_tokens == 0
        assert receipt.common_prefix_tokens == 0
    assert mine.salted


@pytest.mark.parametrize("units", range(1, 8))
def test_a_turn_closed_at_any_unit_seals_a_receipt_and_keeps_its_blocks(place, units):
    tokens = prompts(4 * C + 2)
    request = TurnRequest(
        id="t", input=TokensInput(tuple(tokens)), sampling=Sampling(), max_tokens=9
    )
    ledger = Ledger(request, place.serving, 0.0)
    steps = turn(ledger)
    assert next(steps) == Needs.of(place.engine, len(tokens) + 9)
    assert place.engine.open_runs == 0
    for _ in range(units):
        next(steps)
    steps.close()
    assert place.engine.open_runs == 0
    receipt = ledger.seal(Finish.CANCELLED)
    done = min(units, 4) * C if units <= 4 else 4 * C + 2
    assert (receipt.computed_tokens, receipt.unreached_tokens) == (done, len(tokens) - done)
    assert receipt.committed_tokens == min(units, 4) * C
    place.cache.drain(60)
    cold, _ = place.ask(tokens, CacheMode.BYPASS)
    warm, after = place.ask(tokens)
    assert warm == cold
    assert after.restored_tokens == min(units, 4) * C


def test_a_model_without_a_cache_says_so(tmp_path):
    place = Place(None, unsupported="its layers are of an unknown kind")
    _, receipt = place.ask(prompts(3 * C))
    assert (receipt.miss_reason, receipt.committed_tokens) == (Miss.UNSUPPORTED, 0)
    assert receipt.state_digest is None
    place.cache.close()


def test_an_answer_ends_at_the_edge_of_the_context(place):
    place.engine.context_tokens = 20
    answer, receipt = place.ask(prompts(17), max_tokens=None, ignore_eos=True)
    assert len(answer) == 3
    assert receipt.finish is Finish.LENGTH


@pytest.mark.parametrize(("n", "says"), [(0, "is empty"), (20, "20 tokens"), (33, "33 tokens")])
def test_a_prompt_that_does_not_fit_is_refused_before_any_work(place, n, says):
    place.engine.context_tokens = 20
    with pytest.raises(RequestError, match=says):
        place.ask(prompts(n))
    assert place.engine.computed == []


def test_a_bias_on_a_token_that_is_none_is_refused(place):
    with pytest.raises(RequestError, match="token 256; this model's tokens are 0 to 255"):
        place.ask(prompts(3), sampling=Sampling(logit_bias={255: 1.0, 256: 1.0}))
    place.ask(prompts(3), sampling=Sampling(logit_bias={255: 1.0}, top_logprobs=0))


def test_stop_tokens_and_stop_strings_end_an_answer(place):
    tokens = prompts(9)
    full, _ = place.ask(tokens, max_tokens=12, ignore_eos=True)
    place.engine.stop_tokens = frozenset({full[4]})
    cut, receipt = place.ask(tokens, max_tokens=12)
    assert (cut, receipt.finish) == (full[: full.index(full[4])], Finish.STOP)
    letter = chr(33 + full[2] % 90)
    cut, receipt = place.ask(tokens, max_tokens=12, stop=(letter,), ignore_eos=True)
    assert letter not in place.ledger.text
    assert (len(cut), receipt.finish) == (3, Finish.STOP)


def chat(*contents):
    roles = itertools.cycle([Role.USER, Role.ASSISTANT])
    return ChatInput(
        tuple(Message(role=r, content=c) for r, c in zip(roles, contents, strict=False))
    )


def run_idle(place, request, answer):
    ledger = Ledger(request, place.serving, place.clock(), kind=Kind.IDLE)
    return [one for one in idle(ledger, answer) if isinstance(one, Done)]


def test_idle_work_stores_the_next_turns_prefix_and_no_more(place):
    request = TurnRequest(id="t", input=chat("hello there"), sampling=Sampling(), max_tokens=8)
    ledger = Ledger(request, place.serving, 0.0)
    list(turn(ledger))
    (done,) = run_idle(place, request, ledger.text)
    assert done.receipt.kind is Kind.IDLE
    assert done.receipt.prompt_tokens % C == 0
    assert done.receipt.committed_tokens > 0
    place.cache.drain(60)
    assert run_idle(place, request, ledger.text) == []
    follow = TurnRequest(
        id="u",
        input=chat("hello there", ledger.text, "and you?"),
        sampling=Sampling(),
        max_tokens=4,
    )
    second = Ledger(follow, place.serving, 0.0)
    receipt = list(turn(second))[-1].receipt
    history = len(f"u:hello there;a:{ledger.text};")
    assert receipt.restored_tokens == history // C * C


def test_the_digest_covers_every_part_that_the_state_needs(tmp_path):
    place = Place(None, groups=GROUPS[:1])  # rows alone: later rows say nothing of earlier ones
    tokens = prompts(3 * C + 1)
    _, one = place.ask(tokens)
    _, two = place.ask([tokens[0] + 1, *tokens[1:]])
    assert one.state_tokens == two.state_tokens == 3 * C
    assert one.state_digest != two.state_digest
    place.cache.close()


def test_parts_are_pinned_while_a_turn_prefills_and_free_after(place):
    """What a running turn stands on or has committed stays, however full RAM is (I7)."""
    pinned = []
    tokens = prompts(4 * C + 1)
    place.ask(tokens[: 2 * C + 1])
    place.cache.drain(60)
    place.engine.on_unit = lambda *unit: pinned.append(len(place.cache._holds.pinned_keys()))
    place.ask(tokens, max_tokens=2)
    restored = 2 + 2 + 1  # rows of two blocks, their windows, one snapshot
    prefills = pinned[:3]
    assert prefills[0] == restored
    assert prefills == sorted(prefills)
    assert prefills[-1] > restored
    assert pinned[-1] == 0


def test_what_cannot_fit_is_refused_before_it_is_encoded(place, monkeypatch):
    encoded = []
    chat = place.serving.chat
    monkeypatch.setattr(chat, "least_tokens", lambda request: 512, raising=True)
    monkeypatch.setattr(chat, "prompt", encoded.append, raising=True)
    with pytest.raises(RequestError, match="at least 512 tokens; this model's context of 512"):
        place.ask(prompts(3))
    assert encoded == []
