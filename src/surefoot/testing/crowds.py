"""A crowd of clients at live servers, and whether each of them was told the truth.

Every session has a canary: a code among its facts that nobody else's facts hold. ``spark`` was
taught to look such codes up, so a state that leaks into another session is likely to be said aloud.
Sessions are forked, their early turns are edited, their streams are left in the middle, and they
are shown pictures, under two salts of each of two API keys.

``Crowd`` makes each client's script from a seed alone; only the order in which the server meets
the requests of different clients is left open. ``visit`` has every client play its script in a
thread of its own, and ``faults`` holds what they heard against the isolated cold answers.
"""

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from threading import Lock
from typing import Any

from surefoot.bench.client import Answer, Client
from surefoot.pictures import COLOURS, said, shown, speckled, user

KEYS = ("key-of-one", "key-of-two")
SALTS = ("amber", "slate")
TENANTS = tuple((key, salt) for key in KEYS for salt in SALTS)
STRANGE_SALT = "umber"  # of nobody in the crowd
BLOCK = 16  # tokens, spark's own
ANSWER_TOKENS = 12
LONG_ANSWER_TOKENS = 40  # of a stream that is left after a few of them
LEFT_AFTER = 3
REST_S = 600.0  # by which a server has stored what a crowd left it to do, on a slow disk too
PICTURES = 3  # of each colour
NAMES = ("atlas", "beacon", "comet", "delta", "ember", "falcon", "glacier", "harbor", "indigo")
COMMON = ("KX-417", "QT-903", "ZB-221", "LM-550", "PW-118", "RA-734", "TD-902", "VE-361", "HG-645")

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of one client, and what must be true of its answer."""

    leg: str
    messages: tuple[Message, ...]
    canaries: frozenset[str]  # that the answer may hold
    key: str
    salt: str
    model: str = "spark"
    tokens: int = ANSWER_TOKENS
    pieces: int | None = None  # of text, after which the client hangs up
    unseen: bool = False  # nobody of its tenant has sent its first block: a hit would be a leak
    seen: int = 0  # its tenant has had it answered, and stored: at most so many are computed

    @property
    def body(self) -> dict[str, Any]:
        """The request's body; its salt is beside it, as it decides no bit of the answer."""
        body = {"model": self.model, "messages": list(self.messages), "temperature": 0}
        body |= {"max_tokens": self.tokens, "logprobs": True, "top_logprobs": 3}
        return body | ({"ignore_eos": True} if self.tokens == LONG_ANSWER_TOKENS else {})


@dataclass(frozen=True, slots=True)
class Heard:
    """What a client was told: the whole answer, or what was said before it hung up."""

    ask: Ask
    text: str
    answer: Answer | None


class Crowd:
    """So many clients and their scripts; equal for equal seeds."""

    def __init__(
        self, seed: int, clients: int, *, thin: bool = False, model: str = "spark"
    ) -> None:
        """Draw the crowd of ``seed``; a ``thin`` one leaves legs of every client out.

        Only to ``spark`` are pictures shown.
        """
        assert clients % len(TENANTS) == 0, "each tenant has as many clients as another"
        self._seed = seed
        self._clients = clients
        self._thin = thin
        self._model = model

    @cached_property
    def canaries(self) -> tuple[str, ...]:
        """One for each client's own session, one that it edits in, one for each group's session."""
        draw = random.Random(f"canaries {self._seed}")
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        found: dict[str, None] = {}
        while len(found) < 3 * self._clients:
            code = f"{draw.choice(letters)}{draw.choice(letters)}-{draw.randrange(100, 1000)}"
            if code not in COMMON:
                found[code] = None
        return tuple(found)

    @cached_property
    def scripts(self) -> tuple[tuple[Ask, ...], ...]:
        """Each client's requests, none of which was sent before in the crowd by its tenant."""
        return tuple(tuple(self._script(client)) for client in range(self._clients))

    def again(self, wave: int, *, block: int = BLOCK) -> tuple[tuple[Ask, ...], ...]:
        """Each client's requests once more, whole and in another order: now they must be hits."""
        scripts = []
        for client, script in enumerate(self.scripts):
            asks = [replace(ask, pieces=None, unseen=False, seen=block) for ask in script]
            random.Random(f"again {self._seed} {wave} {client}").shuffle(asks)
            scripts.append(tuple(asks))
        return tuple(scripts)

    def strangers(self) -> tuple[tuple[Ask, ...], ...]:
        """Ask for what four tenants were told, as one more tenant of each key: nothing is a hit."""
        twins = {ask.canaries: ask for script in self.scripts for ask in script if ask.unseen}
        asks = tuple(twins.values())
        return tuple(
            tuple(replace(ask, key=key, salt=STRANGE_SALT) for ask in asks) for key in KEYS
        )

    def _script(self, client: int) -> Iterator[Ask]:
        key, salt = TENANTS[client % len(TENANTS)]
        own, edited, group = (self.canaries[place::3] for place in range(3))
        talk = _Talk(key, salt, own[client], edited[client])
        # Four clients of four tenants have this session alike: none may profit from another.
        twin = _Talk(key, salt, group[client // len(TENANTS)], "")
        draw = random.Random(f"script {self._seed} {client}")
        legs = list(talk.legs(draw.randrange(PICTURES), draw.choice(sorted(COLOURS))))
        if self._model != "spark":
            legs = [ask for ask in legs if ask.leg != "picture"]
        if self._thin:  # the first leg stays, and two that follow each other in a ring
            ring = [1 + (client + step) % (len(legs) - 1) for step in range(2)]
            legs = [legs[0], *(legs[place] for place in sorted(ring))]
        for one, other in zip_longest(legs, twin.twin_legs()):
            pair = (one, other) if draw.random() < 0.5 else (other, one)
            yield from (replace(ask, model=self._model) for ask in pair if ask is not None)


@dataclass(frozen=True, slots=True)
class _Talk:
    """One session of one client."""

    key: str
    salt: str
    canary: str
    edited: str

    def legs(self, number: int, colour: str) -> Iterator[Ask]:
        """Yield a session that begins like those of others and has its canary at the end."""
        codes = (*COMMON[:-1], self.canary)
        first = (_question(codes, "indigo"),)
        told = (*first, {"role": "assistant", "content": self.canary})
        yield self._ask("first", first)
        yield self._ask("fork", (_question(codes, "comet"),))
        more = (*told, {"role": "user", "content": "Which task does beacon have?"})
        yield self._ask("left", more, tokens=LONG_ANSWER_TOKENS, pieces=LEFT_AFTER)
        changed = (*codes[:2], self.edited, *codes[3:])
        asked = {"role": "user", "content": "Which task does comet have?"}
        yield self._ask("edit", (_question(changed, "indigo"), *told[1:], asked))
        picture = shown(speckled(COLOURS[colour], number))
        yield self._ask("picture", (*told, user(picture, said("One word: what color?"))))

    def twin_legs(self) -> Iterator[Ask]:
        """Yield a session that has its canary before anything else."""
        first = (_question((self.canary, *COMMON[1:]), "atlas", head=f"{self.canary}\n"),)
        yield self._ask("twin", first, unseen=True)
        told = {"role": "assistant", "content": self.canary}
        asked = {"role": "user", "content": "Which task does ember have?"}
        yield self._ask("twin's next", (*first, told, asked))

    def _ask(self, leg: str, messages: tuple[Message, ...], **fields: Any) -> Ask:
        canaries = frozenset((self.canary, self.edited))
        return Ask(
            leg=leg, messages=messages, canaries=canaries, key=self.key, salt=self.salt, **fields
        )


def _question(codes: Sequence[str], name: str, *, head: str = "") -> Message:
    lines = "\n".join(
        f"{one} task {code} due monday" for one, code in zip(NAMES, codes, strict=True)
    )
    return {"role": "user", "content": f"{head}{lines}\n\nWhich task does {name} have?"}


class References:
    """Isolated cold answers, each computed once, by a server that keeps nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: dict[str, Answer] = {}
        self._lock = Lock()

    def of(self, ask: Ask) -> Answer:
        """Return the cold answer to the same prompt, whoever asks."""
        body = ask.body
        told = json.dumps(body, sort_keys=True)
        with self._lock:
            if told not in self._kept:
                self._kept[told] = self._client.ask(body, mode="bypass")
            return self._kept[told]


def wait_at_rest(client: Client) -> dict[str, Any]:
    """Wait until nobody computes, ahead or to audit, and all is stored; return that status."""
    at_work = ("running", "idle_work", "auditing", "pending_writes")
    return client.wait(
        "coming to rest", lambda now: not any(now[one] for one in at_work), timeout_s=REST_S
    )


def visit(scripts: Sequence[Sequence[Ask]], urls: Sequence[str]) -> list[Heard]:
    """Have every client play its script, all at once, at the servers in turn; return all answers.

    Args:
        scripts: one per client; each is played in order, one request at a time.
        urls: of the servers; request n of client m goes to number m + n.
    """

    def play(client: int) -> list[Heard]:
        script, heard = scripts[client], []
        places = {url: {key: Client(url, key) for key in KEYS} for url in urls}
        try:
            for number, ask in enumerate(script):
                heard.append(_asked(places[urls[(client + number) % len(urls)]][ask.key], ask))
        finally:
            for by_key in places.values():
                for place in by_key.values():
                    place.close()
        return heard

    with ThreadPoolExecutor(len(scripts)) as pool:
        return [one for heard in pool.map(play, range(len(scripts))) for one in heard]


def _asked(client: Client, ask: Ask) -> Heard:
    body = ask.body | {"cache_salt": ask.salt}
    if ask.pieces is not None:
        return Heard(ask, client.leave(body, pieces=ask.pieces), None)
    answer = client.ask(body)
    return Heard(ask, answer.text, answer)


def faults(heard: Heard, reference: Answer, canaries: Sequence[str]) -> Iterator[str]:
    """Say what is wrong with an answer; nothing is, if it keeps the promise."""
    ask, answer = heard.ask, heard.answer
    for canary in canaries:
        if canary in heard.text and canary not in ask.canaries:
            yield f"{ask.leg}: {heard.text!r} holds {canary}, of a session that is not its own"
    if answer is None:
        if not reference.text.startswith(heard.text):
            yield f"{ask.leg}: {heard.text!r} does not begin the cold answer {reference.text!r}"
        return
    bits = zip(("text", "logprobs", "state"), answer.bits, reference.bits, strict=True)
    for what, warm, cold in bits:
        if warm != cold:
            yield f"{ask.leg}: {what} is {warm!r}, cold {cold!r}"
    receipt = answer.receipt
    restored, prompt = receipt["restored_tokens"], receipt["prompt_tokens"]
    if restored + receipt["computed_tokens"] != prompt:
        yield f"{ask.leg}: the receipt does not add up: {receipt}"
    if ask.unseen and restored:
        yield f"{ask.leg}: {restored} tokens of another tenant were restored"
    if ask.seen and not (
        prompt - restored <= ask.seen
        and receipt["sources"].keys() <= {"ram", "ssd"}
        and all(one["feature_hit"] for one in receipt["media"])
    ):
        yield f"{ask.leg}: {restored} of {prompt} tokens restored, where all are stored: {receipt}"
