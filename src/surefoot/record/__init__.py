"""The byte form of a part: one writer, one reader, and it verifies itself (I2, I12).

``docs/FORMAT.md`` specifies every byte. A record carries two digests: ``content`` says what the
components are, whatever the codec, lineage or time; the seal says that these bytes are the ones
that were written. Reads check the seal and that the header answers the name asked for; audits,
receipts and agreement compare ``content``. A record is no secret and no signature: its header holds
prompt tokens in clear, and whoever may write the store may write a record.
"""

from surefoot.record.header import Header
from surefoot.record.preamble import HEADER_PREFIX_BYTES, UnknownFormat, header_bytes
from surefoot.record.seal import content, key, read_header, seal, unseal

__all__ = [
    "HEADER_PREFIX_BYTES",
    "Header",
    "UnknownFormat",
    "content",
    "header_bytes",
    "key",
    "read_header",
    "seal",
    "unseal",
]
