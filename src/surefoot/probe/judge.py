"""One leg's exchanges to one verdict.

In this order: content that only another request had (CONTAMINATED); a warm path that fails where
the cold one does not (WRONG); reuse that was not shown (INCONCLUSIVE); differences within the
server's own noise (DRIFT); none (CLEAN). Nothing here sends a request, and nothing looks at what a
server says of itself, but for the counters of reuse.

Findings are made in ``foreign.py`` and ``failures.py``; ``references.py`` says what an answer is
compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.probe.distance import distance_nat
from surefoot.probe.failures import wrong
from surefoot.probe.foreign import APART_RATE, counted_apart, fast, foreign, tokens_said
from surefoot.probe.legs import Facts
from surefoot.probe.references import JUDGED, accuse, distinct, reference, uncached
from surefoot.probe.trail import REUSED_LEAST, Role, Seen, Trail
from surefoot.probe.verdicts import NO_REUSE, Evidence, Reuse, Verdict
from surefoot.probe.witnesses import TTFT, Witnesses, beyond, chance_of, speed_up_of

EVIDENCE_MOST = 6  # findings shown of one kind; the rest are counted
MISSED_SHARE = 0.25  # more answers that miss what is right, as their references do, prove nothing


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with its reason."""

    verdict: Verdict
    reason: str
    reuse: Reuse = NO_REUSE
    evidence: tuple[Evidence, ...] = ()


def judge(trail: Trail, facts: Facts, error_rate: float, unsettled: str | None) -> Judged:
    """Judge what a leg saw.

    Args:
        trail: its exchanges.
        facts: the server's noise and counters.
        error_rate: of the time test.
        unsettled: why the leg ended early, None if it walked to its end.
    """
    shown = witnesses_of(trail, facts, error_rate)
    reuse = Reuse(shown.shown_by, shown.tokens)
    contaminated = foreign(trail, facts, error_rate)
    if contaminated:
        return _faulty(Verdict.CONTAMINATED, contaminated, reuse)
    failed, doubts = wrong(trail, facts, error_rate)
    if failed and facts.repeats:
        return _faulty(Verdict.WRONG, failed, reuse)
    doubt = _doubt(trail, facts, shown, error_rate) or _missed(trail)
    if unsettled or failed or doubts or doubt:
        if failed:
            doubt = f"{failed[0].says}, but this server does not repeat itself: {_REPEAT}"
        reason = unsettled or (doubts[0].says if doubts else None) or doubt or ""
        evidence = tuple((failed + doubts)[:EVIDENCE_MOST])
        return Judged(Verdict.INCONCLUSIVE, reason, reuse, evidence)
    drift, compared = _drift(trail)
    if not drift:
        return Judged(Verdict.CLEAN, _clean(trail, shown), reuse)
    evidence = tuple(one.evidence for one in drift[:EVIDENCE_MOST])
    if facts.repeats:
        return Judged(Verdict.DRIFT, _drift_said(drift, compared, facts), reuse, evidence)
    reason = f"answers differ, and this server does not repeat itself: {_REPEAT}"
    return Judged(Verdict.INCONCLUSIVE, reason, reuse, evidence)


def witnesses_of(trail: Trail, facts: Facts, error_rate: float) -> Witnesses:
    """Return what counters and time say of a leg's warm requests.

    The time test has two stages where a leg can make more controls (``settle.py``), each at half
    the error rate.
    """
    warm = [seen for seen in trail.of(Role.WARM) if seen.reply.ok]
    counts = {
        name: sum(seen.reply.counters.get(name, 0) >= REUSED_LEAST for seen in warm)
        for name in facts.counters
    }
    by_counter = [name for name, count in counts.items() if warm and count > len(warm) / 2]
    times = [seen.timed for seen in warm if seen.timed is not None]
    chance, speed_up = chance_of(times, trail.controls), speed_up_of(times, trail.controls)
    limit = error_rate / (1 if trail.fresh is None else 2)
    by_time = [TTFT] if beyond(chance, speed_up, error_rate=limit) else []
    return Witnesses(
        offered=facts.counters,
        shown_by=(*by_counter, *by_time),
        tokens=max(
            (count for seen in warm for count in seen.reply.counters.values()), default=None
        ),
        chance=chance,
        speed_up=speed_up,
    )


_REPEAT = "ask it to be deterministic (temperature 0 was sent), and probe again"


def _faulty(verdict: Verdict, evidence: Sequence[Evidence], reuse: Reuse) -> Judged:
    more = len(evidence) - EVIDENCE_MOST
    reason = evidence[0].says + (f" ({len(evidence)} findings)" if len(evidence) > 1 else "")
    kept = tuple(evidence[:EVIDENCE_MOST])
    if more > 0:
        kept = (*kept, Evidence(verdict, f"and {more} more like these"))
    return Judged(verdict, reason, reuse, kept)


# --- what was not shown --------------------------------------------------------------------------


def _doubt(trail: Trail, facts: Facts, shown: Witnesses, error_rate: float) -> str | None:
    """Return why the leg proves nothing though nothing is wrong, None if it does."""
    warm = trail.of(Role.WARM)
    cold = [seen for seen in trail.of(Role.COLD) if seen.reply.ok]
    stale = [seen for seen in cold if _was_seen(seen)]
    if stale:
        return (
            f"{stale[0].request.label} was never sent, but {tokens_said(stale[0])} of it count as "
            "reused: the counter lies, or this seed was probed here before (take another)"
        )
    if not warm:
        return "nothing was asked that should reuse state"
    counted = counted_apart(trail)
    if counted:
        return (
            f"{counted[0].request.label}: the server counts {tokens_said(counted[0])} of another "
            "tenant's as reused, and time does not show it: the counter lies, or prompts are too "
            "short to tell; probe again when the server is quiet"
        )
    if fast(trail.controls, trail.of(Role.APART), error_rate * APART_RATE):
        return (
            "time shows that state of another tenant's was reused, and the server counts none: the "
            "counter lies, or the server was busier before; probe again when it is quiet"
        )
    undecided = [
        accused
        for accused, donor, _ in trail.twins
        if accused.reply.tokens == donor.reply.tokens and accused.request.expected is None
    ]
    if undecided and len(undecided) == len(trail.twins):
        return (
            "pictures that differ have equal answers, with the cache and without: what differs "
            "does not reach the model, or no logprobs show it, or a memo that is not left out "
            "mixes them; a model that tells them apart in words settles it"
        )
    return None if shown.proven else _unproven(shown, len(warm), error_rate)


def _missed(trail: Trail) -> str | None:
    """Return that too many answers miss what is right, as their references do; None if not."""
    judged = [one for one in distinct(trail.of(*JUDGED)) if one.request.expected is not None]
    missed = [seen for seen in judged if not seen.request.right(seen.reply)]
    if len(missed) <= MISSED_SHARE * len(judged):
        return None
    return (
        f"{len(missed)} of {len(judged)} answers miss what is right, and so do their references: "
        "the model is too weak, or what is broken is not left out with the cache; a stronger "
        "model, or one with logprobs, settles it"
    )


def _unproven(shown: Witnesses, warm: int, error_rate: float) -> str:
    timed = TTFT in shown.shown_by
    silent = [name for name in shown.offered if name not in shown.shown_by]
    chance = "no control was as long" if shown.chance is None else f"p = {shown.chance:.3g}"
    speed = "" if shown.speed_up is None else f", {shown.speed_up:.2f}x as fast as never-seen ones"
    if timed and silent:
        return (
            f"time shows reuse ({chance}{speed}), but {', '.join(silent)} does not for most of "
            f"{warm} requests: the counter lies, or time does"
        )
    if silent:
        return (
            f"no reuse was shown: {', '.join(silent)} and time ({chance}) deny it; longer prompts, "
            "or a server with its cache on, settle it"
        )
    if shown.offered:
        return (
            f"only the server's own word shows reuse ({', '.join(shown.offered)}); time does not "
            f"({chance}{speed}; {error_rate:.0%} is asked): the counter lies, or the server was "
            "not quiet; probe again"
        )
    return (
        f"no reuse was shown: the server counts none, and time does not show it ({chance}{speed}); "
        "longer prompts, or a quiet server, settle it"
    )


def _was_seen(seen: Seen) -> bool:
    """Whether a never-sent prompt was reused beyond what templates have in common."""
    return seen.reused_tokens > (seen.reply.prompt_tokens or 0) // 2


# --- differences within noise, and none ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Difference:
    """An answer that differs: in its text or only its logprobs, and how far its first token is."""

    evidence: Evidence
    in_text: bool
    distance_nat: float | None


def _drift(trail: Trail) -> tuple[list[_Difference], int]:
    """Return the answers that differ, and how many were compared."""
    found, compared = [], 0
    for seen in trail.of(*JUDGED):
        other = reference(trail, seen)
        if other is seen or not other.reply.ok:
            continue
        compared += 1
        if seen.reply.bits == other.reply.bits:
            continue
        distance = distance_nat(seen.reply, other.reply)
        in_text = seen.reply.said != other.reply.said
        what = "text" if in_text else "logprobs"
        size = "" if distance is None else f", first token {distance:.4f} nat apart"
        says = f"{seen.request.label} differs from its reference in {what}{size}"
        accused = accuse(Verdict.DRIFT, says, seen, other)
        found.append(_Difference(accused, in_text, distance))
    return found, compared


def _drift_said(drift: Sequence[_Difference], compared: int, facts: Facts) -> str:
    sizes = [one.distance_nat for one in drift if one.distance_nat is not None]
    texts = sum(one.in_text for one in drift)
    share = f"{len(drift)} of {compared} answers differ from their references ({texts} in text)"
    if not sizes:
        return f"{share}; without logprobs nobody can say by how much"
    if not max(sizes):
        return f"{share}; their first tokens are equal to all digits, later ones are not"
    noise = f"this server's own noise is {facts.noise_nat or 0:.4f}"
    return f"{share}, the first token by {max(sizes):.4f} nat at most; {noise}"


def _clean(trail: Trail, shown: Witnesses) -> str:
    judged = trail.of(*JUDGED)
    tokens = f" of up to {shown.tokens:,} tokens" if shown.tokens else ""
    counters = [name for name in shown.shown_by if name != TTFT]
    by = f"{', '.join(counters)} and time" if counters else "time, since the server counts none"
    chance = "" if shown.chance is None else f"p = {shown.chance:.2g}"
    speed = "" if shown.speed_up is None else f"{shown.speed_up:.1f}x, "
    wrong = sum(not seen.request.right(seen.reply) for seen in judged)
    right = "right and" if not wrong else f"({wrong} of them wrong with and without the cache)"
    text = (
        f"{len(judged)} answers are {right} equal to their references; reuse{tokens} shown by {by}"
    )
    alone = sum(next(uncached(trail, seen), None) is None for seen in judged)
    left = "" if not alone else f"; {alone} had none without the cache, and were judged by content"
    return f"{text} ({speed}{chance}){left}"
