"""The fixed first bytes of a record: what it is, how long its pieces are, and both digests."""

from struct import Struct
from typing import NamedTuple

from surefoot.errors import CorruptRecord
from surefoot.identity import NAME_BYTES, Buffer

MAGIC = b"SUREFOOT"
VERSION = 2  # what is written
VERSIONS = (1, VERSION)  # what is read; 1 has no fence in its header
PART = 1
FEATURES = 2
KINDS = {PART: "a part", FEATURES: "a media item's features"}

COUNTS = Struct("<8sHHIQ")  # magic, version, kind, header bytes, payload bytes
HEADER_DIGEST_END = COUNTS.size + NAME_BYTES
PREAMBLE_BYTES = HEADER_DIGEST_END + NAME_BYTES

HEADER_PREFIX_BYTES = 16 * 1024  # enough for a block of 1,800 tokens
HEADER_BYTES_MAX = 16 * 1024 * 1024  # two million tokens in one block; more is not ours


class UnknownFormat(CorruptRecord):
    """A record of a version, kind or codec that this reader does not know (I12)."""


class Preamble(NamedTuple):
    """The preamble's fields, none of them verified beyond their own range."""

    version: int
    kind: int
    header_bytes: int
    payload_bytes: int
    header_digest: bytes
    seal: bytes

    @property
    def header_end(self) -> int:
        """The offset at which the payload starts."""
        return PREAMBLE_BYTES + self.header_bytes

    @property
    def record_bytes(self) -> int:
        """The length of the whole record."""
        return self.header_end + self.payload_bytes


def read_preamble(view: memoryview) -> Preamble:
    """Read the preamble; refuse what this reader cannot know how to read (I12).

    Raises:
        CorruptRecord: this is no record.
        UnknownFormat: it is one, of another version or kind.
    """
    if len(view) < PREAMBLE_BYTES:
        raise CorruptRecord(f"{len(view)} bytes are fewer than a record's first {PREAMBLE_BYTES}")
    magic, version, kind, header, payload = COUNTS.unpack(view[: COUNTS.size])
    if magic != MAGIC:
        raise CorruptRecord(f"the bytes start with {magic!r} where a record starts with {MAGIC!r}")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise UnknownFormat(f"record version {version}; this reader knows versions {known} only")
    if kind not in KINDS:
        known = " and ".join(map(str, KINDS))
        raise UnknownFormat(f"record kind {kind}; this reader knows kinds {known} only")
    if header > HEADER_BYTES_MAX:
        raise CorruptRecord(f"a header of {header} bytes; the limit is {HEADER_BYTES_MAX}")
    digest = bytes(view[COUNTS.size : HEADER_DIGEST_END])
    return Preamble(
        version, kind, header, payload, digest, bytes(view[HEADER_DIGEST_END:PREAMBLE_BYTES])
    )


def header_bytes(prefix: Buffer) -> int:
    """Return how many of a record's first bytes ``read_header`` needs to see.

    Raises:
        CorruptRecord: as ``read_preamble``.
    """
    return read_preamble(bytewise(prefix)).header_end


def bytewise(data: Buffer) -> memoryview:
    """View ``data`` as its raw bytes, whatever its element type and shape."""
    view = memoryview(data)
    # A view with a zero in its shape cannot be cast, and has no bytes to show.
    return view.cast("B") if view.nbytes else memoryview(b"")
