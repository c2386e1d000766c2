"""A turn's ledger says which records it stood on and made; its receipt is found by its id later."""

import base64
import json
import threading

import pytest

from surefoot.cache import open_cache
from surefoot.cache.capture import VERIFIED, Names, capture_turn
from surefoot.cache.fences import Reason
from surefoot.chat.request import ChatInput, Image, Message, Role, TokensInput
from surefoot.cli.explain import contradictions
from surefoot.engine import Sampling
from surefoot.identity import feature_name, key_id, salt_of, token_digests
from surefoot.prompt import Prompt
from surefoot.receipt import Finish, Kind
from surefoot.scheduler import Limits, Scheduler
from surefoot.testing.fake_chat import FakeChat, image_item
from surefoot.testing.fake_engine import FakeEngine
from surefoot.turn import CacheMode, Done, Failed, Ledger, Serving, TurnRequest, turn
from surefoot.turn.evidence import evidence_of

pytestmark = pytest.mark.usefixtures("patience")

C = 4
PICTURE = b"\x03picture"
GROUPS = ("rows-0", "snapshot-0", "window-0")


class Clock:
    now = 100.0

    def __call__(self):
        self.now += 0.001
        return self.now


class Place:
    """A serving on a store; ``reopen`` is a restart that forgets RAM."""

    def __init__(self, store):
        self.store, self.clock = store, Clock()
        self.engine = FakeEngine(block_tokens=C)
        self.cache = self.serving = None
        self.reopen()

    def reopen(self):
        if self.cache is not None:
            assert self.cache.drain(60)
            self.cache.close()
        self.cache = open_cache(
            model=self.engine.model,
            groups=self.engine.groups,
            feature_schema=self.engine.features,
            feature_ram_bytes=1 << 20,
            feature_ssd_bytes=1 << 20,
            store=self.store,
            ram_bytes=1 << 20,
            ssd_bytes=1 << 30,
            free_floor_bytes=0,
            io_threads=2,
            queue_bytes=1 << 20,
            clock=self.clock,
            wall_clock=self.clock,
            random_bytes=lambda n: bytes(range(n)),
        )
        self.serving = Serving(self.engine, FakeChat(), self.cache, self.clock, 60.0)

    def begin(self, made, **fields):
        made = made if isinstance(made, ChatInput) else TokensInput(tuple(made))
        fields = {"id": "t", "max_tokens": 2, "sampling": Sampling()} | fields
        return Ledger(TurnRequest(input=made, **fields), self.serving, self.clock())

    def ask(self, made, **fields):
        ledger = self.begin(made, **fields)
        units = list(turn(ledger))
        assert isinstance(units[-1], Done)
        return ledger


@pytest.fixture
def place(tmp_path):
    one = Place(tmp_path / "store")
    yield one
    one.cache.close()


def tokens(count, seed=1):
    return [(seed * 31 + at * 7) % 200 + 1 for at in range(count)]


def chat(text="hello there", picture=None):
    content = (text, Image(picture, "here")) if picture else text
    return ChatInput((Message(role=Role.USER, content=content),))


def test_a_cold_turn_stood_on_nothing_and_says_what_it_made(place):
    ledger = place.ask(tokens(14))
    evidence = evidence_of(ledger)
    assert evidence.restored == evidence.failed == evidence.media == ()
    assert evidence.root == ledger.plan.blocks[0].parent
    assert evidence.ids == Prompt.of(tokens(14)).ids
    assert [(one.start, one.end) for one in evidence.blocks] == [(0, 4), (4, 8), (8, 12)]
    assert [(one.block, one.group, one.content) for one in evidence.committed] == sorted(
        (index, group, content) for group, index, content in ledger.committed
    )
    assert {one.group for one in evidence.committed} == set(GROUPS)


@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_a_warm_turn_says_where_each_part_came_from(place, tier):
    first = evidence_of(place.ask(tokens(14)))
    if tier == "ssd":
        place.reopen()
    second = evidence_of(place.ask(tokens(14)))
    assert second.restored
    assert second.committed == ()
    assert {one.tier for one in second.restored} == {tier}
    made = {(one.group, one.block): one.content for one in first.committed}
    assert all(made[one.group, one.block] == one.content for one in second.restored)
    assert sorted(second.restored, key=lambda one: (one.block, one.group)) == list(second.restored)


def test_a_part_that_failed_is_named_with_its_fault(place):
    ledger = place.ask(tokens(14))
    place.reopen()
    name = ledger.plan.blocks[1].name.hex()
    (path,) = place.store.glob(f"records/*/{name}.rows-0.rec")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    evidence = evidence_of(place.ask(tokens(14)))
    assert [(one.group, one.block, one.fault) for one in evidence.failed] == [
        ("rows-0", 1, "CorruptRecord")
    ]
    assert not any(one.block > 0 for one in evidence.restored)


def test_images_are_named_with_their_features(place):
    ledger = place.ask(chat(picture=PICTURE))
    item = image_item(PICTURE)
    (found,) = evidence_of(ledger).media
    assert (found.name, found.start, found.tokens) == (
        item.name,
        ledger.spans[0].start,
        item.tokens,
    )
    assert found.feature == feature_name(place.engine.model, salt_of(None, None), item.name)


def test_a_turn_that_ends_early_is_accounted_for(place):
    ledger = place.begin(tokens(14))
    steps = turn(ledger)
    for _ in range(3):
        next(steps)
    steps.close()
    evidence = evidence_of(ledger)
    assert 0 < len({one.block for one in evidence.committed}) < 3
    assert len(evidence.blocks) == 3
    untouched = evidence_of(place.begin(tokens(14)))
    assert (untouched.root, untouched.blocks, untouched.ids) == (None, (), b"")


def test_a_model_without_a_cache_leaves_its_tokens_digests_alone(place):
    place.engine.unsupported = "for this test"
    evidence = evidence_of(place.ask(tokens(14)))
    assert (evidence.root, evidence.blocks, evidence.committed) == (None, (), ())
    assert len(evidence.ids) == 14 * 4


def test_it_says_which_fence_the_plan_knew(place):
    place.cache.quarantine(b"o" * 32, Reason.BY_HAND, "elsewhere")
    assert evidence_of(place.ask(tokens(14))).fence == 1


def run(place, *requests):
    """Answer requests through a scheduler, wait for its idle work and return all receipts."""
    receipts = []
    scheduler = Scheduler(
        place.serving,
        Limits(running=1, queued=8, idle=4, live_bytes=1 << 30),
        on_receipt=receipts.append,
        on_bug=pytest.fail,
    )
    scheduler.start()
    for number, (made, fields) in enumerate(requests):
        ended = threading.Event()
        request = TurnRequest(
            id=f"turn-{number}",
            input=made if isinstance(made, ChatInput) else TokensInput(tuple(made)),
            sampling=Sampling(),
            max_tokens=3,
            **fields,
        )
        scheduler.submit(
            request, lambda event, ended=ended: isinstance(event, Done | Failed) and ended.set()
        )
        assert ended.wait(20)
    wait_for(lambda: not scheduler.status()["idle_work"])
    assert scheduler.stop(20)
    assert place.cache.drain(60)
    return receipts


def wait_for(fact):
    tick = threading.Event()
    for _ in range(2000):
        if fact():
            return
        tick.wait(0.01)
    pytest.fail("it never came")


def test_every_receipt_is_found_by_its_id_after_a_restart_idle_ones_too(place):
    receipts = run(
        place,
        (tokens(14), {}),
        (chat("a long enough message"), {}),
        (tokens(9), {"mode": CacheMode.BYPASS}),
        (tokens(2), {}),
    )
    assert {one.kind for one in receipts} == {Kind.TURN, Kind.IDLE}
    place.reopen()
    for receipt in receipts:
        found = capture_turn(place.store, receipt.id, now=1.0)
        (shown,) = found["turns"]
        assert shown["receipt"]["id"] == receipt.id
        assert shown["receipt"]["finish"] == Finish.LENGTH or receipt.kind is Kind.IDLE
        assert shown["counters"]["plans"] >= 0
        assert contradictions(found) == []
        assert all(one["seal"] == VERIFIED for one in found["records"])
        assert len(shown["tokens"]["digests"]) == 16 * receipt.prompt_tokens


def test_two_turns_of_one_conversation_part_where_their_prompts_do(place):
    first, second = tokens(14), [*tokens(14)[:10], 250, 251, 252]
    run(place, (first, {}), (second, {}))
    digests = [
        capture_turn(place.store, f"turn-{n}", now=1.0)["turns"][0]["tokens"]["digests"]
        for n in (0, 1)
    ]
    assert digests[0][:160] == digests[1][:160]
    assert digests[0][160:176] != digests[1][160:176]
    assert digests[0] == token_digests(place.cache.secret, Prompt.of(first).ids).hex()


def spellings(text):
    """Yield many ways to write a text, or its tokens (one a byte), that a file could hold."""
    raw, tokens = text.encode(), Prompt.of(text.encode()).ids
    for form in (raw, tokens, tokens[::-1], text.encode("utf-16-le")):
        yield form
        yield form.hex().encode()
        yield from (base64.b64encode(bytes(shift) + form)[4:12] for shift in range(3))
    yield json.dumps(list(raw)).encode()
    yield json.dumps(list(raw), separators=(",", ":")).encode()


def test_nothing_of_what_was_said_or_by_whom_is_in_a_capture_or_in_the_journal(place):
    text, salt, api_key = "kanarienvogel", "zitronenfalter", "sk-nachtigall"
    key = key_id(place.cache.secret, api_key)
    said = chat(f"{text} {text}", picture=b"\x05" + text.encode())
    run(place, (said, {"key": key, "cache_salt": salt}))
    kept = b"".join(one.read_bytes() for one in place.store.glob("journal*"))
    for names in Names:
        found = capture_turn(place.store, "turn-0", now=1.0, names=names)
        written = json.dumps(found).encode()
        assert found["turns"][0]["receipt"]["salted"]
        for word in (text, salt, api_key):
            assert not [one for one in spellings(word) if one in written or one in kept]
        assert key.hex().encode() not in written + kept
        assert str(place.store).encode() not in written


def test_without_a_store_nothing_is_remembered_and_nothing_fails(tmp_path):
    place = Place(None)
    run(place, (tokens(14), {}))
    place.cache.close()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_cannot_be_written_fails_no_turn(place):
    run(place, (tokens(5), {}))
    place.reopen()
    path = place.store / "journal.sqlite"
    for one in place.store.glob("journal*"):
        one.unlink()
    path.mkdir()
    receipts = run(place, (tokens(14), {}), (tokens(14), {}))
    assert [one.finish for one in receipts] == [Finish.LENGTH] * 2
    assert place.cache.status()["counters"]["journal_dropped"] == 2
