"""Names do not drift: one vector per kind of name (I1), and the documented encoding spelled slowly.

A name that changes orphans every stored record. When a change is meant, say so in ``changes/`` as a
``format`` note and write the new vectors into ``identity.json`` by hand.
"""

import json
import struct
from pathlib import Path

import pytest
from blake3 import blake3

from surefoot import identity
from surefoot.identity import KeyId, MediaName, ModelName
from surefoot.prompt import MediaSpan, Prompt

VECTORS = json.loads(Path(__file__).with_name("identity.json").read_text())

MODEL = ModelName(bytes(range(32)))
MEDIA = MediaName(bytes(range(32, 64)))
KEY = KeyId(bytes(range(64, 96)))
DATA = bytes(range(24))
PROMPT = Prompt.of((0, 1, 255, 256, 65536, 2**32 - 1, 7, 8), (MediaSpan(2, 4, MEDIA),))


def frame(field):
    """Frame one field as the docstring of ``identity`` says, one byte at a time."""
    if field is None:
        kind, body = b"n", b""
    elif isinstance(field, bytes):
        kind, body = b"b", field
    elif isinstance(field, str):
        kind, body = b"s", field.encode()
    elif isinstance(field, int):
        kind, body = b"i", little(field)
    else:
        kind, body = b"t", b"".join(map(little, field))
    return kind + little(len(body)) + body


def little(number):
    return bytes(number >> shift & 255 for shift in range(0, 64, 8))


def slow(domain, *fields):
    return blake3(b"surefoot " + domain + b"\0" + b"".join(map(frame, fields))).digest()


def slow_block(parent, start, tokens, spans):
    """Spell a block: start, count, tokens, then each span's three numbers and its framed name."""
    parts = [parent, little(start), little(len(tokens))]
    parts += [little(token)[:4] for token in tokens]
    for begin, length, offset, media in spans:
        parts += [little(begin), little(length), little(offset), frame(media)]
    return blake3(b"surefoot block\0" + b"".join(parts)).digest()


# A picture of 2 x 2 patches under a processor's settings, and a prompt that holds it twice.
SETTINGS = '["Qwen2VLImageProcessorPil",{"merge_size":2,"patch_size":16}]'
PATCHES = struct.pack("<24f", *(at / 8 - 1 for at in range(24)))
PICTURE = identity.media_name(
    identity.settings_digest("processor", SETTINGS), "float32", (4, 6), (1, 2, 2), PATCHES
)
SEEN = Prompt.of(range(12), (MediaSpan(1, 1, PICTURE), MediaSpan(3, 7, PICTURE)))

SALT = identity.salt_of(KEY, "tenant")
FIRST, SECOND = identity.name_blocks(PROMPT, (4, 7), MODEL, SALT)
TWICE, INSIDE, AFTER = identity.name_blocks(SEEN, (4, 8, 12), MODEL, SALT)

NAMES = {
    "root": (identity.root_name(MODEL, SALT), slow(b"root", MODEL, SALT)),
    "block": (
        FIRST.name,
        slow_block(FIRST.parent, 0, (0, 1, 255, 256), [(2, 2, 0, MEDIA)]),
    ),
    "second block": (
        SECOND.name,
        slow_block(FIRST.name, 4, (65536, 2**32 - 1, 7), [(0, 2, 2, MEDIA)]),
    ),
    "model": (
        identity.model_name(
            weights=DATA, config="{}", numerics={"b": "2", "a": "1"}, fingerprint=DATA[:4]
        ),
        slow(b"model", DATA, "{}", "a", "1", "b", "2", DATA[:4]),
    ),
    "salt": (SALT, slow(b"salt", KEY, "tenant")),
    "salt of nobody": (identity.salt_of(None, None), slow(b"salt", None, None)),
    "key": (identity.key_id(DATA, "sk-1"), slow(b"key", DATA, "sk-1")),
    "media": (
        identity.media_name(DATA[:8], "float32", (2, 3), (1, 2, 1), DATA),
        slow(b"media", DATA[:8], "float32", (2, 3), (1, 2, 1), DATA),
    ),
    "picture": (
        PICTURE,
        slow(
            b"media",
            slow(b"settings", "processor", SETTINGS),
            "float32",
            (4, 6),
            (1, 2, 2),
            PATCHES,
        ),
    ),
    "block of a picture twice": (
        TWICE.name,
        slow_block(TWICE.parent, 0, range(4), [(1, 1, 0, PICTURE), (3, 1, 0, PICTURE)]),
    ),
    "block inside a picture": (
        INSIDE.name,
        slow_block(TWICE.name, 4, range(4, 8), [(0, 4, 1, PICTURE)]),
    ),
    "block of a picture's end": (
        AFTER.name,
        slow_block(INSIDE.name, 8, range(8, 12), [(0, 2, 5, PICTURE)]),
    ),
    "pixels": (
        identity.pixels_name(DATA[:8], 4, 2, DATA),
        slow(b"pixels", DATA[:8], 4, 2, DATA),
    ),
    "features": (
        identity.feature_name(MODEL, SALT, MEDIA),
        slow(b"features", MODEL, SALT, MEDIA),
    ),
    "tensors": (
        identity.tensors_digest(
            [("w", "float32", (2, 3), DATA), ("b", "uint8", (), memoryview(DATA)[:1])]
        ),
        slow(b"tensors", "w", "float32", (2, 3), DATA, "b", "uint8", (), DATA[:1]),
    ),
    "state": (
        identity.state_digest([("rows", 0, DATA), ("snapshot", 4, DATA[:8])]),
        slow(b"state", "rows", 0, DATA, "snapshot", 4, DATA[:8]),
    ),
    "settings": (
        identity.settings_digest("processor", '{"size":224}'),
        slow(b"settings", "processor", '{"size":224}'),
    ),
}
EVIDENCE = {
    "alias": (identity.alias(DATA, FIRST.name), slow(b"alias", DATA, FIRST.name)),
    "store": (identity.store_id(DATA), slow(b"store", DATA)),
}
NAMES |= EVIDENCE
CHAIN = identity.token_digests(DATA, PROMPT.ids)


def slow_token_digest(count):
    """Spell the digest of one position: the framed secret, and all tokens up to there."""
    tokens = b"".join(little(token)[:4] for token in PROMPT.tokens(0, count))
    return blake3(b"surefoot token digests\0" + frame(DATA) + tokens).digest()[:8]


def test_token_digests_are_the_documented_ones():
    assert slow_token_digest(1) + slow_token_digest(2) == CHAIN[:16]
    assert b"".join(slow_token_digest(count) for count in range(1, 9)) == CHAIN


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_is_the_documented_digest(kind):
    name, documented = NAMES[kind]
    assert name == documented
    assert len(name) == identity.NAME_BYTES


def test_names_do_not_drift():  # I1
    names = {kind: name.hex() for kind, (name, _) in NAMES.items()}
    assert names | {"token digests": CHAIN.hex()} == VECTORS
