"""Records as anybody could write them who has a hex editor and ``docs/FORMAT.md``, lies included.

Digests keep a blind mutation out of everything behind them, so ``mutated`` seals most of what it
spoils anew, and names a block anew where its fields were changed. The layout is spelled out here a
second time and imports nothing of the reader's, so that a slip in the reader is no slip here.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from random import Random
from struct import Struct, pack
from struct import error as StructError
from typing import Any

from blake3 import blake3

INPUT_BYTES_MAX = 4096
PREAMBLE_BYTES = 88
COUNTS = Struct("<8sHHIQ")
VERSIONS = (1, 2)
PART, FEATURES = 1, 2

Mutate = Callable[[bytes, int], bytes]  # the fuzzer's own: bytes, and the most to return

# What JSON can hold where something else belongs.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 1.0, 1e400, float("nan"),
    "", "0", "zz", "00", "00" * 31, "00" * 32, "AA" * 32, "raw", "\ud800", "\0", [], [[]], {}, [0],
    {"codec": "raw"}, [None] * 65, [2**62] * 64, [0, 2**62], [1] * 65,
)  # fmt: skip


def sealed(
    kind: int, header: bytes, payload: bytes, *, version: int, counts: bytes | None = None
) -> bytes:
    """Seal a header and a payload as they are, lies included."""
    head = counts or COUNTS.pack(b"SUREFOOT", version, kind, len(header), len(payload))
    start = head + blake3(b"surefoot record header\0" + head + header).digest()
    seal = blake3(b"surefoot record seal\0" + start + header + payload).digest()
    return start + seal + header + payload


def canonical(fields: Any) -> bytes:
    """Spell a header's fields as a writer does."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return text + b" " * (-(PREAMBLE_BYTES + len(text)) % 64)


def named(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a part's fields with the name that its block has by them, if they give one."""
    try:
        spans = b"".join(
            pack("<QQQ", span["start"], span["length"], span["offset"])
            + pack("<cQ", b"b", len(bytes.fromhex(span["media"])))
            + bytes.fromhex(span["media"])
            for span in fields["spans"]
        )
        ids = bytes.fromhex(fields["ids"])
        head = bytes.fromhex(fields["parent"]) + pack("<QQ", fields["start"], len(ids) // 4)
        return fields | {"name": blake3(b"surefoot block\0" + head + ids + spans).hexdigest()}
    except (KeyError, TypeError, ValueError, OverflowError, StructError):
        return fields


def seeds() -> Iterator[bytes]:
    """Yield small whole records of both kinds and every version, and what is nearly one."""
    part = {
        "codec": "raw",
        "components": [
            {"dtype": "bfloat16", "name": "keys", "shape": [1, 2, 3]},
            {"dtype": "uint8", "name": "values", "shape": [3]},
        ],
        "content": "11" * 32, "end": 6, "features": ["22" * 32], "fence": 3, "group": "full",
        "ids": "0100000002000000", "model": "33" * 32, "name": "", "parent": "44" * 32,
        "spans": [{"length": 1, "media": "55" * 32, "offset": 0, "start": 1}], "start": 4,
    }  # fmt: skip
    features = {
        "codec": "raw",
        "components": [{"dtype": "float32", "name": "rows", "shape": [2, 1]}],
        "content": "11" * 32, "fence": 0, "media": "55" * 32, "model": "33" * 32,
        "name": "66" * 32, "tokens": 2,
    }  # fmt: skip
    bare = part | {"components": [], "features": [], "spans": [], "fence": 0}
    padded = bytes(range(12)) + bytes(52) + b"abc"
    for kind, fields, payload in (
        (PART, named(part), padded),
        (PART, named(bare), b""),
        (FEATURES, features, bytes(range(8))),
    ):
        first = {name: value for name, value in fields.items() if name != "fence"}
        yield sealed(kind, canonical(fields), payload, version=2)
        yield sealed(kind, canonical(first), payload, version=1)
        yield sealed(kind, canonical(fields), payload[:-1], version=2)
    yield b""
    yield ("44" * 32 + ".full").encode()
    yield ("44" * 32 + ".media.features").encode()


def mutated(data: bytes, seed: int, mutate: Mutate, *, most: int = INPUT_BYTES_MAX) -> bytes:
    """Return ``data`` spoiled somewhere, and mostly sealed anew so that it is read further."""
    random = Random(seed)
    opened = _opened(data)
    if opened is None or random.random() < 0.2:
        return mutate(data, most)
    version, kind, raw, payload = opened
    room = max(most - PREAMBLE_BYTES - len(payload), 1)
    counts = None
    match random.randrange(8):
        case 0:
            raw = mutate(raw, room)
        case 1:
            payload = mutate(payload, max(most - PREAMBLE_BYTES - len(raw), 1))
        case 2:
            lengths = [len(raw), len(payload)]
            lengths[random.randrange(2)] = random.choice((0, 1, 64, len(raw) + 1, 2**24, 2**32 - 1))
            version, kind = random.choice((version, 0, 1, 2, 3)), random.choice((kind, 0, 1, 2, 3))
            counts = COUNTS.pack(b"SUREFOOT", version, kind, *lengths)
        case _:
            fields = _edited(raw, random)
            if kind == PART and isinstance(fields, dict) and random.random() < 0.8:
                fields = named(fields)
            raw = canonical(fields)
            payload = payload if random.random() < 0.5 else _fitting(fields, payload)
    return sealed(kind, raw, payload, version=version, counts=counts)[:most]


def _opened(data: bytes) -> tuple[int, int, bytes, bytes] | None:
    """Return version, kind, header and payload of what looks like a record, unverified."""
    if len(data) < PREAMBLE_BYTES or data[:8] != b"SUREFOOT":
        return None
    _, version, kind, length, _ = COUNTS.unpack_from(data)
    end = PREAMBLE_BYTES + length
    return version, kind, data[PREAMBLE_BYTES:end], data[end:]


def _edited(raw: bytes, random: Random) -> Any:
    """Return a header's fields with one or two of them dropped, added, moved or made odd."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        fields = {}
    for _ in range(random.choice((1, 1, 2))):
        fields = _edit(fields, random)
    return fields


def _edit(value: Any, random: Random) -> Any:
    inner = random.random() < 0.85
    if isinstance(value, dict) and value and inner:
        name = random.choice(sorted(value))
        rest = {key: one for key, one in value.items() if key != name}
        match random.randrange(8):
            case 0:
                return rest
            case 1:
                return value | {random.choice(("fence", "tokens", "note", "")): random.choice(ODD)}
            case _:
                return rest | {name: _edit(value[name], random)}
    if isinstance(value, list) and value and inner:
        at = random.randrange(len(value))
        match random.randrange(5):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + value[at : at + 1]
            case _:
                return [*value[:at], _edit(value[at], random), *value[at + 1 :]]
    if type(value) is int and inner:
        return value + random.choice((-2, -1, 1, 2, 64, 2**32, 2**62))
    if isinstance(value, str) and value and inner:
        at = random.randrange(len(value))
        return random.choice((value[:at] + value[at + 1 :], value + value[at], value[:-2] + "01"))
    return random.choice(ODD)


def _fitting(fields: Any, payload: bytes) -> bytes:
    """Return a payload of the length that the components ask for, where that can be told."""
    sizes = {"bfloat16": 2, "bool": 1, "float16": 2, "float32": 4, "float64": 8, "int32": 4}
    sizes |= {"int64": 8, "uint8": 1}
    lengths = []
    try:
        for one in fields["components"]:
            length = sizes[one["dtype"]]
            for axis in one["shape"]:
                length *= axis if type(axis) is int and 0 <= axis < INPUT_BYTES_MAX else 1
            if length > INPUT_BYTES_MAX:
                return payload
            lengths.append(length)
    except (KeyError, TypeError, IndexError):
        return payload
    return laid_out(bytes([number + 1]) * length for number, length in enumerate(lengths[:9]))


def laid_out(pieces: Iterable[bytes]) -> bytes:
    """Return a payload of these components, each at the next aligned offset."""
    payload = b""
    for piece in pieces:
        payload += bytes(-len(payload) % 64) + piece
    return payload
