"""A record's header: which block and group, or which media item, the payload belongs to, as
canonical JSON.

One header has one byte form: the reader encodes what it decoded and compares, so a second spelling
of the same fields (another order, a float for a count, an extra field) is refused.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from surefoot.errors import CorruptRecord
from surefoot.identity import (
    NAME_BYTES,
    Block,
    BlockName,
    FeatureName,
    ModelName,
    SpanSlice,
    renames,
)
from surefoot.prompt import TOKEN_BYTES, MediaName
from surefoot.record.layout import AXES_MAX, Slot, layout, padding
from surefoot.record.preamble import PREAMBLE_BYTES, VERSION, UnknownFormat

CODEC = "raw"
GROUP = re.compile(r"[a-z0-9-]+")
COMPONENT = re.compile(r"[!-~]+")  # ASCII that prints
_COUNT_END = 2**63
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode

AnyHeader = TypeVar("AnyHeader", "Header", "FeatureHeader")


@dataclass(frozen=True, slots=True)
class Header:
    """What a record says of itself.

    ``block.model`` and ``features`` are as the writer stated them: a block's name commits to them
    only through its root and its media, which no single record can show.
    """

    block: Block
    group: str
    content: bytes
    features: tuple[FeatureName, ...]
    fence: int = 0  # the last quarantine fence that the writer knew when it planned


@dataclass(frozen=True, slots=True)
class FeatureHeader:
    """What a record of features says of itself, all of it as the writer stated it.

    The name commits to the model, to the media item and to a salt that no record holds, so a reader
    compares each field with what it asks for.
    """

    name: FeatureName
    model: ModelName
    media: MediaName
    tokens: int  # placeholder tokens that the item has in a prompt
    content: bytes
    fence: int = 0  # as a part's


def encode_header(header: Header, slots: tuple[Slot, ...], version: int = VERSION) -> bytes:
    """Return the header's only byte form; spaces fill it up so that the payload is aligned."""
    block = header.block
    fields = {
        "content": header.content.hex(),
        "end": block.end,
        "features": [feature.hex() for feature in header.features],
        "group": header.group,
        "ids": block.ids.hex(),
        "model": block.model.hex(),
        "name": block.name.hex(),
        "parent": block.parent.hex(),
        "spans": [span._asdict() | {"media": span.media.hex()} for span in block.spans],
        "start": block.start,
    }
    return _encoded(fields, slots, header.fence, version)


def encode_feature_header(
    header: FeatureHeader, slots: tuple[Slot, ...], version: int = VERSION
) -> bytes:
    """Return the only byte form of a header of features, filled up likewise."""
    fields = {
        "content": header.content.hex(),
        "media": header.media.hex(),
        "model": header.model.hex(),
        "name": header.name.hex(),
        "tokens": header.tokens,
    }
    return _encoded(fields, slots, header.fence, version)


def decode_header(raw: bytes, version: int) -> tuple[Header, tuple[Slot, ...]]:
    """Return the header and where its components lie in the payload.

    Raises:
        CorruptRecord: these are not the bytes of a header whose block is what it is named (I2).
    """
    header, slots = _decoded(raw, version, _header, encode_header)
    if not renames(header.block):
        raise CorruptRecord(f"the header's block is not what {header.block.name.hex()} names")
    return header, slots


def decode_feature_header(raw: bytes, version: int) -> tuple[FeatureHeader, tuple[Slot, ...]]:
    """Return the header of features and where its components lie in the payload.

    Raises:
        CorruptRecord: these are not the bytes of such a header (I2).
    """
    return _decoded(raw, version, _feature_header, encode_feature_header)


def _encoded(fields: dict[str, object], slots: tuple[Slot, ...], fence: int, version: int) -> bytes:
    if version > 1:
        fields["fence"] = fence
    fields["codec"] = CODEC
    fields["components"] = [
        {"dtype": slot.dtype, "name": slot.name, "shape": slot.shape} for slot in slots
    ]
    text = _canonical(fields).encode("ascii")
    return text + b" " * padding(PREAMBLE_BYTES + len(text))


def _decoded(
    raw: bytes,
    version: int,
    parse: Callable[[Any, int], AnyHeader],
    encode: Callable[[AnyHeader, tuple[Slot, ...], int], bytes],
) -> tuple[AnyHeader, tuple[Slot, ...]]:
    try:
        fields = json.loads(raw)
        codec = fields["codec"]
        if codec != CODEC:
            raise UnknownFormat(f"codec {codec!r:.80}; this reader knows {CODEC!r} only")
        fence = _count(fields["fence"]) if version > 1 else 0
        header, slots = parse(fields, fence), layout(_shapes(fields))
        canonical = encode(header, slots, version) == raw
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptRecord(f"a header field is missing or malformed ({error!r:.200})") from error
    if not canonical:
        raise CorruptRecord("the header is not in its canonical form")
    return header, slots


def _header(fields: Any, fence: int) -> Header:
    block = Block(
        BlockName(_digest(fields["name"])),
        BlockName(_digest(fields["parent"])),
        ModelName(_digest(fields["model"])),
        _count(fields["start"]),
        _count(fields["end"]),
        bytes.fromhex(fields["ids"]),
        tuple(_span(span) for span in fields["spans"]),
    )
    _check_cut(block)
    features = tuple(FeatureName(_digest(feature)) for feature in fields["features"])
    group, content = _text(fields["group"], GROUP), _digest(fields["content"])
    return Header(block, group, content, features, fence)


def _feature_header(fields: Any, fence: int) -> FeatureHeader:
    tokens = _count(fields["tokens"])
    if not tokens:
        raise ValueError("features of no token")
    return FeatureHeader(
        FeatureName(_digest(fields["name"])),
        ModelName(_digest(fields["model"])),
        MediaName(_digest(fields["media"])),
        tokens,
        _digest(fields["content"]),
        fence,
    )


def _span(fields: Any) -> SpanSlice:
    start, length, offset = (_count(fields[key]) for key in ("start", "length", "offset"))
    return SpanSlice(start, length, offset, MediaName(_digest(fields["media"])))


def _check_cut(block: Block) -> None:
    # What no grid cuts from a prompt, an index could not hold and a plan could not compare.
    if not 0 < block.end - block.start == len(block.ids) / TOKEN_BYTES:
        raise ValueError(f"{len(block.ids)} bytes of token ids from {block.start} to {block.end}")
    at = 0
    for span in block.spans:
        if span.start < at or not span.length:
            raise ValueError(f"a span of {span.length} tokens at {span.start}, after {at}")
        at = span.start + span.length
    if at > block.end - block.start:
        raise ValueError(f"a span that ends {at} tokens into the block")


def _shapes(fields: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    shapes = []
    for component in fields["components"]:
        shape = tuple(_count(axis) for axis in component["shape"])
        if len(shape) > AXES_MAX:
            raise ValueError(f"{len(shape)} axes")
        shapes.append((_text(component["name"], COMPONENT), component["dtype"], shape))
    return shapes


def _text(value: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not of the form {pattern.pattern}")
    return value


def _digest(value: str) -> bytes:
    digest = bytes.fromhex(value)
    if len(digest) != NAME_BYTES:
        raise ValueError(f"a digest of {len(digest)} bytes")
    return digest


def _count(value: object) -> int:
    # JSON's true is an int to Python, and so would pass a plain comparison.
    if type(value) is not int or not 0 <= value < _COUNT_END:
        raise ValueError(f"{value!r:.80} is no count")
    return value
