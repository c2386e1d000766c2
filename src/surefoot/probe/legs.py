"""A leg: what it is called, what it costs, and how it walks.

A leg makes exchanges on its trail and ends; it decides nothing. ``judge.py`` reads the trail.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from surefoot.probe.asking import Asker
from surefoot.probe.plants import Plants
from surefoot.probe.tasks import Tasks
from surefoot.probe.trail import Trail

HANG_UP_SHARE = 0.5  # of the time that a never-seen prompt takes to its first token


@dataclass(frozen=True, slots=True)
class WayRound:
    """How this server is asked to leave its cache out; it was seen to work.

    Attributes:
        name: in words.
        headers: what the request's head says.
        fields: makes the fields of one request; a fresh salt each time, say.
    """

    name: str
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Callable[[], Mapping[str, object]] = dict


@dataclass(slots=True)
class Facts:
    """What was learned of the server.

    Attributes:
        length: tokens of a leg's ordinary prompt: the shortest tried at which reuse shows.
        block_tokens: what its counters of reused tokens are multiples of, None if unknown.
        context_tokens: the longest prompt with its answer, None if the server does not say.
        counters: the counters of reuse it gives.
        salts: whether it knows ``cache_salt`` (it refuses one that is no string).
        images: whether it takes an image; whether the model sees it is each leg's to prove.
        way_round: how to ask for an answer without the cache, None if there is no way.
        noise_nat: the largest difference of first-token logprobs between repeats and between cuts
            of the same prompt; None without logprobs.
        repeats: whether the same warm request gets the same text again and again.
        notes: all of it in words, for the report.
    """

    length: int = 600
    block_tokens: int | None = None
    context_tokens: int | None = None
    counters: tuple[str, ...] = ()
    salts: bool = False
    images: bool = False
    way_round: WayRound | None = None
    noise_nat: float | None = None
    repeats: bool = True
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """What the legs of one run share."""

    asker: Asker
    plants: Plants
    tasks: Tasks
    facts: Facts
    restart: Callable[[], Awaitable[None]] | None = None


def lengths(times: float) -> Callable[[Facts], int]:
    """Return the cost of so many ordinary prompts."""
    return lambda facts: round(times * facts.length)


@dataclass(frozen=True, slots=True)
class Leg:
    """One leg.

    Attributes:
        name: as ``--legs`` says it.
        title: what it looks for, in one line of plain words.
        cost: about how many tokens it asks for, without proofs.
        walk: makes its exchanges.

    A walk may raise ``NotApplicable`` (SKIPPED) and ``Unsettled`` (INCONCLUSIVE, unless what was
    seen until then proves a fault).
    """

    name: str
    title: str
    cost: Callable[[Facts], int]
    walk: Callable[[Run, Trail], Awaitable[None]]
