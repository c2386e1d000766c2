"""A warm path that fails where the cold one does not: WRONG; and what may be an accident instead.

An answer is accused by what cannot be the model's own choice, an accident of the network, or a
server that samples: it must differ from every answer without the cache, and where it parts from
them its logprobs must be far from theirs. A server without logprobs must fail again and again.
"""

from collections.abc import Sequence

from surefoot.probe.asking import NEVER
from surefoot.probe.distance import distance_nat, parting_nat
from surefoot.probe.legs import Facts
from surefoot.probe.references import JUDGED, accuse, asked, distinct, reference, uncached
from surefoot.probe.trail import Role, Seen, Trail
from surefoot.probe.verdicts import Evidence, Verdict
from surefoot.probe.witnesses import chance_of_failures

FAR_TIMES = 10.0  # so many times the server's own noise is not noise any more
FAR_LEAST_NAT = 0.5  # never less: what differed on sound servers was 0.3 at most (docs/PROBE.md)
NOISE_MOST_NAT = 0.25  # a larger "noise" may be the fault itself, and must not hide it
LONGER = 1.1  # than the longest prompt that was answered right: nobody showed that it can be
_MOST_SHARE = 0.5


def wrong(trail: Trail, facts: Facts, error_rate: float) -> tuple[list[Evidence], list[Evidence]]:
    """Find failures of the warm path; also those that may be something else, which say what."""
    found: list[Evidence] = []
    doubts: list[Evidence] = []
    alone: list[tuple[Seen, Evidence]] = []
    unreferenced = 0
    for seen in trail.of(*JUDGED):
        compared = reference(trail, seen)
        says = failure(seen)
        unreferenced += compared is seen
        if seen.reply.error and (doubt := _accident(trail, seen, compared)):
            doubts.append(_doubted(f"{says}; {doubt}", seen, None))
        elif compared is not seen:
            if not compared.reply.ok:
                continue
            one = _referenced(trail, seen, says, facts, error_rate)
            if one is not None:
                (found if one.verdict is Verdict.WRONG else doubts).append(one)
        elif says and seen.reply.error and _any_cold_ok(trail):
            found.append(accuse(Verdict.WRONG, says, seen, None))
        elif says:
            alone.append((seen, accuse(Verdict.WRONG, says, seen, None)))
    accused = [seen for seen, _ in alone if not _longer_than_proven(trail, seen)]
    most = len(accused) >= max(2, _MOST_SHARE * unreferenced)
    if most and beyond_the_model(trail, accused, error_rate):
        return found + [evidence for _, evidence in alone], doubts
    own = "it may be the model's own mistake: there is no answer without the cache to compare with"
    return found, doubts + [_doubted(f"{one.says}; {own}", seen, None) for seen, one in alone]


def _referenced(
    trail: Trail, seen: Seen, says: str | None, facts: Facts, error_rate: float
) -> Evidence | None:
    """Compare an answer with those to the same prompt without the cache."""
    compared = reference(trail, seen)
    if says and compared.request.right(compared.reply):
        if _within_noise(seen, compared, facts):
            return None
        what = f"{says}; {asked(compared)} it is right"
        if doubt := doubt_of(trail, seen, facts, error_rate):
            return _doubted(f"{what}; {doubt}", seen, compared)
        return accuse(Verdict.WRONG, what, seen, compared)
    return _by_size(trail, seen, facts)


_REFERENCE = (
    "but the reference does not repeat itself (a time of day in the template?): one that is the "
    "same every time settles it"
)


def _by_size(trail: Trail, seen: Seen, facts: Facts) -> Evidence | None:
    """Compare the first tokens of an answer and of its reference."""
    compared, far = reference(trail, seen), far_nat(facts)
    distance = distance_nat(seen.reply, compared.reply)
    if distance is None or distance <= far:
        return None
    what = (
        f"the first token of {seen.request.label} is {distance:.2f} nat from its reference, more "
        f"than {far:.2f}; this server's own noise is {facts.noise_nat or 0:.4f}"
    )
    if all(_near(one, compared, far) for one in uncached(trail, seen)):
        return accuse(Verdict.WRONG, what, seen, compared)
    return _doubted(f"{what}; {_REFERENCE}", seen, compared)


def suspect(trail: Trail, facts: Facts, error_rate: float) -> Seen | None:
    """Return the first whole answer that its reference accuses, doubted or not; None if none."""
    for seen in trail.of(*JUDGED):
        compared = reference(trail, seen)
        whole = compared is not seen and compared.reply.ok and seen.reply.ok
        if whole and _referenced(trail, seen, failure(seen), facts, error_rate):
            return seen
    return None


def doubt_of(trail: Trail, seen: Seen, facts: Facts, error_rate: float) -> str | None:
    """Return why a failing answer may be no fault though its reference is right, None if it is one.

    Without logprobs nobody sees whether a server samples: then the failures must be more than the
    model's without the cache, of this prompt or of the leg (Fisher's exact test).
    """
    computed = [one for one in uncached(trail, seen) if one is not seen]
    compared = reference(trail, seen)
    if not all(one.request.right(one.reply) for one in (compared, *computed)):
        return _REFERENCE
    if seen.reply.tokens and compared.reply.tokens:
        near = _within_noise(seen, compared, facts)
        return "where they part both choices are nearly as likely" if near else None
    if not seen.reply.ok or not computed:  # no server is silent by chance
        return None
    judged = [one for one in trail.of(*JUDGED) if one.request.expected is not None]
    same = [one for one in judged if one.request.prompt == seen.request.prompt]
    known = [one for one in trail.of(Role.REFERENCE) if not one.reused_tokens]
    cold = [one for one in (*trail.of(Role.COLD), *known) if one.request.expected is not None]
    chance = min(_chance(same, computed), _chance(judged, cold))
    if chance <= error_rate:
        return None
    return f"without logprobs it may be chance (p = {chance:.2g}): a server that samples does so"


def beyond_the_model(trail: Trail, accused: Sequence[Seen], error_rate: float) -> bool:
    """Whether so many unreferenced prompts fail more often than never-seen ones of this leg do.

    Prompts with the same code fail together, and count once.
    """
    every = [seen for seen in trail.of(*JUDGED) if seen.request.expected is not None]
    alone = [seen for seen in every if reference(trail, seen) is seen]
    failed = len(_tasks(accused))
    of = max(failed, len(_tasks(alone)))
    cold = [seen for seen in trail.of(Role.COLD) if seen.request.expected is not None]
    failed_cold = sum(not seen.request.right(seen.reply) for seen in cold)
    chance = chance_of_failures(failed, of, failed_cold=failed_cold, of_cold=len(cold))
    return chance <= error_rate


def failure(seen: Seen) -> str | None:
    """Return what a reply failed to do, in words; None if it did all."""
    reply, request = seen.reply, seen.request
    if reply.error == NEVER:
        return f"{request.label} was never answered"
    if reply.error is not None:
        return f"{request.label} failed: {reply.error}"
    if not reply.said.strip():
        return f"{request.label} was answered with nothing"
    if request.expected is not None and not request.right(reply):
        return f"the answer to {request.label} has lost {request.expected!r}"
    return None


def far_nat(facts: Facts) -> float:
    """Return the distance beyond which nothing is noise."""
    noise = min(facts.noise_nat or 0.0, NOISE_MOST_NAT)
    return max(FAR_LEAST_NAT, FAR_TIMES * noise)


def _accident(trail: Trail, seen: Seen, compared: Seen) -> str | None:
    """Return why an error may be no fault of the cache, None if it may not."""
    judged = trail.of(*JUDGED)
    alike = [one for one in judged if one.reply.error == seen.reply.error]
    if any(_answered_after(judged, one) for one in alike):
        return "asked again it was answered: a server that is quiet and alone settles it"
    if compared is seen and seen.reply.refused:
        return "longer prompts, or these, may be refused cold as well"
    return None


def _answered_after(judged: Sequence[Seen], seen: Seen) -> bool:
    """Whether a prompt that failed was answered when it was asked again."""
    at = next(place for place, one in enumerate(judged) if one is seen)
    return any(one.reply.ok and one.request.prompt == seen.request.prompt for one in judged[at:])


def _within_noise(seen: Seen, compared: Seen, facts: Facts) -> bool:
    """Whether two answers part where both of their choices were nearly as likely in either."""
    parting = parting_nat(seen.reply, compared.reply)
    return parting is not None and parting <= far_nat(facts)


def _near(one: Seen, other: Seen, far: float) -> bool:
    distance = distance_nat(one.reply, other.reply)
    return distance is None or distance <= far


def _chance(failing: Sequence[Seen], cold: Sequence[Seen]) -> float:
    def failed(seen: Sequence[Seen]) -> int:
        return sum(not one.request.right(one.reply) for one in seen)

    return chance_of_failures(
        failed(failing), len(failing), failed_cold=failed(cold), of_cold=len(cold)
    )


def _tasks(seen: Sequence[Seen]) -> set[str]:
    """Return what is asked in so many words: a code, or a prompt where no code is asked for."""
    return {
        one.request.expected
        if one.request.expected and one.request.expected.isdigit()
        else one.request.prompt
        for one in distinct(seen)
    }


def _longer_than_proven(trail: Trail, seen: Seen) -> bool:
    right = [one for one in trail.of(Role.COLD) if one.request.right(one.reply)]
    longest = max((one.reply.prompt_tokens or 0 for one in right), default=0)
    return (seen.reply.prompt_tokens or 0) > LONGER * longest > 0


def _any_cold_ok(trail: Trail) -> bool:
    cold = trail.of(Role.COLD)
    return bool(cold) and all(seen.reply.ok for seen in cold)


def _doubted(says: str, seen: Seen, compared: Seen | None) -> Evidence:
    return accuse(Verdict.INCONCLUSIVE, says, seen, compared)
