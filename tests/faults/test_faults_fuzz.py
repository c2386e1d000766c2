"""I2, I12: the record reader under bytes that were spoiled and mostly sealed anew.

The short form of ``make fuzz``, without its guidance; and readers that are wrong, each of which the
fuzzer's contract must notice.
"""

import sys
from dataclasses import replace
from random import Random

import pytest

from surefoot import record
from surefoot.errors import CorruptRecord
from surefoot.record import header as headers
from surefoot.record import preamble
from surefoot.testing.forge import VERSIONS, mutated, sealed, seeds
from surefoot.testing.reader_contract import check

INPUTS = 3_000
SEALS = sys.modules[record.unseal.__module__]  # its name is the function's as well
SEEDS = list(seeds())


def mutate(data, most):
    """Flip, cut, double or replace some bytes: what the fuzzer's own mutation does, unguided."""
    random = Random(data)
    at = random.randrange(len(data) + 1)
    odd = random.choice((b"", b"\0", b"\xff", b"[", b"2", data[:at], data[at:]))
    return (data[:at] + odd + data[at + random.randrange(3) :])[:most]


def spoiled(count):
    """Yield chains of mutations, each begun at a seed."""
    data = b""
    for number in range(count):
        data = mutated(data if number % 4 else SEEDS[number // 4 % len(SEEDS)], number, mutate)
        yield data


def test_no_bytes_make_the_reader_break_a_promise():
    opened = 0
    for data in [*SEEDS, *spoiled(INPUTS)]:
        check(data)
        opened += reads(data)
    # Enough of them got past every digest for that to mean something.
    assert opened > INPUTS // 50


def reads(data):
    try:
        record.read_header(data)
    except CorruptRecord:
        return False
    return True


def test_the_seeds_are_whole_records_of_every_version():
    versions = set()
    for data in SEEDS:
        if reads(data):
            versions.add(preamble.read_preamble(memoryview(data)).version)
    assert versions == set(VERSIONS) == set(preamble.VERSIONS)


def test_the_forger_and_the_writer_agree_on_every_byte():
    for data in SEEDS:
        if len(data) > 88:
            end = record.header_bytes(data)
            version, kind = (
                int.from_bytes(data[8:10], "little"),
                int.from_bytes(data[10:12], "little"),
            )
            assert sealed(kind, data[88:end], data[end:], version=version) == data


def forgiving(monkeypatch):
    """A reader that takes another spelling of a header."""
    decoded = headers._decoded

    def sloppy(raw, version, parse, encode):
        return decoded(raw, version, parse, lambda *_: raw)

    monkeypatch.setattr(headers, "_decoded", sloppy)


def nameless(monkeypatch):
    """A reader that hands out whatever lies there, whoever asks."""
    opened = record.unseal

    def unseal(data, *, name, group):
        header = record.read_header(data)
        return opened(data, name=header.block.name, group=header.group)

    monkeypatch.setattr(record, "unseal", unseal)


def fenceless(monkeypatch):
    """A reader that forgets which fence the writer knew."""
    read, unsealed = record.read_header, record.unseal

    def unseal(data, **asked):
        header, part = unsealed(data, **asked)
        return replace(header, fence=0), part

    monkeypatch.setattr(record, "read_header", lambda data: replace(read(data), fence=0))
    monkeypatch.setattr(record, "unseal", unseal)


def uncut(monkeypatch):
    """A reader that takes a block that no grid cuts."""
    monkeypatch.setattr(headers, "_check_cut", lambda _: None)


def trusting(monkeypatch):
    """A reader that takes what lies between components, unread."""
    components = SEALS._components

    def unpadded(payload, slots):
        blank = bytearray(payload)
        end = 0
        for slot in slots:
            blank[end : slot.start] = bytes(slot.start - end)
            end = slot.end
        return components(memoryview(bytes(blank)), slots)

    monkeypatch.setattr(SEALS, "_components", unpadded)


def crashing(monkeypatch):
    """A reader that lets an error of its parser through."""
    monkeypatch.setattr(headers, "_count", lambda value: value + 0)


@pytest.mark.parametrize("mutant", [forgiving, nameless, fenceless, uncut, trusting, crashing])
def test_a_reader_that_breaks_a_promise_is_noticed(monkeypatch, mutant):
    mutant(monkeypatch)
    assert not all(keeps(data) for data in [*SEEDS, *spoiled(INPUTS)])


def keeps(data):
    try:
        check(data)
    except Exception:  # noqa: BLE001 - whatever it is, it was noticed
        return False
    return True
