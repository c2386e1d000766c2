"""Content that only another request had: CONTAMINATED.

A planted code, another picture's word, another picture's answer to all digits, another tenant's
state. Nothing here says how a warm path fails otherwise; see ``failures.py``.
"""

from collections.abc import Sequence

from surefoot.probe.asking import NEVER_NAT, Reply
from surefoot.probe.failures import beyond_the_model, doubt_of
from surefoot.probe.legs import Facts
from surefoot.probe.references import JUDGED, accuse, distinct, reference, uncached
from surefoot.probe.trail import Role, Seen, Trail, holds
from surefoot.probe.verdicts import Evidence, Shown, Verdict
from surefoot.probe.witnesses import Timed, chance_of_hits, faster

CODE_RATE = 0.01  # codes that could be made up accuse nobody above this share of the error rate
APART_RATE = 0.1  # time alone accuses nobody of sharing state above a tenth of the error rate
FINE_NAT = -0.001  # logprobs nearer to 0 are too coarse to tell two answers apart


def foreign(trail: Trail, facts: Facts, error_rate: float) -> list[Evidence]:
    """Find whatever in a leg's answers, or behind them, only other requests had."""
    return [
        *_codes(trail, error_rate),
        *_words(trail, facts, error_rate),
        *_twins(trail),
        *_shared(trail, facts, error_rate),
    ]


def _codes(trail: Trail, error_rate: float) -> list[Evidence]:
    """Find planted codes where they do not belong, unless they could be made up.

    What is damaged may invent codes, and one of many may be somebody's by chance; less likely that
    of a request of the same leg, which are few.
    """
    plants, here = trail.plants, trail.of_this_leg
    found: list[Evidence] = []
    invented: set[str] = set()
    hits: dict[str, set[str]] = {"": set(), here: set()}
    for seen in trail.seen:
        if seen.role is Role.REFERENCE or not seen.reply.ok:
            continue
        reference = next((one for one in uncached(trail, seen) if one is not seen), None)
        invented |= plants.invented(seen.reply.said)
        for code, labels in plants.foreign(seen.reply.said, seen.request.body).items():
            if reference is not None and holds(reference.reply.said, code):
                continue
            says = f"the answer to {seen.request.label} holds {code}, told in {labels[0]} only"
            label, body = plants.holder(code)
            donor = next((one.shown() for one in trail.seen if one.request.body == body), None)
            shown = (seen.shown(), donor or Shown(label, body, ""))
            found.append(Evidence(Verdict.CONTAMINATED, says, shown))
            for who, codes in hits.items():
                if any(one.startswith(who) for one in labels):
                    codes.add(code)
    # Prompts alike make the same number up, so numbers are counted and not answers.
    tries = len(hits[""] | invented)
    chance = min(
        chance_of_hits(len(codes), tries, each=plants.hit_chance(who))
        for who, codes in hits.items()
    )
    return found if chance <= error_rate * CODE_RATE else []


def _words(trail: Trail, facts: Facts, error_rate: float) -> list[Evidence]:
    """Find words that are right for other requests only."""
    found, likely = [], []
    for seen in trail.of(*JUDGED):
        word = _other_word(seen)
        if word is None or not seen.reply.ok or not _can(trail):
            continue
        compared = reference(trail, seen)
        says = f"the answer to {seen.request.label} is {word!r}, right for another request only"
        evidence = accuse(Verdict.CONTAMINATED, says, seen, _word_donor(trail, seen, word))
        if compared is seen:
            likely.append((seen, evidence))
        elif doubt_of(trail, seen, facts, error_rate) is None:
            found.append(evidence)
    # Without a reference such answers may be the model's own mistakes, if it makes so many.
    accused = distinct([seen for seen, _ in likely])
    if len(accused) > 1 and beyond_the_model(trail, accused, error_rate):
        found += [evidence for _, evidence in likely]
    return found


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
    if not any(map(_tells, every)):
        return []
    if any(accused.reply.tokens != donor.reply.tokens for accused, donor, _ in pairs):
        return []
    if not all(_told_apart(trail, accused, donor) for accused, donor, _ in pairs):
        return []
    return [
        accuse(
            Verdict.CONTAMINATED,
            f"the answer to {accused.request.label} is that to {donor.request.label} to the last "
            f"digit of every logprob, though {why}",
            accused,
            donor,
        )
        for accused, donor, why in pairs
    ]


def _told_apart(trail: Trail, accused: Seen, donor: Seen) -> bool:
    """Whether what differs is known to reach the model: by its words, or by its logprobs cold.

    A server that shrinks pictures to one patch may lose it, and is no less honest for that.
    """
    others = (one for one in uncached(trail, accused) if one is not accused)
    differs = any(one.reply.ok and one.reply.tokens != donor.reply.tokens for one in others)
    reaches = [one.reply.tokens != other.reply.tokens for one, other in trail.reaching]
    return differs or accused.request.expected is not None or (bool(reaches) and all(reaches))


def _tells(reply: Reply) -> bool:
    """Whether an answer's logprobs are fine enough to be no other answer's by chance."""
    tokens = reply.tokens or ()
    listed = [value for one in tokens for value in (one.logprob, *(nat for _, nat in one.top))]
    return any(NEVER_NAT < value < FINE_NAT for value in listed)


def _shared(trail: Trail, facts: Facts, error_rate: float) -> list[Evidence]:
    """Find state of another tenant that was reused, by two witnesses or by time beyond doubt."""
    counted, every = counted_apart(trail), trail.of(Role.APART)
    if facts.counters:
        if not counted:
            return []
        if not fast(trail.controls, counted, error_rate):
            # A counter may hide most of it: then time speaks for all of them.
            counted = every
            if not fast(trail.controls, every, error_rate * APART_RATE):
                return []
    else:
        counted = every
        late = every[len(every) // 2 :]
        limit = error_rate * APART_RATE / 2
        # The server may have been busier in other legs: this one's controls only.
        own = [seen.timed for seen in trail.of(Role.COLD) if seen.timed is not None]
        if not (fast(own, every, limit) or fast(own, late, limit)):
            return []
    return [
        accuse(
            Verdict.CONTAMINATED,
            f"{seen.request.label} reused {tokens_said(seen)} that only another tenant had sent",
            seen,
            next((one for one in trail.seen if one is not seen and _alike(one, seen)), None),
        )
        for seen in counted
    ]


def counted_apart(trail: Trail) -> list[Seen]:
    """Return the requests apart from which a counter names tokens that were reused."""
    return [seen for seen in trail.of(Role.APART) if seen.reused_tokens]


def fast(controls: Sequence[Timed], seen: Sequence[Seen], limit: float) -> bool:
    """Whether exchanges are faster than these controls, at an error rate of ``limit``."""
    times = [one.timed for one in seen if one.timed is not None]
    return faster(times, controls, error_rate=limit)


def _alike(one: Seen, other: Seen) -> bool:
    return one.request.body.get("messages") == other.request.body.get("messages")


def tokens_said(seen: Seen) -> str:
    """Return what was reused, in words."""
    return f"{seen.reused_tokens:,} tokens" if seen.reused_tokens else "state"


def _word_donor(trail: Trail, seen: Seen, word: str) -> Seen | None:
    """Return the latest exchange before ``seen`` to which ``word`` was the right answer."""
    before = trail.seen[: trail.seen.index(seen)]
    right = [one for one in before if one.request.expected == word]
    return right[-1] if right else None
