"""I12: a reader refuses what it does not know, and says what it met."""

import pytest
from record_forge import PREAMBLE, SECOND, canonical, forged, opened, sealed

from surefoot.errors import CorruptRecord
from surefoot.record import UnknownFormat, header_bytes, read_header, unseal

FIELDS, PAYLOAD = opened(sealed())
HEADER = canonical(FIELDS)
READERS = (header_bytes, read_header, lambda data: unseal(data, name=SECOND.name, group="full"))


def refused(record, kind):
    for read in READERS:
        with pytest.raises(kind) as caught:
            read(record)
    return str(caught.value)


@pytest.mark.parametrize("version", [0, 3, 256, 65535])
def test_an_unknown_version_is_refused_and_says_so(version):
    record = forged(HEADER, PAYLOAD, version=version)
    assert f"version {version};" in refused(record, UnknownFormat)


@pytest.mark.parametrize("kind", [0, 3, 256, 65535])
def test_an_unknown_kind_is_refused_and_says_so(kind):
    assert f"kind {kind};" in refused(forged(HEADER, PAYLOAD, kind=kind), UnknownFormat)


def test_other_magic_is_no_record():
    with pytest.raises(CorruptRecord) as caught:
        read_header(forged(HEADER, PAYLOAD, magic=b"SUREFOOD"))
    assert not isinstance(caught.value, UnknownFormat)


def test_fewer_bytes_than_a_preamble_are_no_record():
    for length in range(PREAMBLE):
        assert str(length) in refused(sealed()[:length], CorruptRecord)


def test_a_monstrous_header_is_refused_before_anyone_reads_it():
    lengths = sealed()[:12] + (16 * 1024 * 1024 + 1).to_bytes(4, "little") + sealed()[16:]
    assert "the limit is 16777216" in refused(lengths, CorruptRecord)
    at_the_limit = sealed()[:12] + (16 * 1024 * 1024).to_bytes(4, "little") + sealed()[16:]
    assert header_bytes(at_the_limit) == PREAMBLE + 16 * 1024 * 1024


def test_the_preamble_tells_where_the_payload_starts():
    record = sealed()
    assert header_bytes(record[:PREAMBLE]) == len(record) - len(PAYLOAD)
