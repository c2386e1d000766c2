"""A capture comes from somebody else: what does not fit is refused in a sentence, never believed.

``golden/capture-v1.json`` is a capture of the first released version, which later ones must read.
"""

import copy
import json
from pathlib import Path

import pytest

from surefoot.cache.captured import EACH, SHAPE, read_capture
from surefoot.cli.explain import compare, contradictions, explain
from surefoot.errors import SetupError

GOLDEN = Path(__file__).parents[1] / "golden" / "capture-v1.json"
PAGE = Path(__file__).parents[2] / "docs" / "EVIDENCE.md"


def golden():
    return json.loads(GOLDEN.read_text())


@pytest.fixture
def reads(tmp_path):
    def read(found):
        path = tmp_path / "c.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        return read_capture(path)

    return read


def places(shape, found, way=()):
    """Yield the way to every field of a capture that the shape knows."""
    if isinstance(shape, tuple):
        if found is not None:
            yield from places(shape[0], found, way)
        return
    if way:
        yield way
    if isinstance(shape, list) and found:
        yield from places(shape[0], found[0], (*way, 0))
    if isinstance(shape, dict):
        for key, one in shape.items():
            for own in found if key == EACH else (key,):
                yield from places(one, found[own], (*way, own))


WAYS = sorted(places(SHAPE, golden()), key=str)


def changed(way, change):
    found = golden()
    at = found
    for step in way[:-1]:
        at = at[step]
    change(at, way[-1])
    return found


def test_the_first_released_version_is_read(reads):
    found = reads(golden())
    assert found == golden()
    assert contradictions(found) == []
    assert len([section for section in explain(found) if section.lines]) >= 3
    assert compare(found, found)


def test_the_golden_capture_has_every_field():
    assert len(WAYS) > 80
    assert golden()["turns"][0]["failed"]
    assert golden()["fences"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: ".".join(map(str, way)))
def test_no_field_may_be_of_another_type(reads, way):
    for other in ([1], {"a": 1}, "text", 7, 1.5, True):
        was = golden()
        for step in way:
            was = was[step]
        kinds = [type(was), *([int] if type(was) is float else [])]
        if type(other) in kinds:
            continue
        with pytest.raises(SetupError, match=r"damaged|version"):
            reads(changed(way, lambda at, key, other=other: at.__setitem__(key, other)))


@pytest.mark.parametrize(
    "way",
    [way for way in WAYS if isinstance(way[-1], str)],
    ids=lambda way: ".".join(map(str, way)),
)
def test_no_field_may_be_missing(reads, way):
    if "sources" in way[:-1] or "counters" in way[:-1] or "models" in way[:-1]:
        return  # keys of their own, of which any may be there
    with pytest.raises(SetupError, match=r"lacks|is no capture"):
        reads(changed(way, lambda at, key: at.__delitem__(key)))


ODD = {
    int: (-1, 0, 10**30),
    float: (float("nan"), float("inf"), -1e300),
    str: ("", "\x1b[2J", "x" * 5000),
    list: ([],),
    dict: ({},),
    bool: (True, False),
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: ".".join(map(str, way)))
def test_odd_values_are_refused_or_explained_and_never_a_crash(reads, way):
    was = golden()
    for step in way:
        was = was[step]
    for odd in ODD[type(was)]:
        try:
            found = reads(changed(way, lambda at, key, odd=odd: at.__setitem__(key, odd)))
        except SetupError:
            continue
        assert explain(found)
        if found["turns"]:
            assert compare(found, golden())
            assert compare(golden(), found)


@pytest.mark.parametrize("version", [0, 2, 1.5, "1", None])
def test_another_version_is_refused_in_a_sentence(reads, version):
    with pytest.raises(SetupError, match=r"of version .*; this release reads version 1"):
        reads(golden() | {"surefoot_capture": version})


@pytest.mark.parametrize("text", ["", "{", "[1, 2", "nonsense", "\0" * 100, "[" * 100_000])
def test_what_is_no_json_is_refused_in_a_sentence(reads, text):
    with pytest.raises(SetupError, match="is no capture, or is damaged"):
        reads(text)


@pytest.mark.parametrize("text", ["[]", "{}", "3", "null", '{"surefoot": 1}'])
def test_what_is_no_capture_is_refused_in_a_sentence(reads, text):
    with pytest.raises(SetupError, match="is no capture"):
        reads(text)


def test_every_truncation_is_refused(reads):
    whole = GOLDEN.read_text().strip()
    for length in range(0, len(whole), 997):
        with pytest.raises(SetupError):
            reads(whole[:length])


def test_parts_are_of_blocks_that_are_there(reads):
    for block in (-1, 99):
        found = copy.deepcopy(golden())
        found["turns"][0]["restored"][0]["block"] = block
        with pytest.raises(SetupError, match="a block that the turn does not have"):
            reads(found)


def test_token_digests_are_whole(reads):
    found = golden()
    found["turns"][0]["tokens"]["digests"] += "00"
    with pytest.raises(SetupError, match="8 bytes each"):
        reads(found)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(SetupError, match="cannot be read: No such file"):
        read_capture(tmp_path / "none.json")


def test_every_field_is_on_the_page():
    text = PAGE.read_text()
    named = {step for way in places(SHAPE, golden()) for step in way if isinstance(step, str)}
    free = {key for found in golden()["turns"] for key in found["counters"]} | {"ssd", "ram"}
    free |= set(golden()["models"]) | set(next(iter(golden()["models"].values()))["ingredients"])
    missing = sorted(one for one in named - free if f"`{one}`" not in text)
    assert not missing, f"say in docs/EVIDENCE.md what these are: {missing}"
