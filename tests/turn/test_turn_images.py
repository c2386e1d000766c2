"""A turn with images, against the real cache and a fake engine whose state shows every wrong row.

The claims: a warm answer is the cold one wherever the images lie in the grid; the tower runs only
for what no tier holds and no restored state covers; a donor's images never show.
"""

import itertools

import pytest

from surefoot.cache import open_cache
from surefoot.chat.request import ChatInput, Image, Message, Role
from surefoot.engine import Sampling
from surefoot.errors import EngineError, RequestError
from surefoot.receipt import Finish, Kind
from surefoot.testing.fake_chat import FakeChat, image_item
from surefoot.testing.fake_engine import FEATURES, GROUPS, FakeEngine
from surefoot.turn import CacheMode, Delta, Done, Ledger, Serving, TurnRequest, idle, turn

C = 4
RED, BLUE = b"\x03red", b"\x03blue"  # four placeholder tokens each
LONG = b"\x08a long one"  # nine


class Place:
    """A serving with a store that tests can close and open again."""

    def __init__(
        self, store, *, ram_bytes=1 << 20, feature_bytes=1 << 20, atomic=False, unsupported=None
    ):
        self.store, self.ram_bytes, self.feature_bytes = store, ram_bytes, feature_bytes
        self.engine = FakeEngine(
            groups=GROUPS, block_tokens=C, atomic_spans=atomic, unsupported=unsupported
        )
        self.ticks = itertools.count(100_000)
        self.open()

    def clock(self):
        return next(self.ticks) / 1000

    def open(self):
        self.cache = open_cache(
            model=self.engine.model,
            groups=self.engine.groups,
            feature_schema=FEATURES,
            store=self.store,
            ram_bytes=self.ram_bytes,
            ssd_bytes=1 << 30,
            feature_ram_bytes=min(self.ram_bytes, self.feature_bytes),
            feature_ssd_bytes=self.feature_bytes,
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

    def request(self, *messages, mode=CacheMode.USE, **fields):
        chat = ChatInput(tuple(messages))
        fields = {"max_tokens": 6, "sampling": Sampling(top_logprobs=1)} | fields
        return TurnRequest(id="t", input=chat, mode=mode, **fields)

    def ask(self, *messages, mode=CacheMode.USE, **fields):
        """Return the answer's tokens, the receipt and how often the tower ran."""
        self.engine.encoded.clear()
        self.engine.computed.clear()
        ledger = Ledger(self.request(*messages, mode=mode, **fields), self.serving, self.clock())
        units = list(turn(ledger))
        assert self.engine.open_runs == 0
        assert isinstance(units[-1], Done)
        deltas = [one for one in units if isinstance(one, Delta)]
        self.cache.drain(60)
        tokens = tuple(token.token for delta in deltas for token in delta.tokens)
        return tokens, units[-1].receipt

    @property
    def towers(self):
        return len(self.engine.encoded)


@pytest.fixture(params=["ram", "ssd"])
def place(request, tmp_path):
    one = Place(tmp_path / "store", ram_bytes=1 << 20 if request.param == "ram" else 0)
    yield one
    one.cache.close()


def user(*parts):
    content = tuple(Image(part, "here") if isinstance(part, bytes) else part for part in parts)
    return Message(role=Role.USER, content=content)


def said(text):
    return Message(role=Role.ASSISTANT, content=text)


def hits(receipt):
    return [one.feature_hit for one in receipt.media]


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("lead", range(2 * C + 1))
def test_a_span_may_lie_anywhere_in_the_grid(tmp_path, lead, atomic):
    place = Place(tmp_path / "store", atomic=atomic)
    for picture in (RED, LONG):
        asked = user("x" * lead, picture, "what is it?")
        cold, cold_receipt = place.ask(asked, mode=CacheMode.BYPASS)
        cold_units = place.engine.computed[:]
        first, first_receipt = place.ask(asked)
        warm, receipt = place.ask(asked)
        place.restart()
        again, again_receipt = place.ask(asked)
        assert cold == first == warm == again
        digests = {
            one.state_digest for one in (cold_receipt, first_receipt, receipt, again_receipt)
        }
        assert len(digests) == 1
        assert receipt.restored_tokens == again_receipt.restored_tokens > 0
        assert place.towers == 0
        assert hits(cold_receipt) == hits(first_receipt) == [False]
        assert hits(receipt) == hits(again_receipt) == [True]
        computed = place.engine.computed
        assert computed == [one for one in cold_units if one[0] >= receipt.restored_tokens]
    place.cache.close()


def test_another_picture_under_the_same_text_restores_the_text_before_it_and_nothing_after(place):
    lead = "n" * (3 * C - 2)  # with the role, three whole blocks of text
    colds = [place.ask(user(lead, one, "?" * 9), mode=CacheMode.BYPASS)[0] for one in (RED, BLUE)]
    assert colds[0] != colds[1]
    place.ask(user(lead, RED, "?" * 9))
    answer, receipt = place.ask(user(lead, BLUE, "?" * 9))
    assert answer == colds[1]
    assert receipt.restored_tokens == receipt.common_prefix_tokens == 3 * C
    assert hits(receipt) == [False]
    answer, receipt = place.ask(user(lead, RED, "?" * 9))
    assert answer == colds[0]
    assert hits(receipt) == [True]


DONORS = [
    (user("p" * 9, RED, "q"), user("p" * 9, BLUE, "q")),
    (user(RED, BLUE, "q" * 9), user(RED, LONG, "q" * 9)),
    (user(RED, BLUE, "q" * 9), user(BLUE, RED, "q" * 9)),
    (user("a", RED, "b" * 9), user("a", "b" * 9)),
    (user("a", RED, "b" * 9), user("a", RED, RED, "b" * 9)),
    (user("p" * 9, RED, "q"), Message(role=Role.USER, content="p" * 9 + "\1\1\1\1q")),
    (user(RED, "x" * 5, BLUE, "y"), user(RED, "x" * 5, RED, "y")),
]


@pytest.mark.parametrize(("donor", "borrower"), [*DONORS, *[pair[::-1] for pair in DONORS]])
def test_a_donor_never_shows(place, donor, borrower):
    cold, cold_receipt = place.ask(borrower, mode=CacheMode.BYPASS)
    place.ask(donor)
    first, first_receipt = place.ask(borrower)
    second, second_receipt = place.ask(borrower)
    place.restart()
    third, third_receipt = place.ask(borrower)
    assert cold == first == second == third
    receipts = (cold_receipt, first_receipt, second_receipt, third_receipt)
    assert len({one.state_digest for one in receipts}) == 1


def test_features_are_found_where_the_state_is_not(place):
    place.ask(user("one way", RED, "to ask"))
    _, receipt = place.ask(user("and quite another", RED, "way"))
    assert receipt.restored_tokens < receipt.prompt_tokens - 20
    assert place.towers == 0
    assert hits(receipt) == [True]
    place.restart()
    place.ask(user("a third", RED))
    assert place.towers == 0


def test_a_picture_that_is_there_twice_is_encoded_once(place):
    answer, receipt = place.ask(user(RED, " and ", RED, BLUE))
    assert place.towers == 2
    assert hits(receipt) == [False, False, False]
    assert [one.tokens for one in receipt.media] == [4, 4, 4]
    assert receipt.media[0].name == receipt.media[1].name == image_item(RED).name.hex()
    assert place.ask(user(RED, " and ", RED, BLUE), mode=CacheMode.BYPASS)[0] == answer


def test_under_bypass_nothing_is_read_or_written(place):
    for _ in range(2):
        _, receipt = place.ask(user(RED, "what?"), mode=CacheMode.BYPASS)
        assert place.towers == 1
        assert hits(receipt) == [False]
    place.ask(user(RED, "what?"))
    assert place.towers == 1


@pytest.mark.parametrize("mode", list(CacheMode))
def test_a_mode_reads_and_writes_features_as_it_says(place, mode):
    place.ask(user("first", RED), mode=mode)
    place.ask(user("then", RED))
    assert place.towers == (0 if mode.writes else 1)
    place.ask(user("and then", RED), mode=mode)
    assert place.towers == (0 if mode.reads else 1)


def test_salts_share_no_features(place):
    place.ask(user(RED, "?"), cache_salt="a")
    for other in ({"cache_salt": "b"}, {}, {"key": b"k" * 32}):
        place.ask(user(RED, "?"), **other)
        assert place.towers == 1, other
    place.ask(user("else", RED, "?"), cache_salt="a")
    assert place.towers == 0


def test_turns_that_want_one_picture_at_once_encode_it_once(tmp_path):
    place = Place(tmp_path / "store")
    ledgers = [
        Ledger(place.request(user(f"{number}", LONG, "?")), place.serving, place.clock())
        for number in range(8)
    ]
    running = [turn(ledger) for ledger in ledgers]
    while running:  # a unit of each in turn, as the scheduler does
        running = [steps for steps in running if not isinstance(next(steps), Done)]
    assert place.towers == 1
    found = [ledger.seal(Finish.STOP).media[0].feature_hit for ledger in ledgers]
    assert found == [False] + [True] * 7
    place.cache.close()


@pytest.mark.parametrize("units", range(1, 12))
def test_a_turn_closed_at_any_unit_keeps_what_it_made(place, units):
    asked = user("x" * 6, RED, "y" * 6, LONG, "z")
    ledger = Ledger(place.request(asked), place.serving, 0.0)
    steps = turn(ledger)
    for _ in range(units):
        next(steps)
    steps.close()
    made = place.towers
    assert place.engine.open_runs == 0
    receipt = ledger.seal(Finish.CANCELLED)
    if units <= 2:
        assert receipt is None, "still looking: there is no prompt yet"
    else:
        assert hits(receipt) == [False, False]
        assert receipt.unreached_tokens == receipt.prompt_tokens - receipt.computed_tokens
    place.cache.drain(60)
    cold, _ = place.ask(asked, mode=CacheMode.BYPASS)
    warm, after = place.ask(asked)
    assert warm == cold
    assert place.towers == 2 - made
    if receipt:
        assert after.restored_tokens == receipt.computed_tokens // C * C


def test_idle_work_carries_the_pictures_along(place):
    request = place.request(user("look:", RED, "well?"))
    ledger = Ledger(request, place.serving, place.clock())
    list(turn(ledger))
    answer = ledger.text
    more = Ledger(request, place.serving, place.clock(), kind=Kind.IDLE, media=ledger.media)
    place.engine.encoded.clear()
    (*_, done) = idle(more, answer)
    assert place.towers == 0
    assert hits(done.receipt) == [True]
    place.cache.drain(60)
    turns = (user("look:", RED, "well?"), said(answer), user("and " * 3))
    warm, receipt = place.ask(*turns)
    assert receipt.restored_tokens >= done.receipt.prompt_tokens
    assert place.towers == 0
    assert place.ask(*turns, mode=CacheMode.BYPASS)[0] == warm


def test_an_image_that_cannot_be_read_is_refused_before_any_work(place):
    with pytest.raises(RequestError, match="here"):
        place.ask(user(RED, b""))
    assert (place.engine.computed, place.engine.encoded) == ([], [])


def test_without_a_cache_every_turn_encodes_anew(tmp_path):
    place = Place(None, unsupported="its layers are of an unknown kind")
    for _ in range(2):
        _, receipt = place.ask(user(RED, "?"))
        assert place.towers == 1
        assert hits(receipt) == [False]
    assert place.cache.status()["counters"]["features_committed"] == 0
    place.cache.close()


def test_the_tower_runs_just_before_the_first_block_that_needs_it(tmp_path):
    place, units = Place(tmp_path / "store"), []
    place.engine.on_unit = lambda kind, start, end: units.append((kind, end))
    place.ask(user("x" * 10, RED, "y" * 10, BLUE), max_tokens=1)
    kinds = [kind for kind, _ in units]
    first, second = (at for at, kind in enumerate(kinds) if kind == "encode")
    # With the role, RED is [12, 16): at its start a block ends, which needs nothing of it.
    assert units[first - 1 : first + 2] == [("prefill", 12), ("encode", 4), ("prefill", 16)]
    assert units[second - 1 : second + 2] == [("prefill", 24), ("encode", 4), ("prefill", 28)]
    place.cache.close()


def test_an_image_that_is_half_restored_is_no_hit_until_its_features_are_there(tmp_path):
    place = Place(tmp_path / "store", feature_bytes=0)
    asked = user("x" * 4, LONG)  # [6, 15) of 18 tokens: the last boundary is 16, or 12 inside it
    place.engine.block_tokens = 12
    _, receipt = place.ask(asked)
    assert receipt.committed_tokens == 12

    def fails(kind, start, end):
        if kind == "encode":
            raise EngineError("the tower fell")

    place.engine.on_unit = fails
    ledger = Ledger(place.request(asked), place.serving, place.clock())
    with pytest.raises(EngineError):
        list(turn(ledger))
    receipt = ledger.seal(Finish.ERROR)
    assert receipt.restored_tokens == 12
    assert hits(receipt) == [False]
    place.cache.close()


def test_a_block_names_the_features_it_consumed(tmp_path, monkeypatch):
    place = Place(tmp_path / "store")
    seen = []
    commit = place.cache.commit

    def spy(block, parts, **more):
        seen.append((block.start, block.end, [span.media for span in block.spans], more))
        return commit(block, parts, **more)

    monkeypatch.setattr(place.cache, "commit", spy)
    place.ask(user("xxxxx", RED, RED, BLUE))
    wanted = {image_item(data).name for data in (RED, BLUE)}
    named = {media for _, _, spans, more in seen for media in spans}
    assert named == wanted
    for _, _, spans, more in seen:
        assert len(more["features"]) == len(set(spans))
    place.cache.close()
