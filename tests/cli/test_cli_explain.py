"""What a capture shows is said in plain words, and each kind of contradiction is found.

Starts from a sound capture (``golden/capture-v1.json``) and spoils one thing at a time.
"""

import copy
import json
from pathlib import Path

import pytest

from surefoot.cache.fences import Reason
from surefoot.cli import app
from surefoot.cli.explain import (
    MISSES,
    REASONS,
    compare,
    contradictions,
    disagreements,
    explain,
    parting,
)
from surefoot.receipt import Miss
from surefoot.testing.cache_kit import ROWS_ONLY
from surefoot.testing.evidence_kit import Archive

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "capture-v1.json").read_text())
OTHER = "ab" * 32


@pytest.fixture
def sound():
    return copy.deepcopy(GOLDEN)


def told(sections):
    return "\n".join(line for section in sections for line in (section.title, *section.lines))


def turn_of(capture):
    return capture["turns"][0]


def fence(number, name, reason="audited"):
    return {"number": number, "name": name, "reason": reason, "at": 1.7e9}


def test_a_sound_capture_adds_up(sound):
    assert contradictions(sound) == []


def test_it_says_what_came_from_where(sound):
    text = told(explain(sound))
    for words in (
        "Its prompt had 24 tokens: 12 from ssd, 12 computed.",
        "The restore stood at token 12 and no further: a record failed verification (corrupt).",
        "From ssd: 3 parts of blocks 0 to 2, committed by first, second.",
        "It computed and committed 3 parts of blocks 3 to 5.",
        "An image of 4 tokens, b0505f446840: the vision tower did not run for it.",
        "block_tokens 4, device cpu, model spark, threads 2",
        "torch 2.13.0",
        "Each restored record was verified before use",
        "its 7 records: 7 in the store, as sealed.",
        "Of 3 restored parts, 3 still lie there with the very content that was restored.",
        "Audits computed 1 of its blocks cold again and agreed.",
        "1 part of block 3 could not be restored: not what was sealed under that name.",
        "for all turns: tier_ssd_stalls 1.",
    ):
        assert words in text


def lie_about_sums(capture):
    turn_of(capture)["receipt"]["computed_tokens"] += 1
    return "accounts for 25 of 24 tokens"


def lie_about_tiers(capture):
    turn_of(capture)["receipt"]["sources"]["ram"] = 4
    return "tiers do not add up"


def unverified(capture):
    turn_of(capture)["receipt"]["verified"] = False
    return "does not say that this was verified"


def unverified_and_unknown(capture):
    turn_of(capture)["receipt"]["verified"] = None
    return "does not say that this was verified"


def numeric(capture):
    turn_of(capture)["receipt"]["exact"] = "numeric"
    return "exact: numeric"


def suspect(capture):
    turn_of(capture)["receipt"]["suspect"] = True
    return "quarantined after its first token"


def a_gap_in_the_blocks(capture):
    turn_of(capture)["blocks"][2]["start"] += 1
    return "blocks do not follow"


def another_content_was_committed(capture):
    turn_of(capture)["restored"][1]["committed_by"]["content"] = OTHER
    return "Block 1 (tokens 4 to 8), rows: turn first committed content abababababab"


def another_content_lies_there_now(capture):
    capture["records"][1]["header"]["content"] = OTHER
    return "tokens 4 to 8, rows: this turn restored content"


def another_content_than_was_computed_lies_there(capture):
    capture["records"][4]["header"]["content"] = OTHER
    return "tokens 16 to 20, rows: this turn computed content"


def a_damaged_record(capture):
    capture["records"][0]["seal"] = "its bytes are not what was sealed"
    return "tokens 0 to 4, rows, found stored: its bytes are not what was sealed."


def damaged_features(capture):
    capture["records"][-1]["seal"] = "its header is damaged"
    return "tokens 4 to 8 (features of an image), found stored: its header is damaged."


def a_verdict_that_differs(capture):
    capture["verdicts"][0]["verdict"] = "differed"
    return "computed block 0 cold and got something else"


def a_later_fence_on_a_block(capture):
    capture["fences"].append(fence(9, turn_of(capture)["blocks"][1]["name"]))
    return "bars blocks 1 to 2 that the turn restored: this answer stood on a state"


def a_later_fence_on_the_root(capture):
    capture["fences"].append(fence(9, turn_of(capture)["root"], "purged"))
    return "bars blocks 0 to 2 that the turn restored: this answer stood on a state"


def a_later_fence_on_features(capture):
    capture["fences"].append(fence(9, turn_of(capture)["media"][0]["feature"], "by_hand"))
    return "bars blocks 1 to 2 that the turn restored: this answer stood on a state"


def a_later_fence_that_was_lost(capture):
    capture["fences"].append(fence(9, None, "lost"))
    return "bars blocks 0 to 2 that the turn restored"


def a_fence_that_was_known(capture):
    turn_of(capture)["fence"] = 9
    capture["fences"].append(fence(9, turn_of(capture)["blocks"][1]["name"]))
    return "Blocks 1 to 2 were restored although fence 9, which the turn knew, bars them."


SPOILED = [
    lie_about_sums,
    lie_about_tiers,
    unverified,
    unverified_and_unknown,
    numeric,
    suspect,
    a_gap_in_the_blocks,
    another_content_was_committed,
    another_content_lies_there_now,
    another_content_than_was_computed_lies_there,
    a_damaged_record,
    damaged_features,
    a_verdict_that_differs,
    a_later_fence_on_a_block,
    a_later_fence_on_the_root,
    a_later_fence_on_features,
    a_later_fence_that_was_lost,
    a_fence_that_was_known,
]


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda one: one.__name__)
def test_what_does_not_add_up_is_said_once(sound, spoil):
    words = spoil(sound)
    found = contradictions(sound)
    assert len([line for line in found if words in line]) == 1, found
    assert len(found) == 1
    assert words in told(explain(sound))


def gone(capture):
    capture["records"][1] |= {"found": "absent", "seal": None, "header": None, "bytes": None}


def in_quarantine(capture):
    capture["records"][1]["found"] = "aside"


def computed_anew_since(capture):
    turn_of(capture)["fence"] = 9
    capture["fences"].append(fence(9, turn_of(capture)["blocks"][0]["name"]))
    for record in capture["records"]:
        record["header"]["fence"] = 9


def a_fence_on_what_was_not_restored(capture):
    capture["fences"].append(fence(9, turn_of(capture)["blocks"][4]["name"]))


def no_journal_of_the_donor(capture):
    turn_of(capture)["restored"][0]["committed_by"] = None


def nothing_known(capture):
    turn_of(capture)["process"] = None
    capture["models"] = dict.fromkeys(capture["models"])
    capture["verdicts"] = []
    capture["records"] = []


@pytest.mark.parametrize(
    "change",
    [
        gone,
        in_quarantine,
        computed_anew_since,
        a_fence_on_what_was_not_restored,
        no_journal_of_the_donor,
        nothing_known,
    ],
    ids=lambda one: one.__name__,
)
def test_what_happens_to_a_sound_store_is_no_contradiction(sound, change):
    change(sound)
    assert contradictions(sound) == []
    assert told(explain(sound)) != told(explain(GOLDEN))


def test_every_reason_has_words():
    assert MISSES.keys() == set(Miss)
    assert REASONS.keys() == set(Reason)


def test_the_capture_of_a_fence_says_why_and_who_touched_it(sound):
    sound["of"] = {"fence": 1}
    sound["left_out"] = 3
    text = told(explain(sound))
    assert text.startswith("Capture of quarantine fence 1\n")
    assert "on 88db23aaf63d: its bytes were not what was sealed. 1 turn touched it." in text
    assert "3 more records it bars were not looked at." in text
    assert "What was served (turn third)" in text


def test_of_several_turns_it_is_said_which_one_does_not_add_up(sound):
    other = copy.deepcopy(turn_of(sound))
    other["receipt"] |= {"id": "other", "suspect": True}
    sound["turns"].append(other)
    (found,) = contradictions(sound)
    assert found.startswith("Turn other: The receipt says suspect")


# Two captures.


def parted(capture, at, *, length=None):
    """Return another capture of the store whose prompt differs from token ``at`` on."""
    other = copy.deepcopy(capture)
    turn = turn_of(other)
    digests = turn["tokens"]["digests"]
    keep = digests[: 16 * at]
    turn["tokens"]["digests"] = keep + "".join(f"{n:016x}" for n in range((length or 24) - at))
    turn["receipt"]["prompt_tokens"] = length or 24
    for block in turn["blocks"]:
        if block["end"] > at:
            block["name"] = OTHER[:-2] + f"{block['end']:02x}"
    return other


@pytest.mark.parametrize("at", [0, 1, 11, 12, 23])
def test_it_says_where_two_prompts_part(sound, at):
    other = parted(sound, at)
    if at < 4:
        turn_of(other)["media"] = turn_of(sound)["media"]
    assert parting(turn_of(sound), turn_of(other)) == at
    text = told(compare(sound, other))
    assert (f"part at token {at}," if at else "The prompts begin apart") in text
    assert disagreements(sound, other) == []


def test_it_says_that_two_prompts_are_one_or_one_begins_the_other(sound):
    assert "Both prompts are the same 24 tokens." in told(compare(sound, sound))
    shorter = copy.deepcopy(sound)
    turn_of(shorter)["receipt"]["prompt_tokens"] = 20
    turn_of(shorter)["tokens"]["digests"] = turn_of(sound)["tokens"]["digests"][: 20 * 16]
    for pair in ((sound, shorter), (shorter, sound)):
        assert "One prompt is the beginning of the other: 20 of 24 tokens." in told(compare(*pair))


def test_it_says_that_digests_are_lost(sound):
    short = copy.deepcopy(sound)
    turn_of(short)["tokens"]["digests"] = turn_of(sound)["tokens"]["digests"][: 8 * 16]
    assert "the same for 8 tokens; further digests are lost" in told(compare(sound, short))


def test_another_image_under_the_same_tokens_is_where_they_part(sound):
    other = copy.deepcopy(sound)
    turn_of(other)["media"][0]["name"] = OTHER
    text = told(compare(sound, other))
    assert "are the same for 4 tokens and part at token 4," in text
    assert "There, one shows an image that the other does not." in text


def test_another_salt_is_named(sound):
    other = copy.deepcopy(sound)
    for block in turn_of(other)["blocks"]:
        block["name"] = OTHER[:-2] + f"{block['end']:02x}"
    text = told(compare(sound, other))
    assert "None of their blocks have one name: another model, or another tenant's salt." in text
    assert "None of their blocks" not in told(compare(sound, parted(sound, 12)))


def test_captures_of_two_stores_are_not_compared_by_name(sound):
    other = copy.deepcopy(sound)
    other["store"] = OTHER
    turn_of(other)["restored"][0]["content"] = OTHER
    assert "two stores" in told(compare(sound, other))
    assert disagreements(sound, other) == []
    mixed = copy.deepcopy(sound)
    mixed["names"] = "plain"
    assert "names cannot be compared" in told(compare(sound, mixed))


def test_one_block_with_two_contents_and_one_prefix_with_two_states_do_not_add_up(sound):
    other = copy.deepcopy(sound)
    turn_of(other)["restored"][0]["content"] = OTHER
    turn_of(other)["receipt"]["state_digest"] = OTHER
    found = disagreements(sound, other)
    assert [line.split(":")[0] for line in found] == [
        "One block has two contents",
        "One prefix has two states",
    ]
    assert all(line in told(compare(sound, other)) for line in found)


def test_what_else_differs_is_listed(sound):
    other = copy.deepcopy(sound)
    turn = turn_of(other)
    model = turn["receipt"]["model"]
    turn["receipt"]["model"] = OTHER
    other["models"] = {OTHER: copy.deepcopy(other["models"][model])}
    other["models"][OTHER]["ingredients"]["numerics: torch"] = "2.14"
    other["models"][OTHER]["ingredients"]["config"] = '{"layers": 3, "heads": {"count": 1}}'
    turn["process"]["versions"]["kernel"] = "Linux 7"
    del turn["process"]["settings"]["threads"]
    turn["fence"] = 5
    text = told(compare(sound, other))
    for words in (
        "Two models answered: 6d6d6d6d6d6d and abababababab.",
        "Other ingredients: numerics: torch is 2.13 in the first, 2.14 in the second.",
        "Other ingredients: config.layers is 2 in the first, 3 in the second.",
        "Other ingredients: config.heads.count is not stated in the first, 1 in the second.",
        "Other versions: kernel is Linux 6.1 x86_64 in the first, Linux 7 in the second.",
        "Other settings: threads is 2 in the first, not stated in the second.",
        "Their plans knew fence 0 and fence 5.",
    ):
        assert words in text
    other["models"] = {OTHER: None}
    assert "What at least one of them was made of is not known." in told(compare(sound, other))


# The commands.


@pytest.fixture
def archive(tmp_path):
    made = Archive(tmp_path / "store", ROWS_ONLY)
    for receipt_id, tokens in (("first", range(9)), ("second", [*range(9), 40, 41, 42, 43])):
        with made.bench.open() as cache:
            made.take(cache, list(tokens), receipt_id)
    return made


def capture(archive, receipt_id, path, *more):
    return app.run(
        ["cache", "capture", receipt_id, "-o", str(path), "--store", str(archive.root), *more]
    )


def test_from_an_id_to_plain_words(archive, tmp_path, capsys):
    paths = [tmp_path / f"{receipt_id}.json" for receipt_id in ("first", "second")]
    for path in paths:
        assert capture(archive, path.stem, path) == 0
        assert "no text and no tokens" in capsys.readouterr().out
    assert app.run(["cache", "explain", str(paths[1])]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Capture of turn second\n")
    assert said.rstrip().endswith("What does not add up\n  - Nothing.")
    assert app.run(["cache", "explain", *map(str, paths)]) == 0
    assert "One prompt is the beginning of the other: 9 of 13 tokens." in capsys.readouterr().out
    assert capture(archive, "first", paths[0], "--plain-names") == 0
    assert json.loads(paths[0].read_text())["names"] == "plain"


def test_what_does_not_add_up_is_an_exit_code(archive, tmp_path, capsys):
    for record in archive.root.glob("records/*/*.rec"):
        record.write_bytes(record.read_bytes()[:-1] + b"\0")
    path = tmp_path / "c.json"
    assert capture(archive, "second", path) == 0
    assert app.run(["cache", "explain", str(path)]) == 1
    assert "its bytes are not what was sealed" in capsys.readouterr().out.replace("\n    ", " ")


def test_mistakes_are_a_sentence_and_exit_2(archive, tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    newer = tmp_path / "newer.json"
    newer.write_text(json.dumps(GOLDEN | {"surefoot_capture": 2}))
    many = tmp_path / "many.json"
    many.write_text(json.dumps(GOLDEN | {"turns": GOLDEN["turns"] * 2}))
    for arguments, words in (
        (
            ["capture", "nobody", "-o", str(bad), "--store", str(archive.root)],
            "no receipt 'nobody'",
        ),
        (["capture", "first", "-o", "/nowhere/x", "--store", str(archive.root)], "be written"),
        (["capture", "first", "-o", str(bad), "--store", "off"], "--store off"),
        (["capture", "first", "-o", str(bad), "--store", str(tmp_path / "none")], "not a store"),
        (["explain", str(bad)], "is no capture, or is damaged"),
        (["explain", str(newer)], "version 2; this release reads version 1"),
        (["explain", str(many), str(many)], "2 turns; compare two of one"),
    ):
        assert app.run(["cache", *arguments]) == 2, arguments
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1


def test_a_capture_from_a_stranger_cannot_move_the_cursor(tmp_path, capsys, sound):
    turn_of(sound)["receipt"]["finish"] = "\x1b[2Jstop\r\u202e"
    path = tmp_path / "c.json"
    path.write_text(json.dumps(sound))
    assert app.run(["cache", "explain", str(path)]) == 0
    said = capsys.readouterr().out
    assert not set(said) & set("\x1b\r\u202e")
    assert "?[2Jstop" in said
