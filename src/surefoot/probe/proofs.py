"""The proof that the model can do what a leg asks: fresh prompts, all answered right.

A leg has a table of ways to ask, and takes the first of them that fresh prompts show to work.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from surefoot.probe.trail import NotApplicable, Request, Trail, Unsettled

Way = TypeVar("Way")
PROOFS = 5


async def answered_right(trail: Trail, fresh: Callable[[int], Request]) -> list[Request]:
    """Ask fresh requests up to the first that is not answered right; return those that are.

    Args:
        trail: takes the proofs; they are never-seen prompts, so they are controls too.
        fresh: draws the never-seen request of one proof, 0 to ``PROOFS`` - 1.
    """
    right: list[Request] = []
    for proof in range(PROOFS):
        seen = await trail.cold(fresh(proof))
        if not seen.request.right(seen.reply):
            break
        right.append(seen.request)
    return right


async def first_proven(
    trail: Trail, ways: Sequence[Way], fresh: Callable[[Way, int], Request], *, task: str
) -> Way:
    """Return the first way in which fresh prompts are all answered right.

    Args:
        trail: takes the proofs.
        ways: in the order they are tried; at least one.
        fresh: draws the never-seen request of one proof of a way.
        task: what the model is to do, in words.

    What is drawn for the first proof also serves the trail as its source of controls.

    Raises:
        NotApplicable: the server refuses every one of them.
        Unsettled: the model cannot do it in any of these ways.
    """
    refused: str | None = None
    answered = False
    for number, way in enumerate(ways, 1):

        def labelled(proof: int, way: Way = way, number: int = number) -> Request:
            drawn = fresh(way, proof)
            return never_seen(drawn, label=f"{drawn.label}, way {number} to ask")

        right = await answered_right(trail, labelled)
        if len(right) == PROOFS:
            trail.fresh = lambda proven=way: never_seen(fresh(proven, 0), label="control")
            return way
        last = trail.seen[-1].reply
        refused = last.error if last.refused else refused
        answered = answered or bool(right) or not last.refused
    if refused is not None and not answered:
        raise NotApplicable(f"the server refuses it: {refused}")
    raise Unsettled(
        f"the model cannot do the task ({task}) on fresh prompts in any of {len(ways)} ways; "
        "a stronger model settles it"
    )


def never_seen(request: Request, *, label: str) -> Request:
    """Return a fresh request: what it says wrong is the model's own, and no other request's."""
    return replace(request, label=label, others=())
