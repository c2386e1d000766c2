"""Sealing and unsealing: state to bytes, and bytes back to the state that was sealed (I2).

A record holds one part, or the features of one media item. The two kinds share everything but their
headers and keys; whoever asks for one is never answered with the other.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

from blake3 import blake3

from surefoot.errors import CorruptRecord
from surefoot.identity import (
    NAME_BYTES,
    Block,
    BlockName,
    Buffer,
    FeatureName,
    ModelName,
    renames,
)
from surefoot.prompt import MediaName
from surefoot.record.header import (
    COMPONENT,
    GROUP,
    FeatureHeader,
    Header,
    decode_feature_header,
    decode_header,
    encode_feature_header,
    encode_header,
)
from surefoot.record.layout import Slot, layout, payload_bytes
from surefoot.record.preamble import (
    COUNTS,
    FEATURES,
    HEADER_BYTES_MAX,
    HEADER_DIGEST_END,
    KINDS,
    MAGIC,
    PART,
    PREAMBLE_BYTES,
    VERSION,
    Preamble,
    bytewise,
    read_preamble,
)
from surefoot.state import Component, Features, Part

_CONTENT_TAG = b"surefoot content\0"
_HEADER_TAG = b"surefoot record header\0"
_SEAL_TAG = b"surefoot record seal\0"

_COUNT = Struct("<Q")
# A part's key has one dot, since a group's name has none: no key names a part and features both.
_FEATURE_KEY = ".media.features"


def content(state: Part | Features) -> bytes:
    """Digest what the components of a part or of features are, whatever codec, lineage and time.

    Costs one pass of BLAKE3 over the components, on the calling thread, without the GIL.
    """
    digest = blake3(_CONTENT_TAG)
    for one in state.components:
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


def feature_key(name: FeatureName) -> str:
    """Return the tier key of one media item's features; no part has it."""
    assert len(name) == NAME_BYTES, name
    return name.hex() + _FEATURE_KEY


def read_key(key: str) -> tuple[BlockName, str] | FeatureName | None:
    """Return the block and group, or the features, that a tier key names; None if neither."""
    name, dot, rest = key.partition(".")
    try:
        digest = bytes.fromhex(name)
    except ValueError:
        return None
    if len(digest) != NAME_BYTES or digest.hex() != name:
        return None
    if dot + rest == _FEATURE_KEY:
        return FeatureName(digest)
    return (BlockName(digest), rest) if GROUP.fullmatch(rest) else None


def seal(
    block: Block,
    part: Part,
    *,
    content: bytes,
    features: Sequence[FeatureName] = (),
    fence: int = 0,
) -> bytes:
    """Return the record of ``part``; costs one pass of BLAKE3 and one copy.

    Args:
        block: the block whose state this is; it must be what it is named.
        part: one group's state for that block.
        content: ``content(part)``, which the caller has already made to compare and account.
        features: the features that the block consumed.
        fence: the number of the last quarantine fence that the writer knew when it planned.
    """
    assert renames(block), block.name
    assert GROUP.fullmatch(part.group), part.group
    slots = _slots(part.components, content)
    header = encode_header(Header(block, part.group, content, tuple(features), fence), slots)
    return _sealed(PART, header, part.components, slots)


def seal_features(
    name: FeatureName,
    features: Features,
    *,
    model: ModelName,
    media: MediaName,
    tokens: int,
    content: bytes,
    fence: int = 0,
) -> bytes:
    """Return the record of one media item's features; costs one pass of BLAKE3 and one copy.

    Args:
        name: ``identity.feature_name`` of the model, the item and whoever sent it.
        features: what the model's vision tower made of the item, alone.
        model: the model whose tower that was.
        media: the item.
        tokens: how many placeholder tokens stand for the item.
        content: ``content(features)``.
        fence: as in ``seal``.
    """
    assert all(len(one) == NAME_BYTES for one in (name, model, media)), (name, model, media)
    assert tokens > 0, tokens
    slots = _slots(features.components, content)
    stated = FeatureHeader(name, model, media, tokens, content, fence)
    header = encode_feature_header(stated, slots)
    return _sealed(FEATURES, header, features.components, slots)


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
    preamble, raw = _open(view, PART)
    header, slots = decode_header(raw, preamble.version)
    if header.block.name != name:
        raise CorruptRecord(f"block {header.block.name.hex()} where {name.hex()} was asked for")
    if header.group != group:
        raise CorruptRecord(f"group {header.group!r:.80} where {group!r} was asked for")
    return header, Part(group, _unsealed(view, preamble, slots))


def unseal_features(data: Buffer, *, name: FeatureName) -> tuple[FeatureHeader, Features]:
    """Return the header and features of a record, or raise; as ``unseal`` (I2).

    Which model and media item they belong to is for the caller to compare.

    Raises:
        CorruptRecord: the bytes are not what was sealed under that name.
    """
    view = bytewise(data)
    preamble, raw = _open(view, FEATURES)
    header, slots = decode_feature_header(raw, preamble.version)
    if header.name != name:
        raise CorruptRecord(f"features {header.name.hex()} where {name.hex()} were asked for")
    return header, Features(_unsealed(view, preamble, slots))


def read_header(prefix: Buffer) -> Header | FeatureHeader:
    """Return the header from a record's first bytes, verified by its own digest.

    Says nothing about the payload: an index rebuilt so still meets ``unseal`` before any use.
    ``header_bytes`` tells how much to read where ``HEADER_PREFIX_BYTES`` is too little.

    Raises:
        CorruptRecord: the bytes are not the start of a record, or too few.
    """
    preamble, raw = _open(bytewise(prefix), None)
    decode = decode_header if preamble.kind == PART else decode_feature_header
    header, slots = decode(raw, preamble.version)
    _check_size(preamble, slots)
    return header


def _slots(components: Sequence[Component], content: bytes) -> tuple[Slot, ...]:
    assert len(content) == NAME_BYTES, content
    assert all(COMPONENT.fullmatch(one.name) for one in components), components
    return layout((one.name, one.dtype, one.shape) for one in components)


def _sealed(
    kind: int, header: bytes, components: Sequence[Component], slots: tuple[Slot, ...]
) -> bytes:
    assert len(header) <= HEADER_BYTES_MAX, len(header)
    counts = COUNTS.pack(MAGIC, VERSION, kind, len(header), payload_bytes(slots))
    unsealed = counts + _header_digest(counts, header)
    pieces = [header, *_payload(components, slots)]
    return b"".join([unsealed, _seal(unsealed, pieces), *pieces])


def _open(view: memoryview, kind: int | None) -> tuple[Preamble, bytes]:
    """Return the preamble and the header's bytes, which digest to what the preamble says."""
    preamble = read_preamble(view)
    if kind is not None and preamble.kind != kind:
        raise CorruptRecord(f"{KINDS[preamble.kind]} where {KINDS[kind]} was asked for")
    if len(view) < preamble.header_end:
        raise CorruptRecord(f"{len(view)} bytes end inside the header, at {preamble.header_end}")
    raw = bytes(view[PREAMBLE_BYTES : preamble.header_end])
    if _header_digest(bytes(view[: COUNTS.size]), raw) != preamble.header_digest:
        raise CorruptRecord("the header does not digest to what the preamble says")
    return preamble, raw


def _unsealed(
    view: memoryview, preamble: Preamble, slots: tuple[Slot, ...]
) -> tuple[Component, ...]:
    _check_size(preamble, slots)
    if len(view) != preamble.record_bytes:
        raise CorruptRecord(f"{len(view)} bytes where the record has {preamble.record_bytes}")
    if _seal(view[:HEADER_DIGEST_END], [view[PREAMBLE_BYTES:]]) != preamble.seal:
        raise CorruptRecord("the bytes do not digest to the record's seal")
    return tuple(_components(view[preamble.header_end :], slots))


def _check_size(preamble: Preamble, slots: tuple[Slot, ...]) -> None:
    if payload_bytes(slots) != preamble.payload_bytes:
        raise CorruptRecord(
            f"components of {payload_bytes(slots)} bytes in a payload of {preamble.payload_bytes}"
        )


def _components(payload: memoryview, slots: tuple[Slot, ...]) -> Iterable[Component]:
    end = 0
    for slot in slots:
        if any(payload[end : slot.start]):
            raise CorruptRecord(f"the bytes before component {slot.name!r} are not zero")
        end = slot.end
        yield Component(slot.name, slot.dtype, slot.shape, payload[slot.start : slot.end])


def _payload(components: Sequence[Component], slots: tuple[Slot, ...]) -> Iterable[Buffer]:
    end = 0
    for component, slot in zip(components, slots, strict=True):
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
