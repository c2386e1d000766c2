"""One leg's exchanges to one verdict.

In this order: content that only another request had (CONTAMINATED); a warm path that fails where
the cold one does not (WRONG); reuse that was not shown (INCONCLUSIVE); differences within the
server's own noise (DRIFT); none (CLEAN). Nothing here sends a request, and nothing looks at what a
server says of itself, but for the counters of reuse.

What an answer is compared with: the same body asked cold; else asked the way round the cache; else
the first answer to the same body, which shows a change but not who is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from surefoot.probe.asking import NEVER
from surefoot.probe.distance import distance_nat
from surefoot.probe.legs import Facts
from surefoot.probe.trail import REUSED_LEAST, Role, Seen, Trail, holds
from surefoot.probe.verdicts import NO_REUSE, Evidence, Reuse, Shown, Verdict
from surefoot.probe.witnesses import (
    TTFT,
    Timed,
    Witnesses,
    beyond,
    chance_of,
    chance_of_failures,
    chance_of_hits,
    faster,
    speed_up_of,
)

JUDGED = (Role.WARM, Role.PLAIN, Role.APART)
FAR_TIMES = 10.0  # so many times the server's own noise is not noise any more
FAR_LEAST_NAT = 0.5  # never less: what differed on sound servers was 0.3 at most (docs/PROBE.md)
NOISE_MOST_NAT = 0.25  # a larger "noise" may be the fault itself, and must not hide it
CODE_RATE = 0.01  # codes that could be made up accuse nobody above this share of the error rate
APART_RATE = 0.1  # time alone accuses nobody of sharing state above a tenth of the error rate
EVIDENCE_MOST = 6  # findings shown of one kind; the rest are counted
MISSED_SHARE = 0.25  # more answers that miss what is right, as their references do, prove nothing
_MOST_SHARE = 0.5
_TOLD = -100.0  # nat; below it stand for "not at all"


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
    contaminated = [
        *_foreign(trail, error_rate),
        *_twins(trail),
        *_shared(trail, facts, error_rate),
    ]
    if contaminated:
        return _faulty(Verdict.CONTAMINATED, contaminated, reuse)
    wrong, doubts = _wrong(trail, facts, error_rate)
    if wrong and facts.repeats:
        return _faulty(Verdict.WRONG, wrong, reuse)
    doubt = _doubt(trail, facts, shown, error_rate) or _missed(trail)
    if unsettled or wrong or doubts or doubt:
        if wrong:
            doubt = f"{wrong[0].says}, but this server does not repeat itself: {_REPEAT}"
        reason = unsettled or (doubts[0].says if doubts else None) or doubt or ""
        evidence = tuple((wrong + doubts)[:EVIDENCE_MOST])
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


# --- content that only another request had -------------------------------------------------------


def _foreign(trail: Trail, error_rate: float) -> list[Evidence]:
    """Find planted codes, and other requests' words, where they do not belong."""
    found, likely = _foreign_codes(trail, error_rate), []
    for seen in trail.of(Role.COLD, *JUDGED):
        word = _other_word(seen)
        if word is None or not seen.reply.ok or not _can(trail):
            continue
        compared = _reference(trail, seen)
        says = f"the answer to {seen.request.label} is {word!r}, right for another request only"
        evidence = _accuse(Verdict.CONTAMINATED, says, seen, _word_donor(trail, seen, word))
        if compared is seen:
            likely.append((seen, evidence))
        elif compared.request.right(compared.reply):
            found.append(evidence)
    # Without a reference such answers may be the model's own mistakes, if it makes so many.
    accused = distinct([seen for seen, _ in likely])
    if len(accused) > 1 and _beyond_the_model(trail, len(accused), error_rate):
        found += [evidence for _, evidence in likely]
    return found


def _foreign_codes(trail: Trail, error_rate: float) -> list[Evidence]:
    """Find planted codes where they do not belong, unless they could be made up.

    What is damaged may invent codes, and one of many may be somebody's by chance; less likely that
    of a request of the same leg, which are few.
    """
    plants, here = trail.plants, trail.of_this_leg
    found: list[Evidence] = []
    inventing: list[Seen] = []
    hits: dict[str, list[Seen]] = {"": [], here: []}
    for seen in trail.seen:
        if seen.role is Role.REFERENCE or not seen.reply.ok:
            continue
        reference = next((one for one in _uncached(trail, seen) if one is not seen), None)
        if plants.invented(seen.reply.said):
            inventing.append(seen)
        for code, labels in plants.foreign(seen.reply.said, seen.request.body).items():
            if reference is not None and holds(reference.reply.said, code):
                continue
            says = f"the answer to {seen.request.label} holds {code}, told in {labels[0]} only"
            label, body = plants.holder(code)
            donor = next((one.shown() for one in trail.seen if one.request.body == body), None)
            shown = (seen.shown(), donor or Shown(label, body, ""))
            found.append(Evidence(Verdict.CONTAMINATED, says, shown))
            for who, accused in hits.items():
                if any(one.startswith(who) for one in labels):
                    accused.append(seen)
    tries = len(distinct([*hits[""], *inventing]))
    chance = min(
        chance_of_hits(len(distinct(accused)), tries, each=plants.hit_chance(who))
        for who, accused in hits.items()
    )
    return found if chance <= error_rate * CODE_RATE else []


def _beyond_the_model(trail: Trail, failed: int, error_rate: float) -> bool:
    """Whether so many unreferenced bodies fail more often than never-seen ones of this leg do."""
    asked = [seen for seen in trail.of(*JUDGED) if seen.request.expected is not None]
    alone = [seen for seen in asked if _reference(trail, seen) is seen]
    of = max(failed, len(distinct(alone)))
    cold = [seen for seen in trail.of(Role.COLD) if seen.request.expected is not None]
    failed_cold = sum(not seen.request.right(seen.reply) for seen in cold)
    chance = chance_of_failures(failed, of, failed_cold=failed_cold, of_cold=len(cold))
    return chance <= error_rate


def distinct(seen: Sequence[Seen]) -> list[Seen]:
    """Return the first exchange of each prompt."""
    first: dict[str, Seen] = {}
    for one in seen:
        first.setdefault(one.request.prompt, one)
    return list(first.values())


def _other_word(seen: Seen) -> str | None:
    request, said = seen.request, seen.reply.said
    if request.expected is None or holds(said, request.expected):
        return None
    return next((word for word in request.others if holds(said, word)), None)


def _can(trail: Trail) -> bool:
    """Whether the never-seen requests of this leg, if any, are mostly answered right."""
    cold = [one for one in trail.of(Role.COLD) if one.request.expected is not None]
    right = sum(one.request.right(one.reply) for one in cold)
    return not cold or right * 2 > len(cold)


def _twins(trail: Trail) -> list[Evidence]:
    """Find answers equal to all digits that cannot be.

    Logprobs may be coarse (a bfloat16 head gives steps of 1/16), so one such pair may be chance: at
    least two are asked for, all of them, on a server whose answers to other pictures differ.
    """
    pairs = [
        (accused, donor, why)
        for accused, donor, why in trail.twins
        if accused.reply.ok and donor.reply.ok and accused.reply.tokens and donor.reply.tokens
    ]
    every = [one.reply for pair in pairs for one in pair[:2]]
    kinds = {reply.tokens for reply in every}
    if len(pairs) < 2 or len(kinds) < 2:
        return []
    if not any(_TOLD < token.logprob < 0 for reply in every for token in reply.tokens or ()):
        return []  # a server that calls its choice certain tells nothing of what it saw
    if any(accused.reply.tokens != donor.reply.tokens for accused, donor, _ in pairs):
        return []
    return [
        _accuse(
            Verdict.CONTAMINATED,
            f"the answer to {accused.request.label} is that to {donor.request.label} to the last "
            f"digit of every logprob, though {why}",
            accused,
            donor,
        )
        for accused, donor, why in pairs
    ]


def _shared(trail: Trail, facts: Facts, error_rate: float) -> list[Evidence]:
    """Find state of another tenant that was reused, by two witnesses or by time beyond doubt."""
    counted = _counted_apart(trail)
    if facts.counters:
        if not counted or not _fast(trail.controls, counted, error_rate):
            return []
    else:
        counted = trail.of(Role.APART)
        late = counted[len(counted) // 2 :]
        limit = error_rate * APART_RATE / 2
        # The server may have been busier in other legs: this one's controls only.
        own = [seen.timed for seen in trail.of(Role.COLD) if seen.timed is not None]
        if not (_fast(own, counted, limit) or _fast(own, late, limit)):
            return []
    return [
        _accuse(
            Verdict.CONTAMINATED,
            f"{seen.request.label} reused {_tokens_said(seen)} that only another tenant had sent",
            seen,
            next((one for one in trail.seen if one is not seen and _alike(one, seen)), None),
        )
        for seen in counted
    ]


def _counted_apart(trail: Trail) -> list[Seen]:
    return [seen for seen in trail.of(Role.APART) if seen.reused_tokens]


def _fast(controls: Sequence[Timed], seen: Sequence[Seen], limit: float) -> bool:
    times = [one.timed for one in seen if one.timed is not None]
    return faster(times, controls, error_rate=limit)


def _alike(one: Seen, other: Seen) -> bool:
    return one.request.body.get("messages") == other.request.body.get("messages")


def _tokens_said(seen: Seen) -> str:
    return f"{seen.reused_tokens:,} tokens" if seen.reused_tokens else "state"


# --- a warm path that fails ----------------------------------------------------------------------


def _wrong(trail: Trail, facts: Facts, error_rate: float) -> tuple[list[Evidence], list[Evidence]]:
    """Find failures of the warm path; also those that could be the model's own mistakes."""
    wrong: list[Evidence] = []
    alone: list[Evidence] = []
    unreferenced = 0
    for seen in trail.of(*JUDGED):
        reference = _reference(trail, seen)
        says = _failure(seen)
        if reference is seen:
            unreferenced += 1
            if says and seen.reply.error and _any_cold_ok(trail):
                wrong.append(_accuse(Verdict.WRONG, says, seen, None))
            elif says:
                alone.append(_accuse(Verdict.WRONG, says, seen, None))
            continue
        if not reference.reply.ok:
            continue
        if says and reference.request.right(reference.reply):
            what = f"{says}; {_asked(reference)} it is right"
            wrong.append(_accuse(Verdict.WRONG, what, seen, reference))
            continue
        distance = distance_nat(seen.reply, reference.reply)
        if distance is not None and distance > _far_nat(facts):
            what = (
                f"the first token of {seen.request.label} is {distance:.2f} nat from its "
                f"reference, more than {_far_nat(facts):.2f}; this server's own noise is "
                f"{facts.noise_nat or 0:.4f}"
            )
            wrong.append(_accuse(Verdict.WRONG, what, seen, reference))
    most = len(alone) >= max(2, _MOST_SHARE * unreferenced)
    if most and _beyond_the_model(trail, len(alone), error_rate):
        return wrong + alone, []
    doubts = [
        Evidence(
            Verdict.INCONCLUSIVE,
            f"{one.says}; it may be the model's own mistake: there is no answer without the cache "
            "to compare it with",
            one.shown,
        )
        for one in alone
    ]
    return wrong, doubts


def _failure(seen: Seen) -> str | None:
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


def _any_cold_ok(trail: Trail) -> bool:
    cold = trail.of(Role.COLD)
    return bool(cold) and all(seen.reply.ok for seen in cold)


def _far_nat(facts: Facts) -> float:
    noise = min(facts.noise_nat or 0.0, NOISE_MOST_NAT)
    return max(FAR_LEAST_NAT, FAR_TIMES * noise)


# --- what was not shown --------------------------------------------------------------------------


def _doubt(trail: Trail, facts: Facts, shown: Witnesses, error_rate: float) -> str | None:
    """Return why the leg proves nothing though nothing is wrong, None if it does."""
    warm = trail.of(Role.WARM)
    cold = [seen for seen in trail.of(Role.COLD) if seen.reply.ok]
    stale = [seen for seen in cold if _was_seen(seen)]
    if stale:
        return (
            f"{stale[0].request.label} was never sent, but {_tokens_said(stale[0])} of it count as "
            "reused: the counter lies, or this seed was probed here before (take another)"
        )
    if not warm:
        return "nothing was asked that should reuse state"
    counted = _counted_apart(trail)
    if counted:
        return (
            f"{counted[0].request.label}: the server counts {_tokens_said(counted[0])} of another "
            "tenant's as reused, and time does not show it: the counter lies, or prompts are too "
            "short to tell; probe again when the server is quiet"
        )
    if _fast(trail.controls, trail.of(Role.APART), error_rate * APART_RATE):
        return (
            "time shows that state of another tenant's was reused, and the server counts none: the "
            "counter lies, or the server was busier before; probe again when it is quiet"
        )
    undecided = [
        accused
        for accused, _, _ in trail.twins
        if not accused.reply.tokens and accused.request.expected is None
    ]
    if undecided:
        return "without logprobs two pictures that the model cannot tell apart in words are equal"
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
        reference = _reference(trail, seen)
        if reference is seen or not reference.reply.ok:
            continue
        compared += 1
        if seen.reply.bits == reference.reply.bits:
            continue
        distance = distance_nat(seen.reply, reference.reply)
        in_text = seen.reply.said != reference.reply.said
        what = "text" if in_text else "logprobs"
        size = "" if distance is None else f", first token {distance:.4f} nat apart"
        says = f"{seen.request.label} differs from its reference in {what}{size}"
        accused = _accuse(Verdict.DRIFT, says, seen, reference)
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
    alone = sum(next(_uncached(trail, seen), None) is None for seen in judged)
    left = "" if not alone else f"; {alone} had none without the cache, and were judged by content"
    return f"{text} ({speed}{chance}){left}"


# --- references ----------------------------------------------------------------------------------


def _reference(trail: Trail, seen: Seen) -> Seen:
    """Return what an exchange is compared with; itself if it is the first of its prompt."""
    for one in _uncached(trail, seen):
        return one
    return next(one for one in trail.of(*JUDGED) if one.request.prompt == seen.request.prompt)


def _uncached(trail: Trail, seen: Seen) -> Iterator[Seen]:
    """Yield the answers to the same prompt that were computed: cold, then asked round the cache.

    Of those asked round it a server that counts tells which were not computed.
    """
    for role in (Role.COLD, Role.REFERENCE):
        for one in trail.of(role):
            computed = role is Role.COLD or not one.reused_tokens
            if computed and one.request.prompt == seen.request.prompt:
                yield one


def _asked(reference: Seen) -> str:
    asked = {Role.COLD: "asked first", Role.REFERENCE: "asked without the cache"}
    return asked.get(reference.role, "asked before")


def _accuse(verdict: Verdict, says: str, seen: Seen, other: Seen | None) -> Evidence:
    shown = (seen.shown(),) if other is None else (seen.shown(), other.shown())
    return Evidence(verdict, says, shown)


def _word_donor(trail: Trail, seen: Seen, word: str) -> Seen | None:
    """Return the latest exchange before ``seen`` to which ``word`` was the right answer."""
    before = trail.seen[: trail.seen.index(seen)]
    right = [one for one in before if one.request.expected == word]
    return right[-1] if right else None
