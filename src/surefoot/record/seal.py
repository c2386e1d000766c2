"""Sealing and unsealing: a part to bytes, and bytes back to the part that was sealed (I2)."""

from collections.abc import Iterable, Sequence
from struct import Struct

from blake3 import blake3

from surefoot.errors import CorruptRecord
from surefoot.identity import NAME_BYTES, Block, BlockName, Buffer, FeatureName, renames
from surefoot.record.header import COMPONENT, GROUP, Header, decode_header, encode_header
from surefoot.record.layout import Slot, layout, payload_bytes
from surefoot.record.preamble import (
    COUNTS,
    HEADER_BYTES_MAX,
    HEADER_DIGEST_END,
    MAGIC,
    PART,
    PREAMBLE_BYTES,
    VERSION,
    Preamble,
    bytewise,
    read_preamble,
)
from surefoot.state import Component, Part

_CONTENT_TAG = b"surefoot content\0"
_HEADER_TAG = b"surefoot record header\0"
_SEAL_TAG = b"surefoot record seal\0"

_COUNT = Struct("<Q")


def content(part: Part) -> bytes:
    """Digest what a part's components are, independent of codec, lineage and time.

    Costs one pass of BLAKE3 over the components, on the calling thread, without the GIL.
    """
    digest = blake3(_CONTENT_TAG)
    for one in part.components:
        framed = [_framed(one.name), _framed(one.dtype), _COUNT.pack(len(one.shape))]
        digest.update(b"".join([*framed, *map(_COUNT.pack, one.shape)]))
        # Dtype and shape say how many bytes follow.
        digest.update(bytewise(one.data))
    return digest.digest()


def key(name: BlockName, group: str) -> str:
    """Return the tier key of one group's part of one block."""
    assert len(name) == NAME_BYTES, name
    assert GROUP.fullmatch(group), group
    return f"{name.hex()}.{group}"


def seal(
    block: Block, part: Part, *, content: bytes, features: Sequence[FeatureName] = ()
) -> bytes:
    """Return the record of ``part``; costs one pass of BLAKE3 and one copy.

    Args:
        block: the block whose state this is; it must be what it is named.
        part: one group's state for that block.
        content: ``content(part)``, which the caller has already made to compare and account.
        features: the features that the block consumed.
    """
    assert renames(block), block.name
    assert len(content) == NAME_BYTES, content
    assert GROUP.fullmatch(part.group), part.group
    assert all(COMPONENT.fullmatch(one.name) for one in part.components), part.components
    slots = layout((one.name, one.dtype, one.shape) for one in part.components)
    header = encode_header(Header(block, part.group, content, tuple(features)), slots)
    assert len(header) <= HEADER_BYTES_MAX, len(header)
    counts = COUNTS.pack(MAGIC, VERSION, PART, len(header), payload_bytes(slots))
    unsealed = counts + _header_digest(counts, header)
    pieces = [header, *_payload(part, slots)]
    return b"".join([unsealed, _seal(unsealed, pieces), *pieces])


def unseal(data: Buffer, *, name: BlockName, group: str) -> tuple[Header, Part]:
    """Return the header and part of a record, or raise; the seal costs one pass of BLAKE3 (I2).

    Args:
        data: the whole record; the components returned are views into it.
        name: the block asked for.
        group: the group asked for.

    Raises:
        CorruptRecord: the bytes are not what was sealed under that name and group.
    """
    view = bytewise(data)
    preamble, header, slots = _open(view)
    if header.block.name != name:
        raise CorruptRecord(f"block {header.block.name.hex()} where {name.hex()} was asked for")
    if header.group != group:
        raise CorruptRecord(f"group {header.group!r:.80} where {group!r} was asked for")
    if len(view) != preamble.record_bytes:
        raise CorruptRecord(f"{len(view)} bytes where the record has {preamble.record_bytes}")
    if _seal(view[:HEADER_DIGEST_END], [view[PREAMBLE_BYTES:]]) != preamble.seal:
        raise CorruptRecord("the bytes do not digest to the record's seal")
    payload = view[preamble.header_end :]
    return header, Part(group, tuple(_components(payload, slots)))


def read_header(prefix: Buffer) -> Header:
    """Return the header from a record's first bytes, verified by its own digest.

    Says nothing about the payload: an index rebuilt so still meets ``unseal`` before any use.
    ``header_bytes`` tells how much to read where ``HEADER_PREFIX_BYTES`` is too little.

    Raises:
        CorruptRecord: the bytes are not the start of a record, or too few.
    """
    return _open(bytewise(prefix))[1]


def _open(view: memoryview) -> tuple[Preamble, Header, tuple[Slot, ...]]:
    preamble = read_preamble(view)
    if len(view) < preamble.header_end:
        raise CorruptRecord(f"{len(view)} bytes end inside the header, at {preamble.header_end}")
    raw = bytes(view[PREAMBLE_BYTES : preamble.header_end])
    if _header_digest(bytes(view[: COUNTS.size]), raw) != preamble.header_digest:
        raise CorruptRecord("the header does not digest to what the preamble says")
    header, slots = decode_header(raw)
    if payload_bytes(slots) != preamble.payload_bytes:
        raise CorruptRecord(
            f"components of {payload_bytes(slots)} bytes in a payload of {preamble.payload_bytes}"
        )
    return preamble, header, slots


def _components(payload: memoryview, slots: tuple[Slot, ...]) -> Iterable[Component]:
    end = 0
    for slot in slots:
        if any(payload[end : slot.start]):
            raise CorruptRecord(f"the bytes before component {slot.name!r} are not zero")
        end = slot.end
        yield Component(slot.name, slot.dtype, slot.shape, payload[slot.start : slot.end])


def _payload(part: Part, slots: tuple[Slot, ...]) -> Iterable[Buffer]:
    end = 0
    for component, slot in zip(part.components, slots, strict=True):
        yield bytes(slot.start - end)
        yield bytewise(component.data)
        end = slot.end


def _header_digest(counts: bytes, header: bytes) -> bytes:
    return blake3(_HEADER_TAG + counts + header).digest()


def _seal(unsealed: Buffer, pieces: Iterable[Buffer]) -> bytes:
    digest = blake3(_SEAL_TAG)
    digest.update(unsealed)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _framed(text: str) -> bytes:
    encoded = text.encode()
    return _COUNT.pack(len(encoded)) + encoded
