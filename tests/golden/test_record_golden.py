"""I12: the bytes of a record do not drift, and docs/FORMAT.md shows the ones that are written.

``record-v1.rec`` and ``record-v1-features.rec`` were written by the first version of the format and
must be readable for ever; ``record-v2*.rec`` are what is written now. A format that must change
gets a new version number, a ``format`` note in ``changes/``, and golden files of its own; these
stay.
"""

import re
from pathlib import Path

import pytest
from blake3 import blake3

from surefoot.errors import CorruptRecord
from surefoot.identity import FeatureName, KeyId, ModelName, feature_name, name_blocks, salt_of
from surefoot.prompt import MediaName, MediaSpan, Prompt
from surefoot.record import (
    FeatureHeader,
    Header,
    UnknownFormat,
    content,
    feature_key,
    header_bytes,
    key,
    read_header,
    seal,
    seal_features,
    unseal,
    unseal_features,
)
from surefoot.state import Component, Features, Part

HERE = Path(__file__).parent
GOLDEN = (HERE / "record-v2.rec").read_bytes()
GOLDEN_FEATURES = (HERE / "record-v2-features.rec").read_bytes()
FIRST = (HERE / "record-v1.rec").read_bytes()
FIRST_FEATURES = (HERE / "record-v1-features.rec").read_bytes()
FORMAT = (HERE.parent.parent / "docs" / "FORMAT.md").read_text()

MODEL = ModelName(bytes(range(32)))
MEDIA = MediaName(bytes(range(32, 64)))
SALT = salt_of(KeyId(bytes(range(64, 96))), "tenant")
PROMPT = Prompt.of((0, 1, 255, 256, 65536, 2**32 - 1, 7, 8), (MediaSpan(2, 4, MEDIA),))
_, BLOCK = name_blocks(PROMPT, (4, 7), MODEL, SALT)
FEATURES = (FeatureName(bytes(range(96, 128))),)
PART = Part(
    "full",
    (
        Component("keys", "bfloat16", (1, 3, 2), bytes(range(12))),
        Component("none", "float32", (0, 4), b""),
        Component("values", "uint8", (3,), b"\xfd\xfe\xff"),
    ),
)
FENCE = 7
NAME = feature_name(MODEL, SALT, MEDIA)
SEEN = Features(
    (
        Component("rows", "bfloat16", (4, 3), bytes(range(24))),
        Component("deep", "uint8", (2, 4, 1), bytes(range(200, 208))),
    )
)


def test_the_writer_writes_the_golden_bytes():
    part = seal(BLOCK, PART, content=content(PART), features=FEATURES, fence=FENCE)
    assert part == GOLDEN
    fields = {"model": MODEL, "media": MEDIA, "tokens": 4, "content": content(SEEN)}
    assert seal_features(NAME, SEEN, **fields, fence=FENCE) == GOLDEN_FEATURES


@pytest.mark.parametrize(
    ("golden", "features", "fence"),
    [(GOLDEN, GOLDEN_FEATURES, 7), (FIRST, FIRST_FEATURES, 0)],
    ids=["version 2", "version 1"],
)
def test_the_reader_reads_the_golden_bytes_of_every_version(golden, features, fence):
    expected = Header(BLOCK, "full", content(PART), FEATURES, fence)
    assert unseal(golden, name=BLOCK.name, group="full") == (expected, PART)
    assert read_header(golden[: header_bytes(golden)]) == expected
    expected = FeatureHeader(NAME, MODEL, MEDIA, 4, content(SEEN), fence)
    assert unseal_features(features, name=NAME) == (expected, SEEN)
    assert read_header(features[: header_bytes(features)]) == expected


@pytest.mark.parametrize(
    ("file", "kind", "says"),
    [
        ("record-v1-truncated.rec", CorruptRecord, "where the record has"),
        ("record-v3.rec", UnknownFormat, "version 3"),
        ("record-v1-kind-3.rec", UnknownFormat, "kind 3"),
    ],
)
def test_the_reader_refuses_a_torn_record_a_later_version_and_a_later_kind(file, kind, says):
    with pytest.raises(kind, match=says):
        unseal((HERE / file).read_bytes(), name=BLOCK.name, group="full")


@pytest.mark.parametrize(
    ("title", "golden", "names"),
    [
        ("a part", GOLDEN, (key(BLOCK.name, "full"), content(PART).hex(), BLOCK.parent.hex())),
        ("features", GOLDEN_FEATURES, (feature_key(NAME), content(SEEN).hex())),
    ],
)
def test_the_format_page_shows_the_golden_records(title, golden, names):
    # Every row of bytes in a worked example is compared with the file.
    example = FORMAT.split(f"## Worked example: {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})$", example, re.MULTILINE)
    shown = {int(offset): bytes.fromhex(digits) for offset, digits in rows}
    end = header_bytes(golden)
    assert b"".join(shown[offset] for offset in sorted(shown)) == golden[:88] + golden[end:]
    for offset, run in shown.items():
        assert golden[offset : offset + len(run)] == run
    assert golden[88:end].rstrip(b" ").decode() in example.replace("\n", "")
    for shown_name in names:
        assert shown_name in example


def test_the_format_pages_block_encoding_digests_to_the_blocks_name():
    example = FORMAT.split("## Worked example: a part", 1)[1]
    quoted = re.search(r"BLAKE3\(([^)]*)\)", example)
    assert quoted is not None
    domain, *rest = quoted[1].split()
    assert domain == "surefoot_block"
    assert blake3(b"surefoot block\0" + bytes.fromhex("".join(rest))).digest() == BLOCK.name
