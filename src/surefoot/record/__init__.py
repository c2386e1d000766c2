"""The byte form of stored state: one writer, one reader, and it verifies itself (I2, I12).

A record holds a part, or one media item's features; ``docs/FORMAT.md`` specifies every byte. It
carries two digests: ``content`` says what the components are, whatever the codec, lineage or time;
the seal says that these bytes are the ones that were written. Reads check the seal and that the
header answers the name asked for; audits, receipts and agreement compare ``content``. A record is
no secret and no signature: a part's header holds prompt tokens in clear, and whoever may write the
store may write a record.
"""

from surefoot.record.header import FeatureHeader, Header
from surefoot.record.preamble import HEADER_PREFIX_BYTES, UnknownFormat, header_bytes
from surefoot.record.seal import (
    content,
    feature_key,
    key,
    read_header,
    read_key,
    seal,
    seal_features,
    unseal,
    unseal_features,
)

__all__ = [
    "HEADER_PREFIX_BYTES",
    "FeatureHeader",
    "Header",
    "UnknownFormat",
    "content",
    "feature_key",
    "header_bytes",
    "key",
    "read_header",
    "read_key",
    "seal",
    "seal_features",
    "unseal",
    "unseal_features",
]
