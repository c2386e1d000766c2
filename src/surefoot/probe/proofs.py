"""The proof that the model can do what a leg asks, for tasks that are no hidden code alone.

As in ``tasks.py``: a table of ways to ask, and the first of them that fresh prompts show to work.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from surefoot.probe.tasks import PROOFS
from surefoot.probe.trail import NotApplicable, Request, Trail, Unsettled

Way = TypeVar("Way")


async def first_proven(
    trail: Trail, ways: Sequence[Way], fresh: Callable[[Way, int], Request], *, task: str
) -> Way:
    """Return the first way in which fresh prompts are all answered right.

    Args:
        trail: takes the proofs; they are never-seen prompts, so they are controls too.
        ways: in the order they are tried; at least one.
        fresh: draws the never-seen request of one proof, 0 to ``PROOFS`` - 1.
        task: what the model is to do, in words.

    What is drawn for the first proof also serves the trail as its source of controls.

    Raises:
        NotApplicable: the server refuses every one of them.
        Unsettled: the model cannot do it in any of these ways.
    """
    refused: str | None = None
    answered = False
    for number, way in enumerate(ways, 1):
        for proof in range(PROOFS):
            drawn = fresh(way, proof)
            label = f"{drawn.label}, way {number} to ask"
            seen = await trail.cold(never_seen(drawn, label=label))
            if seen.reply.refused:
                refused = seen.reply.error
            else:
                answered = True
            if not seen.request.right(seen.reply):
                break
        else:
            trail.fresh = lambda proven=way: never_seen(fresh(proven, 0), label="control")
            return way
    if refused is not None and not answered:
        raise NotApplicable(f"the server refuses it: {refused}")
    raise Unsettled(
        f"the model cannot do the task ({task}) on fresh prompts in any of {len(ways)} ways; "
        "a stronger model settles it"
    )


def never_seen(request: Request, *, label: str) -> Request:
    """Return a fresh request: what it says wrong is the model's own, and no other request's."""
    return replace(request, label=label, others=())
