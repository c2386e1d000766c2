"""A capture shows what an answer stood on, and nothing of what it was about."""

import base64
import json
import urllib.parse
from contextlib import nullcontext
from dataclasses import replace

import pytest

from surefoot import identity
from surefoot.cache import capture as room
from surefoot.cache.capture import (
    VERIFIED,
    Names,
    capture_fence,
    capture_turn,
    purge_evidence,
    write_capture,
)
from surefoot.cache.captured import read_capture
from surefoot.cache.evidence import Committed, versions
from surefoot.cache.fences import Fences, Reason
from surefoot.cache.inventory import Inventory
from surefoot.cache.journal import JOURNAL
from surefoot.cache.origins import note_model, noted_model
from surefoot.errors import SetupError
from surefoot.prompt import MediaSpan
from surefoot.record import content, seal
from surefoot.record import key as record_key
from surefoot.testing.cache_kit import (
    MODEL,
    ROWS_ONLY,
    blocks_of,
    feature_name_of,
    image_of,
    part_of,
    spoiled,
)
from surefoot.testing.evidence_kit import COUNTERS, INGREDIENTS, LOADED_AS, Archive
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier

NOW = 1.8e9
CANARY = (0x11223344, 0x55667788, 0x19AABBCC, 0x0DDEEFF0)
PROMPT = [*CANARY, 1, 2, 3, 4, *CANARY, 9]
IMAGE = image_of(1)
SEEN = {"media": [(4, IMAGE)]}


@pytest.fixture
def archive(tmp_path):
    """Two turns of one conversation, with an image in its second block."""
    made = Archive(tmp_path / "store", ROWS_ONLY)
    for receipt_id, tokens in (("first", PROMPT), ("second", [*PROMPT, 10, 11, 12, 13])):
        with made.bench.open() as cache:
            made.take(cache, tokens, receipt_id, **SEEN)
    return made


def blocks():
    return blocks_of([*PROMPT, 10, 11, 12, 13], media=media())


def media():
    return (MediaSpan(4, IMAGE.tokens, IMAGE.name),)


def captured(archive, receipt_id="second", **changes):
    return capture_turn(archive.root, receipt_id, now=NOW, **changes)


def secret(archive):
    return (archive.root / "secret").read_bytes()


def aliased(archive, name):
    return identity.alias(secret(archive), name).hex()


def record(found, start, *, group="rows"):
    return next(one for one in found["records"] if (one["start"], one["group"]) == (start, group))


def file_of(archive, index):
    key = record_key(blocks()[index].name, "rows")
    return archive.root / "records" / key[:2] / f"{key}.rec"


def fence(archive, name, reason=Reason.BY_HAND):
    fences = Fences(
        SsdTier(archive.root / "fences", RealDisk(), "tester"),
        alone=nullcontext,
        wall_clock=lambda: 1.75e9,
    )
    fences.load()
    fences.bar(name, reason, f"what {name.hex()} says")
    (made,) = fences.settle()
    return made.number


def test_a_capture_names_all_that_the_turn_stood_on_and_made(archive):
    found = captured(archive)
    (turn,) = found["turns"]
    assert turn["receipt"]["id"] == "second"
    assert [one["block"] for one in turn["restored"]] == [0, 1, 2]
    assert [one["block"] for one in turn["committed"]] == [3]
    assert [one["end"] for one in turn["blocks"]] == [4, 8, 12, 16]
    assert [one["name"] for one in turn["blocks"]] == [
        aliased(archive, one.name) for one in blocks()
    ]
    assert turn["root"] == aliased(archive, blocks()[0].parent)
    assert turn["counters"] == COUNTERS
    assert turn["process"] == {"settings": archive.settings, "versions": versions()}
    assert found["models"] == {MODEL.hex(): {"ingredients": INGREDIENTS, "loaded_as": LOADED_AS}}
    assert found["store"] == identity.store_id(secret(archive)).hex()


def test_every_record_is_looked_at_and_stands_on_its_parent(archive):
    records = captured(archive)["records"]
    assert [(one["group"], one["start"], one["found"], one["seal"]) for one in records] == [
        *(("rows", start, "stored", VERIFIED) for start in (0, 4, 8, 12)),
        (None, 4, "stored", VERIFIED),
    ]
    parents = [blocks()[0].parent, *(one.name for one in blocks()[:3])]
    assert [one["header"]["parent"] for one in records[:4]] == [
        aliased(archive, one) for one in parents
    ]
    assert records[1]["header"]["features"] == [aliased(archive, feature_name_of(IMAGE))]


def test_a_restored_part_names_the_turn_that_committed_it(archive):
    (turn,) = captured(archive)["turns"]
    assert [one["committed_by"] for one in turn["restored"]] == [
        {"id": "first", "content": one["content"]} for one in turn["restored"]
    ]
    with archive.bench.open() as cache:
        archive.take(cache, [*PROMPT, 10, 11, 12, 13, 14], "third", **SEEN)
    donors = [
        one["committed_by"]["id"] for one in captured(archive, "third")["turns"][0]["restored"]
    ]
    assert donors == ["first", "first", "first", "second"]
    assert captured(archive, "first")["turns"][0]["restored"] == []


def test_of_several_turns_that_committed_a_part_the_last_one_before_is_named(archive):
    with archive.bench.open() as cache:
        told = archive.take(cache, PROMPT, "asking", **SEEN)
        journal = archive.journal(cache)
    part = told[1].restored[0]
    for at, receipt_id in ((1.0, "older"), (2.0, "newer"), (9.0, "later")):
        made = Committed(part.group, part.block, receipt_id.encode().ljust(32, b"."))
        evidence = replace(told[1], restored=(), committed=(made,))
        journal.enter(replace(told[0], id=receipt_id), evidence, counters={}, at=at)
    journal.enter(replace(told[0], id="asked again"), told[1], counters={}, at=5.0)
    journal.close()
    (turn,) = captured(archive, "asked again", names=Names.PLAIN)["turns"]
    assert turn["restored"][0]["committed_by"] == {
        "id": "newer",
        "content": b"newer".ljust(32, b".").hex(),
    }


# Nothing of the prompt.


def spellings(ids, text=""):
    """Yield many ways to write tokens or text that a file could hold."""
    big = b"".join(ids[at : at + 4][::-1] for at in range(0, len(ids), 4))
    raws = [ids, big, text.encode()]
    for raw in filter(None, raws):
        yield raw
        yield raw.hex().encode()
        yield raw.hex().upper().encode()
        yield urllib.parse.quote(raw).encode()
        yield json.dumps(raw.decode("latin-1")).encode()[1:-1]
        for shift in range(
            3 if len(raw) >= 12 else 0
        ):  # base64 depends on where in three bytes a text begins
            coded = base64.b64encode(bytes(shift) + raw)
            yield coded[4:12]  # of twelve bytes or more: what does not depend on what is around


def guesses():
    """Yield every name that somebody makes who guesses the prompt, the image and the model."""
    named = blocks()
    yield named[0].parent
    for block in named:
        yield block.name
        yield content(part_of(ROWS_ONLY[0], block))
    yield IMAGE.name
    yield feature_name_of(IMAGE)


def test_no_token_is_in_a_capture_in_any_spelling(archive, tmp_path):
    for names in Names:
        write_capture(tmp_path / "c.json", captured(archive, names=names))
        written = (tmp_path / "c.json").read_bytes()
        for token in CANARY:
            raw = token.to_bytes(4, "little")
            forms = [*spellings(raw * 3), *spellings(raw), str(token).encode()]
            assert not [form for form in forms if len(form) >= 4 and form in written]


def test_the_search_for_tokens_would_find_them():
    raw = CANARY[0].to_bytes(4, "little") * 3
    leaks = [raw, raw.hex().encode(), base64.b64encode(b"x" + raw), base64.b64encode(raw)]
    for leak in leaks:
        assert any(form in b"[" + leak + b"]" for form in spellings(raw)), leak


def test_a_guess_of_the_whole_prompt_is_not_confirmed(archive, tmp_path):
    write_capture(tmp_path / "c.json", captured(archive))
    written = (tmp_path / "c.json").read_text()
    assert not [name.hex() for name in guesses() if name.hex() in written]
    # Prefixes would do as well for a guesser.
    assert not [name.hex() for name in guesses() if name.hex()[:12] in written]


def test_plain_names_are_given_only_when_asked_for(archive, tmp_path):
    found = captured(archive, names=Names.PLAIN)
    assert found["names"] == "plain"
    write_capture(tmp_path / "c.json", found)
    written = (tmp_path / "c.json").read_text()
    assert all(name.hex() in written for name in guesses())


def test_no_path_and_no_free_text_is_in_a_capture(archive, tmp_path):
    home = "/home/alice/clients/acme"
    note_model(
        archive.root,
        MODEL,
        ingredients={"build": f"CXX={home}/bin/c++ -I{home} -O2", "config": f'{{"a": "{home}"}}'},
        loaded_as={"model": f"{home}/model.gguf", "hub": "acme/model-7b"},
    )
    archive.settings = {"threads": 2, "note": f"~{home}", "windows": "C:\\Users\\alice\\x"}
    fence(archive, blocks()[1].name)
    with archive.bench.open() as cache:
        note = json.loads((archive.root / "models" / f"{MODEL.hex()}.json").read_text())
        archive.take(cache, PROMPT, "third", **SEEN)
        (archive.root / "models" / f"{MODEL.hex()}.json").write_text(json.dumps(note))
    found = captured(archive, "third")
    written = json.dumps(found)
    assert not [word for word in ("alice", "clients", "says", "detail") if word in written]
    assert str(tmp_path) not in written
    model = found["models"][MODEL.hex()]
    assert model["ingredients"]["build"].endswith(" -O2")
    assert model["loaded_as"] == {"model": "[path]", "hub": "acme/model-7b"}
    assert found["fences"][0]["reason"] == "by_hand"


def test_captures_of_one_store_can_be_compared_and_of_two_cannot(archive, tmp_path):
    other = Archive(tmp_path / "other", ROWS_ONLY)
    other.bench._writers = 40  # another secret
    with other.bench.open() as cache:
        other.take(cache, PROMPT, "first", **SEEN)
    first, second, foreign = captured(archive, "first"), captured(archive), captured(other, "first")
    assert first["store"] == second["store"] != foreign["store"]
    names = [
        [one["name"] for one in found["turns"][0]["blocks"]] for found in (first, second, foreign)
    ]
    assert names[0] == names[1][:3]
    assert not set(names[0]) & set(names[2])
    digests = [found["turns"][0]["tokens"]["digests"] for found in (first, second, foreign)]
    assert digests[1].startswith(digests[0])
    assert digests[0][:16] != digests[2][:16]


# What became of the records.


def test_what_is_wrong_with_a_record_is_said_in_fixed_words(archive):
    def flip(at):
        data = bytearray(file_of(archive, 0).read_bytes())
        data[at] ^= 1
        return bytes(data)

    block = blocks()[0]
    lie = spoiled(part_of(ROWS_ONLY[0], block))
    wrong = {
        "its bytes are not what was sealed": flip(-1),
        "its header is damaged": flip(90),
        "of a version, kind or codec that this release does not read": flip(8),
        "it is of another name": file_of(archive, 1).read_bytes(),
        "it does not hold the content that its header states": seal(
            block, lie, content=content(part_of(ROWS_ONLY[0], block))
        ),
    }
    for words, data in wrong.items():
        file_of(archive, 0).write_bytes(data)
        found = record(captured(archive), 0)
        assert (found["found"], found["seal"]) == ("stored", words)
        assert found["bytes"] == len(data)


def test_a_record_that_is_gone_or_aside_or_cannot_be_read_is_called_so(archive):
    path = file_of(archive, 0)
    data = path.read_bytes()
    path.unlink()
    assert record(captured(archive), 0)["found"] == "absent"
    for number in (1, 2):
        aside = SsdTier(archive.root / "quarantine", RealDisk(), "tester")
        aside.put(f"{number:010d}.{path.name.removesuffix('.rec')}", data)
    found = record(captured(archive), 0)
    assert (found["found"], found["seal"]) == ("aside", VERIFIED)
    path.mkdir()
    assert record(captured(archive), 0)["found"] == "unreadable"


def test_a_fence_covers_what_descends_from_its_name(archive):
    covered = {
        blocks()[0].parent: [0, 4, 8, 12],
        blocks()[2].name: [8, 12],
        feature_name_of(IMAGE): [4, 8, 12],
    }
    for name, starts in covered.items():
        number = fence(archive, name)
        found = captured(archive)
        hit = [
            one["start"] for one in found["records"] if one["group"] and number in one["covered_by"]
        ]
        assert hit == starts
        assert found["fences"][-1] == {
            "number": number,
            "name": aliased(archive, name),
            "reason": "by_hand",
            "at": 1.75e9,
        }


def test_a_fence_on_another_conversation_is_not_told(archive):
    fence(archive, b"o" * 32)
    found = captured(archive)
    assert found["fences"] == []
    assert not any(one["covered_by"] for one in found["records"])


def test_a_fence_that_cannot_be_read_covers_everything(archive):
    number = fence(archive, b"o" * 32)
    (path,) = (archive.root / "fences").glob("*/*.rec")
    path.write_bytes(b"?")
    found = captured(archive)
    assert [one["reason"] for one in found["fences"]] == ["lost"]
    assert all(one["covered_by"] == [number] for one in found["records"])


def test_verdicts_of_audits_are_told(archive):
    inventory = Inventory(archive.folder.inventory)
    inventory.lineage.judge({blocks()[1].name: "differed", b"o" * 32: "agreed"}, at=9.0)
    inventory.close()
    assert captured(archive)["verdicts"] == [
        {"name": aliased(archive, blocks()[1].name), "verdict": "differed", "at": 9.0}
    ]


def test_a_capture_is_made_of_a_store_whose_index_and_models_are_lost(archive):
    for one in [*archive.root.glob("inventory*"), *archive.root.glob("models/*")]:
        one.unlink()
    found = captured(archive)
    assert found["verdicts"] == []
    assert found["models"] == {MODEL.hex(): None}
    assert all(one["seal"] == VERIFIED for one in found["records"])


def test_making_a_capture_changes_nothing(archive):
    def snapshot():
        files = (path for path in archive.root.rglob("*") if path.is_file())
        # SQLite may leave its empty side files behind.
        return {path: path.read_bytes() for path in files if path.suffix in (".rec", ".sqlite")}

    fence(archive, blocks()[0].name)
    before = snapshot()
    captured(archive)
    assert snapshot() == before


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (lambda root: None, "no receipt 'nobody' is in the journal, which keeps the last 2"),
        (lambda root: (root / JOURNAL).unlink(), "no server has answered"),
        (lambda root: (root / "secret").unlink(), "secret cannot be read"),
        (lambda root: (root / "secret").write_bytes(b"x"), "secret is damaged"),
    ],
)
def test_what_cannot_be_captured_is_a_sentence(archive, lose, words):
    lose(archive.root)
    with pytest.raises(SetupError, match=words):
        captured(archive, "nobody")


def test_a_capture_is_written_whole_for_this_user_alone(archive, tmp_path):
    path = tmp_path / "c.json"
    path.write_text("something else")
    write_capture(path, captured(archive))
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_capture(path) == json.loads(path.read_text())
    assert [one.name for one in tmp_path.iterdir() if "staged" in one.name] == []


def test_progress_is_told_of_each_record(archive):
    told = []
    captured(archive, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 5) for done in range(1, 6)]


# By itself, when something is quarantined.


def test_a_fence_is_captured_with_the_turns_that_touched_its_name(archive):
    number = fence(archive, blocks()[1].name, Reason.AUDITED)
    path = capture_fence(archive.root, number, now=NOW)
    assert path == archive.root / "quarantine" / f"{number:010d}.capture.json"
    assert path.stat().st_mode & 0o777 == 0o600
    found = read_capture(path)
    assert found["of"] == {"fence": number}
    assert [turn["receipt"]["id"] for turn in found["turns"]] == ["second", "first"]
    assert [one["reason"] for one in found["fences"]] == ["audited"]
    # What bears the name comes first, and each record once.
    assert found["records"][0]["name"] == aliased(archive, blocks()[1].name)
    assert len(found["records"]) == 5
    assert found["left_out"] == 0
    assert not [name for name in guesses() if name.hex()[:12] in path.read_text()]


def test_what_a_fence_bars_is_looked_at_within_bounds(archive, monkeypatch):
    monkeypatch.setattr(room, "FENCE_TURNS", 1)
    monkeypatch.setattr(room, "FENCE_RECORDS", 2)
    number = fence(archive, blocks()[0].parent)
    found = read_capture(capture_fence(archive.root, number, now=NOW))
    assert len(found["turns"]) == 1
    assert len(found["records"]) == 2
    assert found["left_out"] == 3


def test_captures_of_fences_stay_within_their_bytes(archive, monkeypatch):
    paths = []
    for name in (b"n", b"o", b"p"):
        paths.append(capture_fence(archive.root, fence(archive, name * 32), now=NOW))
    monkeypatch.setattr(room, "KEPT_BYTES", paths[0].stat().st_size * 2 + 10)
    paths.append(capture_fence(archive.root, fence(archive, b"q" * 32), now=NOW))
    assert [path.exists() for path in paths] == [False, False, True, True]
    monkeypatch.setattr(room, "KEPT_BYTES", 0)
    paths.append(capture_fence(archive.root, fence(archive, b"r" * 32), now=NOW))
    assert [path.exists() for path in paths] == [False] * 4 + [True]


@pytest.mark.parametrize("lost", ["journal.sqlite", "secret", "quarantine"])
def test_a_store_that_does_not_allow_it_never_fails_a_quarantine(archive, lost):
    number = fence(archive, blocks()[1].name)
    path = archive.root / lost
    if lost == "quarantine":
        path.rmdir()
        path.write_text("a file where the folder should be")
    else:
        path.write_bytes(b"?")
    made = capture_fence(archive.root, number, now=NOW)
    assert (made is None) == (lost != "journal.sqlite")
    if made is not None:
        assert read_capture(made)["turns"] == []
    assert capture_fence(archive.root, number + 1, now=NOW) is None


def test_a_purge_takes_the_journals_entries_and_every_capture(archive):
    path = capture_fence(archive.root, fence(archive, blocks()[0].name), now=NOW)
    assert path.exists()
    assert purge_evidence(archive.root, [b"k" * 32]) == 2
    assert list((archive.root / "quarantine").iterdir()) == []
    with pytest.raises(SetupError, match="keeps the last 0"):
        captured(archive)
    assert purge_evidence(archive.root, []) == 0


# Where a model comes from.


def test_where_a_model_comes_from_is_noted_and_found(tmp_path):
    note_model(tmp_path, MODEL, ingredients=INGREDIENTS, loaded_as=LOADED_AS)
    found = noted_model(tmp_path, MODEL)
    assert (found.ingredients, found.loaded_as) == (INGREDIENTS, LOADED_AS)
    (path,) = (tmp_path / "models").iterdir()
    assert path.name == f"{MODEL.hex()}.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "model": "other"}', "\ud800"]
)
def test_a_note_that_is_damaged_is_none(tmp_path, text):
    note_model(tmp_path, MODEL, ingredients=INGREDIENTS, loaded_as=LOADED_AS)
    path = tmp_path / "models" / f"{MODEL.hex()}.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert noted_model(tmp_path, MODEL) is None


def test_a_disk_that_refuses_a_note_is_no_reason_not_to_serve(tmp_path):
    (tmp_path / "models").write_text("in the way")
    note_model(tmp_path, MODEL, ingredients=INGREDIENTS, loaded_as=LOADED_AS)
    assert noted_model(tmp_path, MODEL) is None
