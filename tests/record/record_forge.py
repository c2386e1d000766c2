"""Sample records, and a forger that seals whatever it is given: docs/FORMAT.md, written twice."""

import json
from struct import pack

from blake3 import blake3

from surefoot.identity import FeatureName, ModelName, Salt, feature_name, name_blocks
from surefoot.prompt import MediaName, MediaSpan, Prompt
from surefoot.record import content, seal, seal_features
from surefoot.state import Component, Features, Part

PREAMBLE = 88
MODEL = ModelName(b"m" * 32)
FEATURES = (FeatureName(b"f" * 32), FeatureName(b"g" * 32))
PROMPT = Prompt.of(range(8), (MediaSpan(2, 3, MediaName(b"c" * 32)),))
FIRST, SECOND = name_blocks(PROMPT, (4, 8), MODEL, Salt(b"s" * 32))
PART = Part(
    "full",
    (
        Component("keys", "bfloat16", (1, 4, 3), bytes(range(24))),
        Component("values", "bfloat16", (1, 4, 2), bytes(range(100, 116))),
    ),
)

MEDIA = MediaName(b"c" * 32)
NAME, OTHER_NAME = (feature_name(MODEL, Salt(salt * 32), MEDIA) for salt in (b"s", b"t"))
SEEN = Features(
    (
        Component("rows", "bfloat16", (3, 4), bytes(range(24))),
        Component("deep", "uint8", (2, 3, 1), bytes(range(100, 106))),
    )
)


def sealed(block=SECOND, part=PART, features=FEATURES):
    return seal(block, part, content=content(part), features=features)


def sealed_features(name=NAME, features=SEEN, **changes):
    fields = {"model": MODEL, "media": MEDIA, "tokens": 3, "content": content(features)} | changes
    return seal_features(name, features, **fields)


def opened(record):
    """Return a record's header fields and payload, trusting every byte."""
    length = int.from_bytes(record[12:16], "little")
    return json.loads(record[PREAMBLE : PREAMBLE + length]), record[PREAMBLE + length :]


def canonical(fields):
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return text + b" " * (-(PREAMBLE + len(text)) % 64)


def forged(header, payload, *, magic=b"SUREFOOT", version=2, kind=1, payload_bytes=None):
    """Seal a header and a payload as they are, lies included."""
    length = len(payload) if payload_bytes is None else payload_bytes
    counts = magic + pack("<HHIQ", version, kind, len(header), length)
    start = counts + blake3(b"surefoot record header\0" + counts + header).digest()
    seal_digest = blake3(b"surefoot record seal\0" + start + header + payload).digest()
    return start + seal_digest + header + payload


def lying(**changes):
    """Return the sample record with header fields changed and everything sealed anew."""
    fields, payload = opened(sealed())
    return forged(canonical(fields | changes), payload)


def lying_features(**changes):
    """Return the sample record of features, likewise."""
    fields, payload = opened(sealed_features())
    return forged(canonical(fields | changes), payload, kind=2)
