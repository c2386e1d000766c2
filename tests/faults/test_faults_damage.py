"""Every way in which a stored record, the index or the store's folder can be damaged (I2, I8, I10).

Real files, the real tier, a real cache without RAM, no model. Whatever is done, the next turn gets
what computing would have given it, says why it missed, leaves nothing damaged in place, and what it
commits is served to the turn after it.
"""

import json
import re
from random import Random

import pytest
from house_of_damage import OTHERS, SEEN, TOLD, House, open_house

from surefoot.laws import TokenRows
from surefoot.receipt import Miss
from surefoot.record import content, feature_key, key, seal
from surefoot.record.preamble import VERSION
from surefoot.state import ROWS, Component, ComponentSchema, Group, Part
from surefoot.testing.cache_kit import EVERY_LAW, part_of
from surefoot.testing.damage import Told, damages, is_whole
from surefoot.testing.forge import COUNTS, PREAMBLE_BYTES, canonical, named, sealed

BLOCKS = TOLD.blocks  # two blocks and a token


@pytest.fixture
def house(tmp_path):
    with open_house(tmp_path / "store") as made:
        yield made


def record_of(house, kind):
    """Return a conversation and the key of one of its records."""
    if kind == "features":
        return SEEN, feature_key(SEEN.feature)
    return TOLD, key(BLOCKS[1].name, kind)


KINDS = ("rows", "window", "pooled", "state", "features")


# What a file holds instead of its record.


def test_a_small_record_cut_anywhere_is_a_miss(tmp_path):
    house = House(tmp_path / "store", EVERY_LAW[:1])
    told = Told((1, 2, 3, 4, 5))
    house.whole(told)
    path = house.file(key(told.blocks[0].name, "rows"))
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(path.read_bytes()[:length])
        restored = house.turn(told).restored
        assert (restored.boundary, restored.miss_reason) == (0, Miss.CORRUPT)
        assert is_whole(path)
        assert path.exists()
    assert damages(house.cache) == len(data)
    house.whole(told)
    house.cache.close()


def test_a_large_record_cut_anywhere_is_a_miss(tmp_path):
    wide = Group("rows", TokenRows(), (ComponentSchema("state", "uint8", (ROWS, 1 << 18)),))
    house = House(tmp_path / "store", (wide,))
    told = Told((1, 2, 3, 4, 5))
    house.whole(told)
    path = house.file(key(told.blocks[0].name, "rows"))
    data = path.read_bytes()
    assert len(data) > 1 << 20
    random = Random(1)
    for length in [0, 1, len(data) - 1, *(random.randrange(len(data)) for _ in range(17))]:
        house.damaged(told, path, data[:length])
    house.cache.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_flipped_in_any_section_is_a_miss(house, kind):
    told, name = record_of(house, kind)
    path = house.file(name)
    for what, at in sections(path.read_bytes()).items():
        data = path.read_bytes()
        assert at < len(data), what
        house.damaged(told, path, data[:at] + bytes([data[at] ^ 0x21]) + data[at + 1 :])


def sections(data):
    """Return the offset of one byte in each section of a record: field by field."""
    end = PREAMBLE_BYTES + COUNTS.unpack_from(data)[3]
    header = data[PREAMBLE_BYTES:end]
    places = {"magic": 0, "version": 8, "kind": 10, "header bytes": 12, "payload bytes": 16}
    places |= {"header digest": 24, "seal": 56, "seal's end": 87, "header": PREAMBLE_BYTES}
    for match in re.finditer(rb'"([a-z]+)":', header):
        places[match[1].decode()] = PREAMBLE_BYTES + match.end() + 1
    places |= {"brace": PREAMBLE_BYTES + header.rindex(b"}"), "payload": end}
    places |= {"middle": (end + len(data)) // 2, "end": len(data) - 1}
    if header.endswith(b" "):
        places["spaces"] = end - 1
    if b'"deep"' in header:
        places["zeros between components"] = end + 40
    return places


def test_the_sections_are_all_there(house):
    part, features = (
        sections(house.file(record_of(house, kind)[1]).read_bytes())
        for kind in ("rows", "features")
    )
    fields = {"codec", "components", "content", "fence", "model", "name", "dtype", "shape"}
    assert fields | {"ids", "parent", "spans", "start", "end", "group", "features"} <= part.keys()
    assert fields | {"media", "tokens", "zeros between components"} <= features.keys()


BEYOND = "a fence that nobody put up"


def quarantined(cache):
    counters = cache.status()["counters"]
    return counters["quarantined_parts"] + counters["features_missed"]


def forgeries(data):
    """Yield what a record could hold instead, sealed as if it were right."""
    version, kind, length = COUNTS.unpack_from(data)[1:4]
    end = PREAMBLE_BYTES + length
    fields, payload = json.loads(data[PREAMBLE_BYTES:end]), data[end:]
    components = fields["components"]

    def forged(changed, body=payload, as_version=version, as_kind=kind):
        return sealed(as_kind, canonical(changed), body, version=as_version)

    for name in fields:
        yield f"no {name}", forged({key: one for key, one in fields.items() if key != name})
        yield f"{name} is nothing", forged(fields | {name: None})
    for name in components[0]:
        less = {key: one for key, one in components[0].items() if key != name}
        yield f"no {name} in a component", forged(fields | {"components": [less, *components[1:]]})
    last = components[-1]
    start = len(payload) - size(last)
    kept = payload[:start].rstrip(b"\0") if len(components) > 1 else b""
    yield "last component gone", forged(fields | {"components": components[:-1]}, kept)
    yield "last component's bytes gone", forged(fields, payload[:start])
    yield "last component twice", forged(fields | {"components": [*components, last]})
    empty = [one | {"shape": [0, *one["shape"][1:]]} for one in components]
    yield "no rows", forged(fields | {"components": empty}, b"")
    yield "no components", forged(fields | {"components": []}, b"")
    yield "zero bytes", b""
    for what, lengths in (("header", (0, len(payload))), ("payload", (length, 0)), ("all", (0, 0))):
        counts = COUNTS.pack(b"SUREFOOT", version, kind, *lengths)
        lying = sealed(kind, data[PREAMBLE_BYTES:end], payload, version=version, counts=counts)
        yield f"zero length of the {what}", lying
    for dtype in ("bool", "int64", "bfloat16", "float8"):
        first = [components[0] | {"dtype": dtype}, *components[1:]]
        yield f"dtype {dtype}", forged(fields | {"components": first})
    turned = [one | {"shape": one["shape"][::-1]} for one in components]
    flat = [one | {"shape": [size(one) // width(one)]} for one in components]
    yield "axes turned", forged(fields | {"components": turned if turned != components else flat})
    yield (
        "another name of a component",
        forged(fields | {"components": [components[0] | {"name": "other"}, *components[1:]]}),
    )
    for other in (0, VERSION + 1, 2**16 - 1):
        yield f"version {other}", forged(fields, as_version=other)
    for other in (0, 3 - kind, 3):
        yield f"kind {other}", forged(fields, as_kind=other)
    yield "another codec", forged(fields | {"codec": "zstd"})
    yield "another model", forged(fields | {"model": "00" * 32})
    yield BEYOND, forged(fields | {"fence": 2**40})
    if kind == 1:
        yield "another group", forged(fields | {"group": "other"})
        yield "other tokens", forged(named(fields | {"ids": "00" * (len(fields["ids"]) // 2)}))
        yield "another parent", forged(named(fields | {"parent": "00" * 32}))
        yield "other tokens under the name", forged(fields | {"ids": "00" * 16})
    else:
        yield "another item", forged(fields | {"media": "00" * 32})
        yield "other tokens", forged(fields | {"tokens": fields["tokens"] + 1})
        yield "another content", forged(fields | {"content": "00" * 32})


def width(component):
    return {"uint8": 1, "bool": 1, "float32": 4}[component["dtype"]]


def size(component):
    nbytes = width(component)
    for axis in component["shape"]:
        nbytes *= axis
    return nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_forgery_with_every_digest_right_is_a_miss(house, kind):
    told, name = record_of(house, kind)
    path = house.file(name)
    tried = [
        (what, data) for what, data in forgeries(path.read_bytes()) if data != path.read_bytes()
    ]
    for what, data in tried:
        print(what)  # shown if it fails
        if what == BEYOND:
            house.damaged(told, path, data, reason=Miss.QUARANTINED, counted=quarantined)
        else:
            house.damaged(told, path, data)
    assert len(tried) > 40


def test_records_exchanged_between_names_are_misses(house):
    pool = [
        (told, path)
        for told in (TOLD, SEEN, *OTHERS)
        for path in told.files(house.cache, house.folder)
    ]
    for index, (told, path) in enumerate(pool):
        for other_told, other in (pool[index - 1], pool[index - 3], pool[index - 7]):
            first, second = path.read_bytes(), other.read_bytes()
            before = damages(house.cache)
            path.write_bytes(second)
            other.write_bytes(first)
            taken = house.turn(told), house.turn(other_told)
            assert not all(
                one.found and one.restored.boundary == len(of.blocks)
                for one, of in zip(taken, (told, other_told), strict=True)
            )
            assert damages(house.cache) > before
            assert is_whole(path)
            assert is_whole(other)
            for one in (told, other_told):
                house.whole(one)


def test_a_wrong_record_of_a_right_name_and_shape_is_what_no_reader_can_see(house):
    """The limit of this matrix, stated: who can write a seal can lie; an audit finds it."""
    block = BLOCKS[1]
    (group,) = (one for one in EVERY_LAW if one.name == "rows")
    right = part_of(group, block)
    lie = Part("rows", tuple(
        Component(one.name, one.dtype, one.shape, bytes(len(bytes(one.data))))
        for one in right.components
    ))  # fmt: skip
    path = house.file(key(block.name, "rows"))
    path.write_bytes(seal(block, lie, content=content(lie)))
    with pytest.raises(AssertionError):
        house.turn(TOLD)
