"""I12: the bytes of a record do not drift, and docs/FORMAT.md shows the ones that are written.

``record-v1.rec`` was written by the first release of the format and must be readable for ever. A
format that must change gets a new version number, a ``format`` note in ``changes/``, and a golden
file of its own; this one stays.
"""

import re
from pathlib import Path

import pytest
from blake3 import blake3

from surefoot.errors import CorruptRecord
from surefoot.identity import FeatureName, KeyId, ModelName, name_blocks, salt_of
from surefoot.prompt import MediaName, MediaSpan, Prompt
from surefoot.record import (
    Header,
    UnknownFormat,
    content,
    header_bytes,
    key,
    read_header,
    seal,
    unseal,
)
from surefoot.state import Component, Part

HERE = Path(__file__).parent
GOLDEN = (HERE / "record-v1.rec").read_bytes()
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


def test_the_writer_writes_the_golden_bytes():
    assert seal(BLOCK, PART, content=content(PART), features=FEATURES) == GOLDEN


def test_the_reader_reads_the_golden_bytes():
    expected = Header(BLOCK, "full", content(PART), FEATURES)
    assert unseal(GOLDEN, name=BLOCK.name, group="full") == (expected, PART)
    assert read_header(GOLDEN[: header_bytes(GOLDEN)]) == expected


@pytest.mark.parametrize(
    ("file", "kind", "says"),
    [
        ("record-v1-truncated.rec", CorruptRecord, "where the record has"),
        ("record-v2.rec", UnknownFormat, "version 2"),
        ("record-v1-kind-2.rec", UnknownFormat, "kind 2"),
    ],
)
def test_the_reader_refuses_a_torn_record_a_later_version_and_the_kind_to_come(file, kind, says):
    with pytest.raises(kind, match=says):
        unseal((HERE / file).read_bytes(), name=BLOCK.name, group="full")


def test_the_format_page_shows_the_golden_record():
    # Every row of bytes in the worked example is compared with the file.
    example = FORMAT.split("## Worked example", 1)[1]
    rows = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})$", example, re.MULTILINE)
    shown = {int(offset): bytes.fromhex(digits) for offset, digits in rows}
    end = header_bytes(GOLDEN)
    assert b"".join(shown[offset] for offset in sorted(shown)) == GOLDEN[:88] + GOLDEN[end:]
    for offset, run in shown.items():
        assert GOLDEN[offset : offset + len(run)] == run
    assert GOLDEN[88:end].rstrip(b" ").decode() in example.replace("\n", "")
    for shown_name in (key(BLOCK.name, "full"), content(PART).hex(), BLOCK.parent.hex()):
        assert shown_name in example


def test_the_format_pages_block_encoding_digests_to_the_blocks_name():
    example = FORMAT.split("## Worked example", 1)[1]
    quoted = re.search(r"BLAKE3\(([^)]*)\)", example)
    assert quoted is not None
    domain, *rest = quoted[1].split()
    assert domain == "surefoot_block"
    assert blake3(b"surefoot block\0" + bytes.fromhex("".join(rest))).digest() == BLOCK.name
