"""One script, end to end and in one process: what a server lives through, on the real parts.

Scheduler, turn, cache and SSD tier are the real ones; the engine is whichever is given. ``play``
has a conversation, a fork, an edit of an early turn, pictures, two salts, a cancelled turn, a crowd
and a restart. A house that only ever computes gives the cold answers; one whose tier goes wrong on
schedule must give the same ones (I10).

    cold = play(House(subject, None, mode=CacheMode.BYPASS))
    warm = play(House(subject, store, schedules={RECORDS: Schedule.read("get#3 flipped@17")}))

Nothing is measured in seconds: what holds a turn up is counted in units of the engine, and time
passes when a fault says so.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any, cast

from surefoot import identity
from surefoot.cache import content, open_cache
from surefoot.cache.courier import Job
from surefoot.chat.request import ChatInput, Image, Message, Role
from surefoot.engine import Run, Sampling
from surefoot.identity import Block, FeatureName
from surefoot.prompt import MediaItem, Prompt, grid
from surefoot.receipt import Finish, Receipt
from surefoot.scheduler import Limits, Scheduler
from surefoot.state import Features
from surefoot.testing.faulty import STALL_S, FaultyTier, Kind, Schedule
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier
from surefoot.turn import CacheMode, Delta, Done, Failed, Serving, TurnRequest
from surefoot.turn import Event as TurnEvent

RECORDS, FENCES, QUARANTINE = "records", "fences", "quarantine"  # tiers of a store, by folder
WAIT_S = 60.0  # for what must come: only a test that fails waits so long
FLOOR_S = 0.05  # what a restore waits for a read that never comes
BEGUN_S = 1.0  # the same, where that read must have begun, on a busy machine too
PATIENCE_S = 0.5  # for what may wait behind a stall
CROWD = 9  # requests at once, at most
GUESTS = 4  # of the script's own crowd
AMPLE = 1 << 30  # bytes
CANCEL_AT = 3  # units after which the script's cancelled turn is cut short

Conversation = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """Who answers: an engine, its chat room, and two pictures that the chat room can read."""

    engine: Any
    chat: Any
    pictures: tuple[bytes, bytes]
    answer_tokens: int = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """What one turn gave."""

    label: str
    text: str
    tokens: tuple[int, ...]
    receipt: Receipt
    units: int  # of the engine, for whichever turn, from its submission to its end

    @property
    def bits(self) -> tuple[object, ...]:
        """What must be the same cold and warm (I5)."""
        receipt = self.receipt
        state = (receipt.state_tokens, receipt.state_digest)
        return (self.label, self.text, self.tokens, receipt.prompt_tokens, *state)


class Clock:
    """Seconds that pass when told to, from any thread."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._lock = Lock()

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += seconds


class UnsyncedDisk(RealDisk):
    """The real disk, not forced down: no power is cut here, and forcing takes most of the time."""

    def sync_file(self, path: Path) -> None:
        """Leave it to the kernel."""

    def sync_folder(self, path: Path) -> None:
        """Leave it to the kernel."""


class CountedEngine:
    """An engine whose units are counted; ``on_unit`` is told the count before each one runs."""

    def __init__(self, engine: Any) -> None:
        self.units = 0
        self.on_unit: Callable[[int], None] = lambda units: None
        self.run: CountedRun | None = None  # the last one
        self.installed: list[int] = []  # the boundary of every restore that was handed over
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def encode(self, item: MediaItem) -> Features:
        """Run the vision tower: a unit."""
        self.count()
        return cast(Features, self._engine.encode(item))

    def begin(
        self, prompt: Prompt, sampling: Sampling, media: Sequence[MediaItem] = ()
    ) -> "CountedRun":
        """Begin a run whose units are counted."""
        self.run = CountedRun(self, self._engine.begin(prompt, sampling, media))
        return self.run

    def count(self) -> None:
        """Count a unit that is about to run."""
        self.units += 1
        self.on_unit(self.units)


class CountedRun:
    """A run whose prefilled blocks and fed tokens are counted."""

    def __init__(self, engine: CountedEngine, run: Run) -> None:
        self._engine = engine
        self._run: Any = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def install(self, boundary: int, parts: Sequence[Any]) -> None:
        """Stand at a boundary, and note it."""
        self._engine.installed.append(boundary)
        self._run.install(boundary, parts)

    def prefill(self, end: int) -> None:
        """Prefill a block: a unit."""
        self._engine.count()
        self._run.prefill(end)

    def feed(self, token: int) -> None:
        """Consume a token: a unit."""
        self._engine.count()
        self._run.feed(token)


class Watch:
    """A submitted turn; ``cancel_at`` is the engine's count of units at which it is cancelled."""

    def __init__(self, house: "House", request: TurnRequest) -> None:
        self._house = house
        self._label = request.id
        self._first = house.engine.units
        self._last = 0
        self._events: list[TurnEvent] = []
        self._ended = Event()
        self.ticket = house.scheduler.submit(request, self._deliver)

    def answer(self) -> Answer:
        """Wait for the turn's end and return what it gave."""
        assert self._ended.wait(WAIT_S), self._label
        *deltas, done = self._events
        assert isinstance(done, Done), done
        shown = [one for one in deltas if isinstance(one, Delta)]
        return Answer(
            self._label,
            "".join(one.text for one in shown),
            tuple(token.token for one in shown for token in one.tokens),
            done.receipt,
            self._last - self._first,
        )

    def _deliver(self, event: TurnEvent) -> None:
        self._events.append(event)
        if isinstance(event, Done | Failed):
            self._last = self._house.engine.units
            self._ended.set()


class House:
    """A server's parts on one store, without HTTP: opened, asked, restarted, looked into.

    Args:
        subject: who answers.
        store: the folder; None for a house without an SSD tier.
        mode: what every request lets the cache do.
        schedules: what goes wrong, in each life anew, by the folder of the store whose tier it is.
        ram_bytes: of the RAM tier, for parts and again for features; 0 so that all comes from SSD.
        ssd_bytes: the quota.
        queue_bytes: what may wait to be written.
        floor_s: real seconds that a restore may take; what does not stall never takes them.
        forgetful: whether the inventory is lost at a restart.
    """

    def __init__(
        self,
        subject: Subject,
        store: Path | None,
        *,
        mode: CacheMode = CacheMode.USE,
        schedules: Mapping[str, Schedule] | None = None,
        ram_bytes: int = 0,
        ssd_bytes: int = AMPLE,
        queue_bytes: int = AMPLE,
        floor_s: float = WAIT_S,
        forgetful: bool = False,
    ) -> None:
        self.subject = subject
        self.store = store
        self.schedules = dict(schedules or {})
        self.clock, self.wall = Clock(1e3), Clock(1.7e9)
        self.engine = CountedEngine(subject.engine)
        self.tiers: list[FaultyTier] = []
        self.receipts: list[Receipt] = []
        self.asked: dict[str, TurnRequest] = {}
        self.counters: Counter[str] = Counter()  # of lives that are over
        self._bugs: list[Exception] = []
        self.halted = Event()  # an operation of any tier stalls
        self._mode = mode
        self._ram_bytes = ram_bytes
        self._ssd_bytes = ssd_bytes
        self._queue_bytes = queue_bytes
        self._floor_s = floor_s
        self._forgetful = forgetful
        self._writers = 0
        self.open()

    def open(self) -> None:
        """Begin a life."""
        self.cache = open_cache(
            model=self.engine.model,
            groups=self.engine.groups,
            feature_schema=self.engine.features,
            store=self.store,
            ram_bytes=self._ram_bytes,
            ssd_bytes=self._ssd_bytes,
            feature_ram_bytes=self._ram_bytes,
            feature_ssd_bytes=self._ssd_bytes,
            free_floor_bytes=0,
            io_threads=2,
            queue_bytes=self._queue_bytes,
            clock=self.clock,
            wall_clock=self.wall,
            random_bytes=self._random,
            make_tier=self._tier,
        )
        self._hire()

    def close(self) -> None:
        """End this life; no turn may have met a bug."""
        self._dismiss()
        self.counters += Counter(self.figures())
        self.cache.close()

    def restart(self) -> None:
        """Close and open again on the same store, when everything is written that can be."""
        self.settle()
        self.close()
        if self._forgetful and self.store:
            for path in self.store.glob("inventory.sqlite*"):
                path.unlink()
        self.open()

    def figures(self) -> dict[str, int]:
        """Return the counters of this life's cache, those of its SSD tier included."""
        status = self.cache.status()
        ssd = status["tiers"].get("ssd", {})
        shown = ("failures", "stalls", "evictions")
        return {**status["counters"], **{name: ssd[name] for name in shown if name in ssd}}

    def ask(self, label: str, talk: Conversation, *, salt: str | None = None) -> Answer:
        """Take one turn, and wait until its idle work and its writes are done."""
        answer = self._submit(label, talk, salt).answer()
        self.settle()
        return answer

    def cut_short(self, label: str, talk: Conversation) -> Receipt:
        """Take a turn that is cancelled within its first units."""
        self._relieve()
        watch = self._submit(label, talk, None, start=False)
        last = self.engine.units + CANCEL_AT
        self.engine.on_unit = lambda units: watch.ticket.cancel() if units == last else None
        self.scheduler.start()
        receipt = watch.answer().receipt
        self.engine.on_unit = lambda units: None
        assert receipt.finish is Finish.CANCELLED
        self.settle()
        return receipt

    def crowd(self, talks: Sequence[tuple[str, Conversation]]) -> list[Answer]:
        """Take many turns at once: all are submitted before the first unit of any."""
        self._relieve()
        watches = [self._submit(label, talk, None, start=False) for label, talk in talks]
        self.scheduler.start()
        answers = [watch.answer() for watch in watches]
        self.settle()
        return answers

    def settle(self) -> None:
        """Wait until nothing is left to do and everything is written but what stalls."""
        with self.scheduler._wake:
            rest = self.scheduler._work
            assert self.scheduler._wake.wait_for(lambda: not (rest.idle or rest.idling), WAIT_S)
        lane, news = self.cache._lanes.writes, self.halted
        written: list[bool] = []

        def note() -> None:
            written.append(True)
            news.set()

        # One thread writes, in order: when it comes to this, all before it is written. One that has
        # begun to stall is left behind by the next that is submitted, since time has passed.
        stalls = any(str(Kind.STALLED) in str(one) for one in self.schedules.values())
        while not written:
            news.clear()
            if not lane.submit(Job(note, 0)):
                return
            if not news.wait(PATIENCE_S if stalls else WAIT_S):
                assert stalls
                self.clock.pass_(STALL_S)  # it waits for a lock that one left behind holds

    def lift(self) -> None:
        """Remove every fault of every life, and wait for what they held up."""
        self.schedules = {}
        for tier in self.tiers:
            tier.lift()
        for lane in self.cache._lanes:
            assert lane.drain(WAIT_S)
        self.clock.pass_(WAIT_S)  # a tier that was left alone is tried again

    def blocks(self, label: str) -> tuple[Block, ...]:
        """Return the blocks of what was asked under a label."""
        prompt, _ = self._prompt(self.asked[label])
        ends = grid(prompt, self.engine.block_tokens, atomic=self.engine.atomic_spans)
        salt = identity.salt_of(None, self.asked[label].cache_salt)
        return identity.name_blocks(prompt, ends, self.engine.model, salt)

    def check_later_plans(self) -> int:
        """Plan and restore all that was ever asked; return the parts, each equal to the truth (I8).

        The truth is computed here by the engine alone: no cache, no turn and no tier is asked.
        """
        restored_parts = 0
        for label in self.asked:
            blocks, true = self.blocks(label), self._computed(label)
            plan = self.cache.plan(blocks, limit=len(blocks))
            with self.cache.pinned(plan):
                restored = self.cache.restore(plan, deadline_s=WAIT_S)
            for one in restored.parts:
                assert content(one.part) == true[one.part.group, one.start], (label, one.start)
                restored_parts += 1
            for name, item in self._items(label).items():
                found = self.cache.features({name: item}, deadline_s=WAIT_S)
                if found:
                    assert content(found[name]) == content(self.subject.engine.encode(item)), label
        return restored_parts

    def _submit(
        self, label: str, talk: Conversation, salt: str | None, *, start: bool = True
    ) -> Watch:
        request = TurnRequest(
            id=label,
            input=ChatInput(talk),
            sampling=Sampling(temperature=0.0, top_logprobs=1),
            max_tokens=self.subject.answer_tokens,
            mode=self._mode,
            cache_salt=salt,
        )
        self.asked[label] = request
        self.wall.pass_(1)
        watch = Watch(self, request)
        if start and not self.scheduler._thread.is_alive():
            self.scheduler.start()
        return watch

    def _relieve(self) -> None:
        """Put a new scheduler in the place of this one, not started: what is submitted waits."""
        self._dismiss()
        self._hire()

    def _hire(self) -> None:
        serving = Serving(
            cast(Any, self.engine), self.subject.chat, self.cache, self.clock, self._floor_s
        )
        limits = Limits(running=CROWD, queued=CROWD, live_bytes=AMPLE, idle=CROWD)
        self.scheduler = Scheduler(
            serving, limits, on_receipt=self.receipts.append, on_bug=self._bugs.append
        )

    def _dismiss(self) -> None:
        if self.scheduler._thread.is_alive():
            assert self.scheduler.stop(WAIT_S)
        for bug in self._bugs:
            raise bug

    def _computed(self, label: str) -> dict[tuple[str, int], bytes]:
        """Return the content digest of every part of a prompt, by group and first token."""
        prompt, media = self._prompt(self.asked[label])
        engine, run = self.subject.engine, None
        run = engine.begin(prompt, Sampling(), media)
        try:
            for item in {item.name: item for item in media}.values():
                run.supply(item.name, engine.encode(item))
            made = {}
            for block in self.blocks(label):
                run.prefill(block.end)
                for part in run.cut(block.start, {one.name for one in engine.groups}):
                    made[part.group, block.start] = content(part)
            return made
        finally:
            run.close()

    def _prompt(self, request: TurnRequest) -> tuple[Prompt, tuple[MediaItem, ...]]:
        media = tuple(self.subject.chat.media(request.input))
        return self.subject.chat.prompt(request.input, media), media

    def _items(self, label: str) -> dict[FeatureName, MediaItem]:
        _, media = self._prompt(self.asked[label])
        salt = identity.salt_of(None, self.asked[label].cache_salt)
        return {identity.feature_name(self.engine.model, salt, item.name): item for item in media}

    def _random(self, count: int) -> bytes:
        self._writers += 1
        return self._writers.to_bytes(count, "big")

    def _tier(self, root: Path, writer: str) -> SsdTier:
        tier = SsdTier(root, UnsyncedDisk(), writer)
        schedule = self.schedules.get(root.name, Schedule())
        self.tiers.append(FaultyTier(tier, schedule, pass_time=self.clock.pass_))
        self.tiers[-1].halted = self.halted
        return cast(SsdTier, self.tiers[-1])


SYSTEM = "You are a careful assistant who answers in few words and never makes anything up."
QUESTIONS = (
    "Which river flows through the city where the bridge fell, and since when is it known?",
    "And how long is it, from the spring to the sea?",
    "Then who built the bridge?",
)


def play(house: House) -> list[Answer]:
    """Play the whole script and return its answers in their order; the house stays open."""
    answers = [*_conversations(house), *_salts(house)]
    house.cut_short("cut short", said(SYSTEM, "Tell me at length: " + QUESTIONS[0]))
    answers.append(house.ask("not cut short", house.asked["cut short"].input.messages))  # type: ignore[union-attr]
    answers += [*_pictures(house), *house.crowd(crowd_of(GUESTS))]
    house.restart()
    for label in list(house.asked):
        if label != "cut short":
            answers.append(_again(house, label))
    answers += house.crowd(crowd_of(GUESTS))
    return answers


def play_shortly(house: House) -> list[Answer]:
    """Play a conversation with a picture, and after a restart once more."""
    answers = [*_talk(house, "talk", QUESTIONS[:2]), *_pictures(house)]
    house.restart()
    return [*answers, *(_again(house, label) for label in list(house.asked))]


def _again(house: House, label: str) -> Answer:
    asked = house.asked[label]
    assert isinstance(asked.input, ChatInput)
    return house.ask(label, asked.input.messages, salt=asked.cache_salt)


def _conversations(house: House) -> Iterator[Answer]:
    talk = list(_talk(house, "talk", QUESTIONS))
    yield from talk
    first = said(SYSTEM, QUESTIONS[0], talk[0].text)
    yield house.ask("fork", (*first, _user("How many arches has it?")))
    edited = QUESTIONS[0].replace("river", "canal")
    yield from _talk(house, "edit", (edited, *QUESTIONS[1:2]))


def _salts(house: House) -> Iterator[Answer]:
    for salt in ("a", "b"):
        yield from _talk(house, f"salt {salt}", QUESTIONS[:1], salt=salt)


def _pictures(house: House) -> Iterator[Answer]:
    first, second = (Image(data, "here") for data in house.subject.pictures)
    look = Message(role=Role.USER, content=("Look: ", first, " and ", second, " Which?"))
    answer = house.ask("pictures", (_system(SYSTEM), look))
    yield answer
    yield house.ask(
        "pictures, then", (_system(SYSTEM), look, _assistant(answer.text), _user("Why so?"))
    )
    # The same picture elsewhere: its features serve, its state does not.
    other = Message(role=Role.USER, content=("What now? ", second))
    yield house.ask("picture elsewhere", (_system("Be brief."), other))


def crowd_of(guests: int) -> list[tuple[str, Conversation]]:
    """Return conversations that share nothing, with their labels."""
    return [
        (f"crowd {number}", said(f"{number} is your name. {SYSTEM}", QUESTIONS[1]))
        for number in range(guests)
    ]


def _talk(
    house: House, label: str, questions: Sequence[str], *, salt: str | None = None
) -> Iterator[Answer]:
    said = [_system(SYSTEM)]
    for number, question in enumerate(questions):
        said.append(_user(question))
        answer = house.ask(f"{label} {number}", tuple(said), salt=salt)
        said.append(_assistant(answer.text))
        yield answer


def said(system: str, *rest: str) -> Conversation:
    """Return a conversation: system, user, assistant, user and so on."""
    roles = (_user, _assistant)
    return (_system(system), *(roles[at % 2](text) for at, text in enumerate(rest)))


def _system(text: str) -> Message:
    return Message(role=Role.SYSTEM, content=text)


def _user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def _assistant(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)
