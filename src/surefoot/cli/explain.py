"""A capture in plain words: what was served from where, what was verified, what does not add up.

Pure: captures in, sentences out, for people who do not know the code. Everything is said of a turn
as it was then and of its records as they were when the capture was made.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple, TypeAlias

from surefoot.cache.capture import VERIFIED

Fields: TypeAlias = Mapping[str, Any]

SHOWN = 12  # characters of a name; enough to tell two of one store apart

MISSES = {
    "cold": "nothing of this prompt was stored",
    "diverged": "what was stored went on with other tokens, or ended there",
    "evicted": "parts that were stored once were gone",
    "no_snapshot": "no recurrent snapshot was kept further on",
    "too_short": "the prompt has no whole block before its last token",
    "bypass": "the request asked not to read the cache",
    "corrupt": "a record failed verification",
    "quarantined": "what was stored further on is in quarantine",
    "deadline": "loading took longer than computing would",
    "tier_error": "the tier failed",
    "busy": "every I/O thread was busy",
    "unsupported": "this model is served without a cache",
}
REASONS = {
    "corrupt": "its bytes were not what was sealed",
    "disagreed": "computing it twice gave two results",
    "audited": "an audit computed it anew and got something else",
    "by_hand": "somebody said so",
    "purged": "a tenant's data was removed",
    "lost": "the fence itself was lost, so everything older is barred",
}
FAULTS = {
    "CorruptRecord": "not what was sealed under that name",
    "UnknownFormat": "of a format that the server did not know",
    "TierError": "the tier failed",
    "Barred": "behind a quarantine fence",
    "Late": "too late",
    "Busy": "no I/O thread was free",
    "Absent": "gone since it was planned on",
}
# Counters that are above zero in a healthy process as well.
ORDINARY = ("plans", "hits", "restored_tokens", "committed_tokens", "feature", "audits_agreed")


class Section(NamedTuple):
    """A heading and its sentences."""

    title: str
    lines: list[str]


def explain(capture: Fields) -> list[Section]:
    """Say what a capture shows."""
    sections = [_heading(capture)]
    for turn in capture["turns"]:
        receipt = turn["receipt"]
        of = f" (turn {receipt['id']})" if "fence" in capture["of"] else ""
        sections.append(Section(f"What was served{of}", list(_served(capture, turn))))
        sections.append(Section(f"What was verified{of}", list(_verified(capture, turn))))
        if troubles := list(_troubles(turn)):
            sections.append(Section(f"What went wrong on the way{of}", troubles))
    sections.append(Section("What does not add up", contradictions(capture)))
    return sections


def contradictions(capture: Fields) -> list[str]:
    """Return everything in a capture that a sound cache could not show."""
    several = len(capture["turns"]) > 1
    return [
        f"Turn {turn['receipt']['id']}: {line}" if several else line
        for turn in capture["turns"]
        for line in dict.fromkeys(_contradictions(capture, turn))
    ]


# One turn.


def _heading(capture: Fields) -> Section:
    made = f"made {_when(capture['made_at'])} by surefoot {capture['made_with'].get('surefoot')}"
    named = {
        "keyed": "Names and digests of prompts are aliases: equal ones are equal, and only the "
        "store's owner can tell what they stand for.",
        "plain": "Names are plain: whoever guesses this prompt word for word can confirm it.",
    }.get(capture["names"], "")
    number = capture["of"].get("fence")
    if number is None:
        return Section(f"Capture of turn {capture['of'].get('receipt')}", [f"{made}. {named}"])
    lines = [f"{made}. {named}"]
    for fence in capture["fences"]:
        if fence["number"] == number:
            lines.append(f"{_fence(fence)} {_count(len(capture['turns']), 'turn')} touched it.")
    if capture["left_out"]:
        lines.append(f"{_count(capture['left_out'], 'more record')} it bars were not looked at.")
    return Section(f"Capture of quarantine fence {number}", lines)


def _served(capture: Fields, turn: Fields) -> Iterator[str]:
    receipt = turn["receipt"]
    tokens = [f"{count:,} from {tier}" for tier, count in receipt["sources"].items()]
    tokens = tokens or ["none restored"]
    tokens.append(f"{receipt['computed_tokens']:,} computed")
    if receipt["unreached_tokens"]:
        tokens.append(f"{receipt['unreached_tokens']:,} not reached")
    yield (
        f"{receipt['kind'].capitalize()} of {_when(turn['at'])}, finish {receipt['finish']}. Its "
        f"prompt had {receipt['prompt_tokens']:,} tokens: {', '.join(tokens)}."
    )
    miss = receipt["miss_reason"]
    boundary = receipt["boundary_tokens"] or 0
    if miss is None:
        yield f"The restore stood at token {boundary:,}, as far on as it could."
    else:
        where = f"at token {boundary:,} and no further" if boundary else "nowhere"
        yield f"The restore stood {where}: {MISSES.get(miss, miss)} ({miss})."
    for tier in dict.fromkeys(one["tier"] for one in turn["restored"]):
        parts = [one for one in turn["restored"] if one["tier"] == tier]
        donors = dict.fromkeys(one["committed_by"]["id"] for one in parts if one["committed_by"])
        unknown = sum(one["committed_by"] is None for one in parts)
        by = f", committed by {_listed(list(donors))}" if donors else ""
        lost = f" ({unknown} by turns that the journal has no more)" if unknown else ""
        yield f"From {tier}: {_count(len(parts), 'part')} of {_blocks(parts)}{by}{lost}."
    if turn["committed"]:
        made = turn["committed"]
        yield f"It computed and committed {_count(len(made), 'part')} of {_blocks(made)}."
    for item in receipt["media"]:
        ran = "did not run for it" if item["feature_hit"] else "ran for it"
        if receipt["unreached_tokens"] and not item["feature_hit"]:
            ran += ", unless the turn ended before"
        image = f"An image of {item['tokens']:,} tokens, {_name(item['name'])}"
        yield f"{image}: the vision tower {ran}."
    yield _model(capture, turn)


def _model(capture: Fields, turn: Fields) -> str:
    name = turn["receipt"]["model"]
    origin = capture["models"].get(name)
    loaded = origin["loaded_as"] if origin else {}
    how = ", ".join(f"{key} {value}" for key, value in loaded.items() if value is not None)
    versions = turn["process"]["versions"] if turn["process"] else {}
    ran = ", ".join(f"{key} {value}" for key, value in versions.items())
    return (
        f"Model {_name(name)} ({how or 'how it was loaded is not known'}), on "
        f"{ran or 'versions that are not known'}."
    )


def _verified(capture: Fields, turn: Fields) -> Iterator[str]:
    receipt = turn["receipt"]
    if receipt["verified"]:
        yield "Each restored record was verified before use: its seal, its name and its shape."
    elif not turn["restored"]:
        yield "Nothing was restored, so there was nothing to verify."
    records = _records(capture)
    own = [one for key, one in records.items() if key in _touched(turn)]
    sound = [one for one in own if one["found"] == "stored" and one["seal"] == VERIFIED]
    if own:
        states = [f"{len(sound)} in the store, as sealed"]
        for word, meaning in (
            ("aside", "in quarantine"),
            ("absent", "gone (evicted, or never written)"),
            ("unreadable", "that cannot be read"),
        ):
            if count := sum(one["found"] == word for one in own):
                states.append(f"{count} {meaning}")
        if bad := len([one for one in own if one["found"] == "stored"]) - len(sound):
            states.append(f"{bad} in the store, and damaged")
        yield f"Looked at again for this capture, its {_count(len(own), 'record')}: " + (
            ", ".join(states) + "."
        )
    equal = [one for one in turn["restored"] if _held(records, turn, one) == one["content"]]
    if turn["restored"]:
        yield (
            f"Of {_count(len(turn['restored']), 'restored part')}, {len(equal)} "
            "still lie there with the very content that was restored."
        )
    yield _fenced(capture, turn)
    names = {block["name"] for block in turn["blocks"]}
    verdicts = [one for one in capture["verdicts"] if one["name"] in names]
    if agreed := [one for one in verdicts if one["verdict"] == "agreed"]:
        yield f"Audits computed {_count(len(agreed), 'of its blocks', '')} cold again and agreed."
    if receipt["state_digest"]:
        yield (
            f"The state at token {receipt['state_tokens']:,} digests to "
            f"{_name(receipt['state_digest'])}: the same prompt, computed cold or restored, must "
            "digest to the same."
        )


def _fenced(capture: Fields, turn: Fields) -> str:
    every = [{"block": index} for index in range(len(turn["blocks"]))]
    told = []
    for fence in capture["fences"]:
        if barred := [one for one in every if _bars(fence, turn, one)]:
            reason = fence["reason"]
            told.append(f"fence {fence['number']} ({reason}) on {_blocks(barred)}")
    if not told:
        return "No quarantine fence is on anything of this prompt."
    return f"In quarantine, unless computed anew since: {_listed(told)}."


def _troubles(turn: Fields) -> Iterator[str]:
    for fault in dict.fromkeys(one["fault"] for one in turn["failed"]):
        parts = [one for one in turn["failed"] if one["fault"] == fault]
        yield (
            f"{_count(len(parts), 'part')} of {_blocks(parts)} could not be restored: "
            f"{FAULTS.get(fault, fault)}. What was missing was computed."
        )
    told = {
        key: count
        for key, count in turn["counters"].items()
        if isinstance(count, int) and count and not key.startswith(ORDINARY)
    }
    if told:
        counts = ", ".join(f"{key} {count}" for key, count in told.items())
        yield f"Counted by its process until then, for all turns: {counts}."


def _contradictions(capture: Fields, turn: Fields) -> Iterator[str]:
    yield from _wrong_account(turn)
    yield from _wrong_records(capture, turn)
    yield from _stood_on_quarantined(capture, turn)
    names = {block["name"]: index for index, block in enumerate(turn["blocks"])}
    for verdict in capture["verdicts"]:
        if verdict["verdict"] == "differed" and verdict["name"] in names:
            yield (
                f"An audit of {_when(verdict['at'])} computed block {names[verdict['name']]} "
                "cold and got something else than was stored."
            )


def _wrong_account(turn: Fields) -> Iterator[str]:
    receipt = turn["receipt"]
    total = sum(receipt[f"{kind}_tokens"] for kind in ("restored", "computed", "unreached"))
    if total != receipt["prompt_tokens"]:
        yield f"The receipt accounts for {total:,} of {receipt['prompt_tokens']:,} tokens."
    if sum(receipt["sources"].values()) != receipt["restored_tokens"]:
        yield "The receipt's tiers do not add up to its restored tokens."
    if receipt["restored_tokens"] and not receipt["verified"]:
        yield "It restored state, and the receipt does not say that this was verified."
    if receipt["exact"] != "bitwise":
        yield (
            f"The receipt says exact: {receipt['exact']}. This process found that its engine does "
            "not repeat itself, so warm and cold need not be equal to the bit."
        )
    if receipt.get("suspect"):
        yield (
            "The receipt says suspect: what the answer stood on was quarantined after its first "
            "token had been sent."
        )
    ends = [0, *(block["end"] for block in turn["blocks"])]
    if [block["start"] for block in turn["blocks"]] != ends[:-1]:
        yield "Its blocks do not follow each other."


def _wrong_records(capture: Fields, turn: Fields) -> Iterator[str]:
    records = _records(capture)
    told = {(turn["blocks"][one["block"]]["name"], one["group"]): one for one in turn["committed"]}
    told |= {(turn["blocks"][one["block"]]["name"], one["group"]): one for one in turn["restored"]}
    for one in turn["restored"]:
        donor = one["committed_by"]
        if donor and donor["content"] != one["content"]:
            yield (
                f"{_part(turn, one)}: turn {donor['id']} committed content "
                f"{_name(donor['content'])}, and {_name(one['content'])} was restored."
            )
    for key, record in records.items():
        if key not in _touched(turn):
            continue
        here = f"The record of tokens {record['start']:,} to {record['end']:,}" + (
            f", {record['group']}" if record["group"] else " (features of an image)"
        )
        if record["seal"] not in (None, VERIFIED):
            yield f"{here}, found {record['found']}: {record['seal']}."
        held = record["header"]["content"] if record["header"] else None
        if held is not None and key in told and told[key]["content"] != held:
            verb = "restored" if "tier" in told[key] else "computed"
            yield (
                f"{here}: this turn {verb} content {_name(told[key]['content'])}; what lies "
                f"there now ({record['found']}) says that it is {_name(held)}."
            )


def _stood_on_quarantined(capture: Fields, turn: Fields) -> Iterator[str]:
    records = _records(capture)
    for fence in sorted(capture["fences"], key=lambda one: int(one["number"])):
        barred = [one for one in turn["restored"] if _bars(fence, turn, one)]
        if barred and fence["number"] > turn["fence"]:
            yield (
                f"{_fence(fence)} It came after this turn was planned, and bars {_blocks(barred)} "
                "that the turn restored: this answer stood on a state that was quarantined later."
            )
            continue
        # What was computed anew since is good: only the very record that it bars is not.
        old = [one for one in barred if _number_of(records, turn, one) < fence["number"]]
        old = [one for one in old if _held(records, turn, one) == one["content"]]
        if old:
            yield (
                f"{_blocks(old).capitalize()} were restored although fence {fence['number']}, "
                "which the turn knew, bars them."
            )


def _bars(fence: Fields, turn: Fields, one: Fields) -> bool:
    block = turn["blocks"][one["block"]]
    chain = {turn["root"], *(above["name"] for above in turn["blocks"][: one["block"] + 1])}
    consumed = {item["feature"] for item in turn["media"] if item["start"] < block["end"]}
    return fence["name"] is None or fence["name"] in chain | consumed


# Two turns.


def compare(first: Fields, second: Fields) -> list[Section]:
    """Say where the prompts of two captures part, and what else differs."""
    one, other = first["turns"][0], second["turns"][0]
    ids = [turn["receipt"]["id"] for turn in (one, other)]
    lines = [*_compared_prompts(first, second), *_compared_models(first, second)]
    processes = [turn["process"] or {} for turn in (one, other)]
    for what in ("versions", "settings"):
        told = [process.get(what, {}) for process in processes]
        lines += _differences(what, told[0], told[1])
    if one["fence"] != other["fence"]:
        lines.append(f"Their plans knew fence {one['fence']} and fence {other['fence']}.")
    return [
        Section(f"Turn {ids[0]} and turn {ids[1]}", lines),
        Section("What does not add up between them", disagreements(first, second)),
    ]


def disagreements(first: Fields, second: Fields) -> list[str]:
    """Return what two captures say of one thing and cannot both be so."""
    if not _comparable(first, second):
        return []
    found = []
    one, other = first["turns"][0], second["turns"][0]
    contents = [_contents(turn) for turn in (one, other)]
    for key in contents[0].keys() & contents[1].keys():
        if contents[0][key] != contents[1][key]:
            found.append(
                f"One block has two contents: {key[1]} of {_name(key[0])} is "
                f"{_name(contents[0][key])} in the first and {_name(contents[1][key])} in the "
                "second."
            )
    states = [
        {
            (block["name"]): turn["receipt"]["state_digest"]
            for block in turn["blocks"]
            if block["end"] == turn["receipt"]["state_tokens"]
        }
        for turn in (one, other)
    ]
    for name in states[0].keys() & states[1].keys():
        if states[0][name] != states[1][name]:
            found.append(
                f"One prefix has two states: at block {_name(name)} the first digests to "
                f"{_name(states[0][name])}, the second to {_name(states[1][name])}."
            )
    return sorted(found)


def parting(first: Fields, second: Fields) -> int:
    """Return how many leading tokens two turns of one store share, media included."""
    digests = [_positions(turn) for turn in (first, second)]
    pairs = enumerate(zip(*digests, strict=False))
    at = next((n for n, (one, other) in pairs if one != other), min(map(len, digests)))
    shown = [{(item["start"], item["name"]) for item in turn["media"]} for turn in (first, second)]
    return min([at, *(int(start) for start, _ in shown[0] ^ shown[1])])


def _positions(turn: Fields) -> list[str]:
    digests, width = turn["tokens"]["digests"], 2 * turn["tokens"]["digest_bytes"]
    return [digests[at : at + width] for at in range(0, len(digests), width)]


def _compared_prompts(first: Fields, second: Fields) -> Iterator[str]:
    if first["store"] != second["store"]:
        yield "They are of two stores, with two secrets: prompts and names cannot be compared."
        return
    one, other = first["turns"][0], second["turns"][0]
    lengths = [turn["receipt"]["prompt_tokens"] for turn in (one, other)]
    known = [len(_positions(turn)) for turn in (one, other)]
    at = parting(one, other)
    if at == lengths[0] == lengths[1]:
        yield f"Both prompts are the same {at:,} tokens."
    elif at == min(lengths):
        yield f"One prompt is the beginning of the other: {at:,} of {max(lengths):,} tokens."
    elif at == min(known):
        yield f"Both prompts are the same for {at:,} tokens; further digests are lost."
    else:
        lead = f"are the same for {at:,} tokens and part at token {at:,}" if at else "begin apart"
        yield f"The prompts {lead}, of {lengths[0]:,} and {lengths[1]:,}."
    starts = {item["start"] for turn in (one, other) for item in turn["media"]}
    if at in starts and at < min(lengths):
        yield "There, one shows an image that the other does not."
    if first["names"] != second["names"]:
        yield "One capture has plain names and one has aliases: names cannot be compared."
        return
    names = [
        {block["name"] for block in turn["blocks"] if block["end"] <= at} for turn in (one, other)
    ]
    if names[0] and names[1] and not names[0] & names[1]:
        yield "None of their blocks have one name: another model, or another tenant's salt."


def _compared_models(first: Fields, second: Fields) -> Iterator[str]:
    models = [capture["turns"][0]["receipt"]["model"] for capture in (first, second)]
    if models[0] == models[1]:
        yield f"Both were answered by model {_name(models[0])}."
        return
    yield f"Two models answered: {_name(models[0])} and {_name(models[1])}."
    origins = [
        capture["models"].get(model) for capture, model in zip((first, second), models, strict=True)
    ]
    if not all(origins):
        yield "What at least one of them was made of is not known."
        return
    yield from _differences("ingredients", *(one["ingredients"] for one in origins if one))


def _differences(what: str, one: Fields, other: Fields) -> Iterator[str]:
    first, second = _flat(one), _flat(other)
    for key in sorted(first.keys() | second.keys()):
        if first.get(key) != second.get(key):
            told = [_short(each[key]) if key in each else "not stated" for each in (first, second)]
            same = " (further on)" if told[0] == told[1] else ""
            yield f"Other {what}: {key} is {told[0]} in the first, {told[1]} in the second{same}."


def _flat(fields: Fields, depth: int = 6) -> dict[str, object]:
    """Spread a text that is JSON itself, as a model's configuration is, into its own fields."""
    flat: dict[str, object] = {}
    for key, value in fields.items():
        within = value
        if isinstance(value, str) and value.startswith("{"):
            with suppress(ValueError, RecursionError):
                within = json.loads(value)
        if isinstance(within, dict) and within and depth:
            flat |= {f"{key}.{name}": one for name, one in _flat(within, depth - 1).items()}
        else:
            flat[key] = value
    return flat


def _comparable(first: Fields, second: Fields) -> bool:
    return (first["store"], first["names"]) == (second["store"], second["names"])


def _contents(turn: Fields) -> dict[tuple[str, str], str]:
    return {
        (turn["blocks"][one["block"]]["name"], one["group"]): one["content"]
        for one in (*turn["committed"], *turn["restored"])
    }


# Words.


def _records(capture: Fields) -> dict[tuple[str, str | None], Fields]:
    return {(one["name"], one["group"]): one for one in capture["records"]}


def _touched(turn: Fields) -> set[tuple[str, str | None]]:
    parts = (*turn["restored"], *turn["failed"], *turn["committed"])
    touched = {(turn["blocks"][one["block"]]["name"], one["group"]) for one in parts}
    return touched | {(item["feature"], None) for item in turn["media"]}


def _held(
    records: Mapping[tuple[str, str | None], Fields], turn: Fields, one: Fields
) -> str | None:
    record = records.get((turn["blocks"][one["block"]]["name"], one["group"]))
    return record["header"]["content"] if record and record["header"] else None


def _number_of(
    records: Mapping[tuple[str, str | None], Fields], turn: Fields, one: Fields
) -> float:
    record = records.get((turn["blocks"][one["block"]]["name"], one["group"]))
    return record["header"]["fence"] if record and record["header"] else inf


def _fence(fence: Fields) -> str:
    name = f" on {_name(fence['name'])}" if fence.get("name") else ""
    reason = REASONS.get(fence.get("reason", ""), fence.get("reason", "no reason is known"))
    when = f" of {_when(fence['at'])}" if fence.get("at") else ""
    return f"Fence {fence['number']}{when}{name}: {reason}."


def _part(turn: Fields, one: Fields) -> str:
    block = turn["blocks"][one["block"]]
    return f"Block {one['block']} (tokens {block['start']:,} to {block['end']:,}), {one['group']}"


def _blocks(parts: Iterable[Fields]) -> str:
    indices = sorted({one["block"] for one in parts})
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    told = [f"{low}" if low == high else f"{low} to {high}" for low, high in runs]
    return f"block{'s' * (len(indices) > 1)} {_listed(told)}"


def _listed(words: Sequence[str], most: int = 6) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _count(count: int, word: str, plural: str = "s") -> str:
    return f"{count:,} {word}{plural * (count != 1)}"


def _name(name: str) -> str:
    return name[:SHOWN]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _when(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
