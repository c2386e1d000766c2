"""What an answer is compared with, and how a finding names the two.

The same body asked cold; else asked the way round the cache; else the first answer to the same
body, which shows a change but not who is right.
"""

from collections.abc import Iterator, Sequence

from surefoot.probe.trail import Role, Seen, Trail
from surefoot.probe.verdicts import Evidence, Verdict

JUDGED = (Role.WARM, Role.PLAIN, Role.APART)


def reference(trail: Trail, seen: Seen) -> Seen:
    """Return what an exchange is compared with; itself if it is the first of its prompt."""
    for one in uncached(trail, seen):
        return one
    return next(one for one in trail.of(*JUDGED) if one.request.prompt == seen.request.prompt)


def uncached(trail: Trail, seen: Seen) -> Iterator[Seen]:
    """Yield the answers to the same prompt that were computed: cold, then asked round the cache.

    Of those asked round it a server that counts tells which were not computed.
    """
    for role in (Role.COLD, Role.REFERENCE):
        for one in trail.of(role):
            computed = role is Role.COLD or not one.reused_tokens
            if computed and one.request.prompt == seen.request.prompt:
                yield one


def distinct(seen: Sequence[Seen]) -> list[Seen]:
    """Return the first exchange of each prompt."""
    first: dict[str, Seen] = {}
    for one in seen:
        first.setdefault(one.request.prompt, one)
    return list(first.values())


def asked(one: Seen) -> str:
    """Return in words how a reference was asked."""
    ways = {Role.COLD: "asked first", Role.REFERENCE: "asked without the cache"}
    return ways.get(one.role, "asked before")


def accuse(verdict: Verdict, says: str, seen: Seen, other: Seen | None) -> Evidence:
    """Return a finding about an exchange, with what it is compared with."""
    shown = (seen.shown(),) if other is None else (seen.shown(), other.shown())
    return Evidence(verdict, says, shown)
