"""Tending a store without a model, alone and beside a running server."""

from contextlib import nullcontext

import pytest

from surefoot.cache import collect, offline, store_entries, store_stats, verify_store
from surefoot.cache.offline import FRESH_S, purge, quarantine_in
from surefoot.cache.quota import ORPHAN_S
from surefoot.errors import SetupError
from surefoot.identity import key_id, salt_of
from surefoot.receipt import Miss
from surefoot.record import content, feature_key, seal_features
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    HYBRID,
    MODEL,
    Bench,
    blocks_of,
    check_restored,
    commit,
    feature_name_of,
    features_of,
    image_of,
    take_turn,
)

pytestmark = pytest.mark.usefixtures("patience")

TOKENS = list(range(41))
BLOCKS = blocks_of(TOKENS)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path / "store", EVERY_LAW)
    with made.open() as cache:
        take_turn(cache, TOKENS)
        for number in range(3):
            made.wall.pass_(1)
            item = image_of(number)
            cache.commit_features(feature_name_of(item), item, features_of(item))
    return made


def path_of(bench, number):
    key = feature_key(feature_name_of(image_of(number)))
    return bench.folder / "records" / key[:2] / f"{key}.rec"


@pytest.fixture(params=["alone", "beside a server"])
def server(request, bench):
    if request.param == "alone":
        yield None
    else:
        with bench.open() as cache:
            yield cache


def ignore(done, total):
    pass


def test_stats_and_entries_count_the_same(bench, server):
    stats, entries = store_stats(bench.folder), list(store_entries(bench.folder))
    features = [entry for entry in entries if entry.kind == "features"]
    parts = [entry for entry in entries if entry.kind == "part"]
    assert len(entries) == len(bench.records())
    assert len(features) == 3
    counted = {
        "parts": len(parts),
        "bytes": sum(entry.nbytes for entry in parts),
        "features": 3,
        "feature_bytes": sum(entry.nbytes for entry in features),
    }
    assert counted.items() <= stats.items()
    assert counted.items() <= stats["models"][MODEL.hex()].items()
    assert stats["open_by"] == (server is not None)
    assert {entry.tiers for entry in entries} == {("ssd",)}


def test_listings_show_nothing_of_a_prompt(bench):
    shown = repr(store_stats(bench.folder)) + repr(list(store_entries(bench.folder)))
    for block in BLOCKS:
        assert block.ids.hex() not in shown
        assert repr(block.ids) not in shown


def verify(bench, progress=ignore):
    return verify_store(bench.folder, progress, ssd_bytes=bench.ssd_bytes, wall_clock=bench.wall)


def parts_of(bench, block):
    return [path for path in bench.records() if block.name.hex() in path.name]


def test_verification_quarantines_what_is_not_what_was_sealed(bench, server):
    features = path_of(bench, 1)
    records, last = bench.records(), parts_of(bench, BLOCKS[9])
    last[0].write_bytes(last[0].read_bytes()[:-1] + b"\xee")
    features.write_bytes(path_of(bench, 0).read_bytes())
    steps = []
    found = verify(bench, lambda done, total: steps.append((done, total)))
    assert (found.records, found.corrupt, found.failed) == (len(records), 2, 0)
    if server:  # before anything else could have set the index right
        assert server.status()["tiers"]["ssd"]["parts"] == len(records) - len(last) - 3
        assert server.status()["features"]["ssd"]["items"] == 2
    assert steps == [(done, len(records)) for done in range(1, len(records) + 1)]
    # A block's parts are one state: all of them go, and nothing else does.
    assert bench.records() == [path for path in records if path not in (*last, features)]
    stats = store_stats(bench.folder)
    assert (stats["fences"], stats["quarantined_records"]) == (2, len(last) + 1)
    assert verify(bench).corrupt == 0
    if server:
        plan, restored = take_turn(server, TOKENS)
        check_restored(server, plan, restored)
        assert restored.miss_reason is Miss.QUARANTINED


def test_verification_takes_what_descends_from_a_bad_record_too(bench, server):
    (bad, *_) = parts_of(bench, BLOCKS[6])
    bad.write_bytes(b"")
    assert verify(bench).corrupt == 1
    left = {block for block in BLOCKS if parts_of(bench, block)}
    assert left == set(BLOCKS[:6])
    if server:
        assert server.plan(BLOCKS, limit=10).boundary == 4


def test_a_name_is_quarantined_by_its_first_digits(bench, server):
    if server:
        take_turn(server, TOKENS)  # into RAM
        image = image_of(1)
        assert server.features({feature_name_of(image): image}, deadline_s=5)
    for name in (BLOCKS[4].name, feature_name_of(image_of(1))):
        found = quarantine_in(
            bench.folder,
            name.hex()[:9].upper(),
            "somebody said so",
            ssd_bytes=bench.ssd_bytes,
            wall_clock=bench.wall,
        )
        assert len(found.fences) == 1
    assert not path_of(bench, 1).exists()
    assert not any(parts_of(bench, block) for block in BLOCKS[4:])
    with bench.open() if server is None else nullcontext(server) as cache:
        plan, restored = take_turn(cache, TOKENS)
        check_restored(cache, plan, restored)
        assert (restored.boundary, restored.miss_reason) == (4, Miss.QUARANTINED)
        assert not cache.features({feature_name_of(image_of(1)): image_of(1)}, deadline_s=5)
        assert take_turn(cache, TOKENS)[1].boundary == 10


@pytest.mark.parametrize(
    ("digits", "says"),
    [("1234567", "is no name"), ("../secret", "is no name"), ("0123456789", "no stored record")],
)
def test_what_is_no_name_or_nothings_name_is_refused(bench, digits, says):
    with pytest.raises(SetupError, match=says):
        quarantine_in(bench.folder, digits, "", ssd_bytes=1 << 30, wall_clock=bench.wall)
    assert store_stats(bench.folder)["fences"] == 0


def test_digits_that_several_names_begin_with_are_refused(bench, monkeypatch):
    monkeypatch.setattr(offline, "NAME_DIGITS_LEAST", 0)
    with pytest.raises(SetupError, match="stored records have"):
        quarantine_in(bench.folder, "", "", ssd_bytes=1 << 30, wall_clock=bench.wall)


TENANTS = [("one", None), ("one", "salt"), ("two", None), ("two", "salt"), (None, None)]


def salt_for(cache, key, salt):
    return salt_of(None if key is None else key_id(cache.secret, key), salt)


def chains(cache):
    return {
        (key, salt): blocks_of(TOKENS, salt=salt_for(cache, key, salt)) for key, salt in TENANTS
    }


@pytest.fixture
def tenants(tmp_path):
    """Return a store that five tenants share, one picture each."""
    made = Bench(tmp_path / "store", EVERY_LAW)
    with made.open() as cache:
        for number, ((key, salt), blocks) in enumerate(chains(cache).items()):
            tenant = None if key is None else key_id(cache.secret, key)
            cache.note_tenant(blocks[0].parent, key=tenant, cache_salt=salt)
            item = image_of(number)
            name = feature_name_of(item, salt=salt_for(cache, key, salt))
            cache.commit_features(name, item, features_of(item))
            for block in blocks:
                commit(cache, block, features=[name] if block == blocks[1] else ())
    return made


def left(bench, cache):
    """Return the tenants of whom anything can be restored, or whose picture is found."""
    held = []
    for number, ((key, salt), blocks) in enumerate(chains(cache).items()):
        name = feature_name_of(image_of(number), salt=salt_for(cache, key, salt))
        if cache.plan(blocks, limit=10).boundary:
            held.append((key, salt))
        found = cache.features({name: image_of(number)}, deadline_s=5)
        assert bool(found) is ((key, salt) in held)
    return held


PURGES = [
    ({"api_key": "one"}, TENANTS[2:]),
    ({"cache_salt": "salt"}, [TENANTS[0], TENANTS[2], TENANTS[4]]),
    ({"api_key": "two", "cache_salt": "salt"}, [*TENANTS[:3], TENANTS[4]]),
    ({"api_key": "nobody"}, TENANTS),
    ({"every": True}, []),
]


@pytest.mark.parametrize(("whose", "stay"), PURGES)
@pytest.mark.parametrize("how", ["alone", "beside a server"])
def test_a_purge_removes_one_tenants_data_and_leaves_the_others(tenants, whose, stay, how):
    words = {"api_key": None, "cache_salt": None, "every": False} | whose
    with tenants.open() if how != "alone" else nullcontext() as server:
        if server:
            assert left(tenants, server) == TENANTS
            for blocks in chains(server).values():  # all of it is in RAM
                server.restore(server.plan(blocks, limit=10), deadline_s=5)
        purge(tenants.folder, **words, wall_clock=tenants.wall)
        if server:
            assert left(tenants, server) == stay
            names = {entry.name for entry in server.entries()}
            gone = [one for key, one in chains(server).items() if key not in stay]
            assert not names & {block.name.hex() for blocks in gone for block in blocks}
    kept = 10 * len(stay) * len(EVERY_LAW) + len(stay)
    assert len(tenants.records()) == kept
    assert not list(tenants.folder.glob("quarantine/*/*.rec"))
    with tenants.open() as cache:
        assert left(tenants, cache) == stay
        for blocks in chains(cache).values():  # and may be stored again
            for block in blocks:
                commit(cache, block)
            assert cache.plan(blocks, limit=10).boundary == 10


def test_what_waits_to_be_written_while_its_tenant_is_purged_is_not_written(tenants):
    with tenants.open() as server:
        blocks = blocks_of(range(100, 141), salt=salt_for(server, "one", None))
        tenants.tier.hold_puts = True
        plan = server.plan(blocks, limit=10)
        with server.pinned(plan):
            for block in blocks:
                commit(server, block, turn=plan)
        assert tenants.tier.held.wait(10)  # the first is half written
        purge(tenants.folder, api_key="one", cache_salt=None, every=False, wall_clock=tenants.wall)
        tenants.tier.release.set()
        assert server.drain(60)
        assert not [path for block in blocks for path in parts_of(tenants, block)]
        assert not list(tenants.folder.glob("quarantine/*/*.rec"))


def test_chains_whose_tenant_is_not_on_record_are_purged_as_well(tenants):
    (tenants.folder / "inventory.sqlite").unlink()
    found = purge(
        tenants.folder, api_key="one", cache_salt=None, every=False, wall_clock=tenants.wall
    )
    assert found.parts == 10 * len(TENANTS) * len(EVERY_LAW)
    assert tenants.records() == []


def test_a_purge_empties_the_quarantine(bench):
    quarantine_in(bench.folder, BLOCKS[4].name.hex(), "", ssd_bytes=1 << 30, wall_clock=bench.wall)
    assert store_stats(bench.folder)["quarantined_records"] > 0
    purge(bench.folder, api_key="nobody", cache_salt=None, every=False, wall_clock=bench.wall)
    assert store_stats(bench.folder)["quarantined_records"] == 0
    assert not list(bench.folder.glob("quarantine/*/*.rec"))


def test_a_name_that_only_a_servers_ram_holds_is_quarantined_by_all_its_digits(tmp_path):
    bench = Bench(tmp_path / "store", EVERY_LAW)
    bench.ssd_bytes = 0
    with bench.open() as cache:
        take_turn(cache, TOKENS)
        assert bench.records() == []
        name = BLOCKS[4].name.hex()
        with pytest.raises(SetupError, match="no stored record"):
            quarantine_in(bench.folder, name[:32], "", ssd_bytes=0, wall_clock=bench.wall)
        found = quarantine_in(bench.folder, name, "", ssd_bytes=0, wall_clock=bench.wall)
        assert found.fences == (1,)
        _, restored = take_turn(cache, TOKENS)
        assert (restored.boundary, restored.miss_reason) == (4, Miss.QUARANTINED)


def test_a_purge_leaves_no_tokens_in_any_file_beside_a_running_server(tenants):
    with tenants.open() as server:
        chain = blocks_of(range(1_000, 1_041), salt=salt_for(server, "one", "mine"))
        tenant = key_id(server.secret, "one")
        server.note_tenant(chain[0].parent, key=tenant, cache_salt="mine")
        for block in chain:
            commit(server, block)
        assert server.drain(60)
        stored = b"".join(path.read_bytes() for path in files(tenants))
        assert all(block.ids in stored for block in chain)
        purge(tenants.folder, api_key="one", cache_salt=None, every=False, wall_clock=tenants.wall)
        for path in files(tenants):
            data = path.read_bytes()
            assert not any(
                block.ids in data or block.ids.hex().encode() in data for block in chain
            ), path


def files(tenants):
    return [path for path in tenants.folder.rglob("*") if path.is_file()]


def test_what_was_stored_under_a_secret_that_is_lost_is_purged_as_well(tenants):
    (tenants.folder / "secret").write_bytes(b"another secret of thirty-two byt")
    purge(tenants.folder, api_key="one", cache_salt=None, every=False, wall_clock=tenants.wall)
    assert (None, None) in TENANTS
    assert len(tenants.records()) == 10 * len(EVERY_LAW) + 1  # of whoever has neither


def test_features_whose_content_is_not_what_they_state_leave_the_tier(bench):
    item = image_of(1)
    name, features = feature_name_of(item), features_of(item)
    assert content(features) != b"c" * 32
    path_of(bench, 1).write_bytes(
        seal_features(
            name, features, model=MODEL, media=item.name, tokens=item.tokens, content=b"c" * 32
        )
    )
    assert verify(bench).corrupt == 1
    assert not path_of(bench, 1).exists()


def test_a_file_that_is_named_like_no_record_goes_when_the_store_is_opened(bench):
    stranger = path_of(bench, 1).with_name(path_of(bench, 1).name.replace(".media.", ".x."))
    stranger.write_bytes(path_of(bench, 1).read_bytes())
    assert verify(bench).corrupt == 0
    assert not stranger.exists()


def test_collection_removes_orphans_only_of_models_open_nowhere(bench, server):
    late = bench.wall() + ORPHAN_S + 1
    records = len(bench.records())
    found = collect(bench.folder, ssd_bytes=1 << 30, now=late)
    assert found.orphans == (0 if server else records)
    assert found.features == (0 if server else 3)
    assert len(bench.records()) == records - found.parts - found.features
    if not server:
        assert store_stats(bench.folder)["feature_bytes"] == 0
    if server:
        _, restored = take_turn(server, TOKENS)
        assert restored.sources == {"ssd": 40}


def test_collection_removes_the_dead(tmp_path):
    bench = Bench(tmp_path, HYBRID)
    with bench.open() as cache:
        for block in BLOCKS[:4]:
            commit(cache, block, groups=["rows"])
        commit(cache, BLOCKS[1], groups=["state"])
    # A turn may still be on its way to the next snapshot.
    assert collect(tmp_path, ssd_bytes=1 << 30, now=bench.wall() + FRESH_S / 2).parts == 0
    found = collect(tmp_path, ssd_bytes=1 << 30, now=bench.wall() + FRESH_S)
    assert (found.orphans, found.parts) == (0, 2)
    with bench.open() as cache:
        assert cache.plan(BLOCKS, limit=10).boundary == 2


def test_collection_keeps_a_quota(bench, server):
    whole = used(bench)
    found = collect(bench.folder, ssd_bytes=whole // 2, now=bench.wall() + 2 * FRESH_S)
    stats = store_stats(bench.folder)
    assert 0 < stats["bytes"] < used(bench) <= whole // 2
    assert (found.features, stats["features"]) == (0, 3)
    assert found.nbytes == whole - used(bench)
    if server:
        plan, restored = take_turn(server, TOKENS)
        check_restored(server, plan, restored)


def test_collection_takes_features_when_no_part_is_left_the_oldest_first(bench):
    kept = path_of(bench, 2)
    size = kept.stat().st_blocks * 512
    found = collect(bench.folder, ssd_bytes=size, now=bench.wall() + 2 * FRESH_S)
    assert found.features == 2
    assert bench.records() == [kept]


def used(bench):
    stats = store_stats(bench.folder)
    return stats["bytes"] + stats["feature_bytes"]


@pytest.mark.parametrize("what", [store_stats, lambda path: list(store_entries(path))])
def test_a_folder_that_is_no_store_is_refused_and_left_alone(tmp_path, what):
    with pytest.raises(SetupError, match="no store"):
        what(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
