"""Names: the only room that turns tokens, media, tenants and a model into digests.

A block name commits to everything that decides the state at the end of that block: the model, the
salt, every token so far and every media item that begins, ends or continues so far (I1). Different
salts share no name (I9). Every tier, receipt and connector uses these bytes as given.

Every name is BLAKE3-256 under a domain tag, over fields that are framed by type and length, so two
different inputs never encode to the same bytes:

    frame  = type (1 byte) + length (8 bytes, little-endian) + bytes
    name   = BLAKE3("surefoot " + domain + NUL + frames)

A block is the one name made once per 256 tokens on the way to a first token, so its encoding is a
fixed layout instead of frames (``_canonical``): equally injective, and built without a loop over
tokens.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from struct import Struct
from typing import NamedTuple, NewType, TypeAlias, assert_never

from blake3 import blake3

from surefoot.prompt import TOKEN_BYTES, MediaName, MediaSpan, Prompt

BlockName = NewType("BlockName", bytes)
ModelName = NewType("ModelName", bytes)
FeatureName = NewType("FeatureName", bytes)
PixelsName = NewType("PixelsName", bytes)
KeyId = NewType("KeyId", bytes)
Salt = NewType("Salt", bytes)

NAME_BYTES = 32
TOKEN_DIGEST_BYTES = 8  # two of a prompt's digests are equal by chance once in 2**64

Field: TypeAlias = bytes | str | int | tuple[int, ...] | None
Buffer: TypeAlias = bytes | bytearray | memoryview

_FRAME = Struct("<cQ")
_BLOCK = Struct("<QQ")  # start, tokens
_SPAN = Struct("<QQQ")  # start relative to the block, tokens in the block, offset in the item
_BLOCK_TAG = b"surefoot block\0"
_START, _END = attrgetter("start"), attrgetter("end")


class SpanSlice(NamedTuple):
    """The part of a media span that lies in one block; counts in tokens."""

    start: int  # relative to the block
    length: int  # inside the block
    offset: int  # tokens of the item before this block
    media: MediaName


class Block(NamedTuple):
    """One whole block of a prompt, named; ``parent`` is the block before it, or the root."""

    name: BlockName
    parent: BlockName
    model: ModelName
    start: int
    end: int
    ids: bytes
    spans: tuple[SpanSlice, ...]


def name_blocks(
    prompt: Prompt, ends: Sequence[int], model: ModelName, salt: Salt
) -> tuple[Block, ...]:
    """Name the blocks that ``ends`` cuts from ``prompt``, first to last.

    Args:
        prompt: tokens and media, as the model will see them.
        ends: block ends in tokens, ascending, as ``prompt.grid`` returns them.
        model: the name of the model and its numerics.
        salt: the tenant; blocks under different salts never match (I9).
    """
    parent = root_name(model, salt)
    blocks = []
    start = 0
    for end in ends:
        ids = prompt.ids[start * TOKEN_BYTES : end * TOKEN_BYTES]
        spans = _slices(prompt.media, start, end) if prompt.media else ()
        name = BlockName(blake3(_BLOCK_TAG + parent + _canonical(start, ids, spans)).digest())
        blocks.append(Block(name, parent, model, start, end, ids, spans))
        parent, start = name, end
    return tuple(blocks)


def renames(block: Block) -> bool:
    """Return whether a block's parent, place, tokens and spans digest to its name.

    False means that one of them was altered. The model is named by the root of the chain alone.
    """
    if block.end - block.start != len(block.ids) // TOKEN_BYTES:
        return False
    encoded = _canonical(block.start, block.ids, block.spans)
    return bool(block.name == blake3(_BLOCK_TAG + block.parent + encoded).digest())


def root_name(model: ModelName, salt: Salt) -> BlockName:
    """Name the empty prefix: the parent of every first block under one model and salt."""
    assert len(model) == NAME_BYTES, model
    return BlockName(_name("root", model, salt))


def model_name(
    *, weights: bytes, config: str, numerics: Mapping[str, str], fingerprint: bytes
) -> ModelName:
    """Name a model as this process computes it.

    Args:
        weights: ``tensors_digest`` of every parameter and buffer as loaded.
        config: the configuration as canonical JSON.
        numerics: what else decides bits: kernel packages, precision, threads, grid, our version.
        fingerprint: digest of state and logits computed at start-up for a fixed prompt.
    """
    pairs = [field for key in sorted(numerics) for field in (key, numerics[key])]
    return ModelName(_name("model", weights, config, *pairs, fingerprint))


def tensors_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], Buffer]]) -> bytes:
    """Digest ``(name, dtype, shape, raw bytes)`` of tensors, in the order given.

    Runs at the speed of BLAKE3 (gigabytes per second); the order must be fixed by the caller.
    """
    digest = _domain("tensors")
    for name, dtype, shape, data in tensors:
        _update(digest, (name, dtype, shape), data)
    return digest.digest()


def state_digest(contents: Iterable[tuple[str, int, bytes]]) -> bytes:
    """Digest the state at one boundary: ``(group, block start, content)`` of each part."""
    fields: list[Field] = []
    for group, start, content in contents:
        fields += [group, start, content]
    return _name("state", *fields)


def salt_of(key: KeyId | None, cache_salt: str | None) -> Salt:
    """Frame the tenant's API key and the request's ``cache_salt`` into one salt (I9)."""
    return Salt(_name("salt", key, cache_salt))


def key_id(secret: bytes, api_key: str) -> KeyId:
    """Name an API key so that the store never holds it; ``secret`` stays in the store's folder."""
    return KeyId(_name("key", secret, api_key))


def salt_tag(secret: bytes, cache_salt: str) -> bytes:
    """Tag a ``cache_salt`` so that its data can be found and purged; the store never holds it."""
    return _name("salt tag", secret, cache_salt)


def media_name(
    processor: bytes, dtype: str, shape: Sequence[int], grid: Sequence[int], data: Buffer
) -> MediaName:
    """Name the tensor that a vision tower will consume.

    Args:
        processor: digest of the processor's settings.
        dtype: the tensor's dtype, as in ``state.DTYPE_BYTES``.
        shape: the tensor's shape.
        grid: the item's patch grid (temporal, height, width), or what the family uses for it.
        data: the tensor's raw bytes, C order, little-endian.
    """
    digest = _domain("media")
    _update(digest, (processor, dtype, tuple(shape), tuple(grid)), data)
    return MediaName(digest.digest())


def pixels_name(processor: bytes, width: int, height: int, rgb: Buffer) -> PixelsName:
    """Name final RGB pixels, for a memo that saves preprocessing; never a media item's name."""
    digest = _domain("pixels")
    _update(digest, (processor, width, height), rgb)
    return PixelsName(digest.digest())


def feature_name(model: ModelName, salt: Salt, media: MediaName) -> FeatureName:
    """Name what a model's vision tower makes of one media item, for one tenant."""
    return FeatureName(_name("features", model, salt, media))


def token_digests(secret: bytes, ids: bytes, start: int = 0) -> bytes:
    """Digest every position of a prompt from token ``start`` on, for evidence that is shared.

    A position's digest is of all tokens up to and with it, keyed with the store's secret: two
    prompts agree to a token and differ from there on, and whoever lacks the secret learns nothing
    else. Of each token alone, equal tokens would show, and how often, as in a substitution cipher.

    Args:
        secret: the store's.
        ids: all tokens of the prompt, ``TOKEN_BYTES`` each.
        start: tokens whose digests are known already; they are read, which costs little.

    Returns:
        ``TOKEN_DIGEST_BYTES`` a token; about 0.7 us each on the calling thread, holding the GIL.
    """
    digest = _domain("token digests")
    digest.update(_frames((secret,)) + ids[: start * TOKEN_BYTES])
    digests = []
    for at in range(start * TOKEN_BYTES, len(ids), TOKEN_BYTES):
        digest.update(ids[at : at + TOKEN_BYTES])
        digests.append(digest.digest(length=TOKEN_DIGEST_BYTES))
    return b"".join(digests)


def alias(secret: bytes, digest: bytes) -> bytes:
    """Name a digest anew, so that it can be shared: equal ones stay equal, and say nothing else.

    A block's name can be made by anybody who guesses its prompt, so it would confirm the guess.
    """
    return _name("alias", secret, digest)


def store_id(secret: bytes) -> bytes:
    """Name a store: digests and aliases of two stores cannot be compared."""
    return _name("store", secret)


def settings_digest(domain: str, canonical: str) -> bytes:
    """Digest canonical text (a processor's settings, a store layout) under its own domain."""
    return _name("settings", domain, canonical)


def _slices(media: Sequence[MediaSpan], start: int, end: int) -> tuple[SpanSlice, ...]:
    # Spans are sorted and disjoint, so those that overlap a block are a run.
    first = bisect_right(media, start, key=_END)
    last = bisect_left(media, end, key=_START)
    return tuple(
        SpanSlice(
            max(span.start - start, 0),
            min(span.end, end) - max(span.start, start),
            max(start - span.start, 0),
            span.media,
        )
        for span in media[first:last]
    )


def _canonical(start: int, ids: bytes, spans: Sequence[SpanSlice]) -> bytes:
    # The token count decides where the spans begin; each span then says where it ends.
    head = _BLOCK.pack(start, len(ids) // TOKEN_BYTES)
    tail = [
        _SPAN.pack(span.start, span.length, span.offset) + _frames((span.media,)) for span in spans
    ]
    return head + ids + b"".join(tail)


def _name(domain: str, *fields: Field) -> bytes:
    digest = _domain(domain)
    digest.update(_frames(fields))
    return digest.digest()


def _domain(domain: str) -> blake3:
    return blake3(b"surefoot " + domain.encode("ascii") + b"\0")


def _update(digest: blake3, fields: Iterable[Field], data: Buffer) -> None:
    # Large data goes in as it is, as the body of a frame: no copy.
    digest.update(_frames(fields) + _FRAME.pack(b"b", memoryview(data).nbytes))
    digest.update(data)


def _frames(fields: Iterable[Field]) -> bytes:
    framed = []
    for field in fields:
        match field:
            case None:
                kind, data = b"n", b""
            case bytes():
                kind, data = b"b", field
            case str():
                kind, data = b"s", field.encode("utf-8", "surrogatepass")
            case int():
                kind, data = b"i", field.to_bytes(8, "little")
            case tuple():
                kind, data = b"t", b"".join(item.to_bytes(8, "little") for item in field)
            case _:
                assert_never(field)
        framed.append(_FRAME.pack(kind, len(data)) + data)
    return b"".join(framed)
