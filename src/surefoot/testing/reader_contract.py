"""What a reader of records promises of any bytes at all, as one function: ``check``.

Nothing but ``CorruptRecord`` is raised (I2), nothing is handed out under another name, and whatever
is read is what the bytes say: sealed anew, it is the same bytes (I12). ``testing/fuzz.py`` looks
for bytes of which that is not so.
"""

from contextlib import suppress
from typing import Any

from surefoot import record
from surefoot.errors import CorruptRecord
from surefoot.record import header as headers
from surefoot.testing import forge


def check(data: bytes) -> None:
    """Read ``data`` as a record, in every way, and check what comes back.

    Raises:
        AssertionError: the reader accepted what it must not, or read something else than is there.
    """
    _check_key(data[:120].decode("latin-1"))
    _check_texts(data[forge.PREAMBLE_BYTES :])
    try:
        header = record.read_header(data)
    except CorruptRecord:
        header = None
    if header is None:
        for read in (_open_part, _open_features):
            with suppress(CorruptRecord):
                read(data, bytes(32), "full")
                raise AssertionError("a record was opened whose header is refused")
        return
    assert record.read_header(data[: record.header_bytes(data)]) == header
    _check_opened(data, header)


def _check_opened(data: bytes, header: Any) -> None:
    part = isinstance(header, record.Header)
    name, group = (header.block.name, header.group) if part else (header.name, "full")
    mine, other = (_open_part, _open_features) if part else (_open_features, _open_part)
    stranger = bytes([name[0] ^ 1]) + name[1:]
    strangers = [(other, name, group), (mine, stranger, group)]
    if part:
        strangers.append((mine, name, "another-group"))
        _check_block(header)
    for read, asked, of in strangers:
        with suppress(CorruptRecord):
            found, _ = read(data, asked, of)
            raise AssertionError(f"{found} was handed out for another name")
    try:
        again, state = mine(data, name, group)
    except CorruptRecord:
        return
    assert again == header, (again, header)
    version, kind = forge.COUNTS.unpack_from(data)[1:3]
    raw = data[forge.PREAMBLE_BYTES : record.header_bytes(data)]
    payload = forge.laid_out(bytes(one.data) for one in state.components)
    assert forge.sealed(kind, raw, payload, version=version) == data, (
        "sealed anew it is another record"
    )
    if version == max(forge.VERSIONS):
        assert _written(header, state) == data, "the writer would have written other bytes"


def _check_block(header: Any) -> None:
    # What a prompt's grid could have cut, and nothing else: an index and a plan build on it.
    block = header.block
    assert block.end > block.start, "a block without a token"
    assert len(block.ids) == 4 * (block.end - block.start), "token ids that are no whole number"
    at = 0
    for span in block.spans:
        assert len(span.media) == 32, "a media item's name that is none"
        assert span.length > 0, "a span of nothing"
        assert span.start >= at, "spans that overlap"
        at = span.start + span.length
    assert at <= block.end - block.start, "a span that ends outside its block"


def _check_key(text: str) -> None:
    match record.read_key(text):
        case None:
            pass
        case (name, group):
            assert record.key(name, group) == text
        case name:
            assert record.feature_key(name) == text


def _check_texts(raw: bytes) -> None:
    # Whatever the digest says: the parser meets it as a header of either kind and version.
    for version in forge.VERSIONS:
        with suppress(CorruptRecord):
            part, slots = headers.decode_header(raw, version)
            assert headers.encode_header(part, slots, version) == raw
        with suppress(CorruptRecord):
            features, slots = headers.decode_feature_header(raw, version)
            assert headers.encode_feature_header(features, slots, version) == raw


def _open_part(data: bytes, name: Any, group: str) -> tuple[Any, Any]:
    return record.unseal(data, name=name, group=group)


def _open_features(data: bytes, name: Any, _: str) -> tuple[Any, Any]:
    return record.unseal_features(data, name=name)


def _written(header: Any, state: Any) -> bytes:
    fields = {"content": header.content, "fence": header.fence}
    if isinstance(header, record.Header):
        return record.seal(header.block, state, features=header.features, **fields)
    fields |= {"model": header.model, "media": header.media, "tokens": header.tokens}
    return record.seal_features(header.name, state, **fields)
