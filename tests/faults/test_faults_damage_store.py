"""An index that disagrees with the files, and folders that go: a miss at worst (I2, I3, I8, I10).

Then damage at random: 300 single faults without a model, and 10 under a server of ``spark``. The
long forms are ``python -m surefoot.testing.damage`` and the test that is marked so.
"""

import json
import shutil
import sqlite3
import sys
from contextlib import closing

import pytest
from house_of_damage import OTHERS, SEEN, TOLD, open_house

from surefoot.bench.process import ServerProcess
from surefoot.cache.folder import INVENTORY
from surefoot.cache.offline import verify_store
from surefoot.record import feature_key, header_bytes, key, unseal
from surefoot.record.preamble import VERSION
from surefoot.testing import damage
from surefoot.testing.cache_kit import MODEL
from surefoot.testing.damage import live, main, shelf
from surefoot.testing.forge import PREAMBLE_BYTES, canonical, sealed

FIRST, LAST = TOLD.blocks
ELSE = OTHERS[0].blocks[0]


@pytest.fixture
def house(tmp_path):
    with open_house(tmp_path / "store") as made:
        yield made


def change(house, statement, *values):
    """Change the index behind the cache's back; something must have been there to change."""
    with closing(sqlite3.connect(house.folder / INVENTORY, timeout=30)) as connection:
        with connection:
            changed = connection.execute(statement, values).rowcount
        assert changed > 0, statement


def of(table, field):
    where = "name = ? AND grp = 'rows'" if table == "parts" else "name = ?"
    return f"UPDATE {table} SET {field} WHERE {where}"


LIES = {
    "a file without a row": ("DELETE FROM parts WHERE name = ? AND grp = 'rows'", LAST.name),
    "a block without a row": ("DELETE FROM blocks WHERE name = ?", LAST.name),
    "rows of a block without a file": (
        "UPDATE parts SET name = ? WHERE name = ?", b"n" * 32, ELSE.name,
    ),
    "a block under another name": (
        "UPDATE blocks SET name = ? WHERE name = ?", b"n" * 32, LAST.name,
    ),
    "too few bytes": (of("parts", "bytes = 1"), LAST.name),
    "too many bytes": (of("parts", "bytes = 1 << 60"), LAST.name),
    "another content": (of("parts", "content = zeroblob(32)"), LAST.name),
    "no content": (of("parts", "content = x''"), LAST.name),
    "another group": (of("parts", "grp = 'other'"), LAST.name),
    "another model": (of("blocks", "model = zeroblob(32)"), LAST.name),
    "another parent": (of("blocks", "parent = zeroblob(32)"), LAST.name),
    "itself as parent": (of("blocks", "parent = name"), LAST.name),
    "another place": (of("blocks", "start = 400, end = 404"), LAST.name),
    "other tokens": (of("blocks", "ids = zeroblob(16)"), LAST.name),
    "no tokens": (of("blocks", "ids = x''"), LAST.name),
    "half a token": (of("blocks", "ids = x'0102'"), LAST.name),
    "spans that are none": (of("blocks", "spans = '{}'"), FIRST.name),
    "spans of something else": (of("blocks", "spans = '[[1]]'"), FIRST.name),
    "a later fence": (of("parts", "fence = 1 << 40"), LAST.name),
    "being written by the dead": (of("parts", "state = 'staged', owner = 'dead'"), LAST.name),
    "used at the end of time": (of("parts", "tick = 1e308"), LAST.name),
    "features without a row": ("DELETE FROM features WHERE name = ?", SEEN.feature),
    "features of another model": (of("features", "model = zeroblob(32)"), SEEN.feature),
    "features of other tokens": (of("features", "tokens = 77"), SEEN.feature),
    "features of another content": (of("features", "content = zeroblob(32)"), SEEN.feature),
    "features of too many bytes": (of("features", "bytes = 1 << 60"), SEEN.feature),
    "features of a later fence": (of("features", "fence = 1 << 40"), SEEN.feature),
    "no models": ("DELETE FROM models",),
    "laws of another kind": ("UPDATE models SET laws = '{}' WHERE model = ?", MODEL),
    "laws that are none": ("UPDATE models SET laws = 'x' WHERE model = ?", MODEL),
    "wrong sums": ("UPDATE used SET bytes = -5, parts = 1 << 40",),
    "no sums": ("DELETE FROM used",),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("when", ["while the cache is open", "before it is opened"])
def test_an_index_that_lies_costs_time_at_most(house, lie, when):
    if when == "before it is opened":
        house.reopen(lambda: change(house, *LIES[lie]))
    else:
        change(house, *LIES[lie])
    for _ in range(2):
        for told in (TOLD, SEEN, *OTHERS):
            house.turn(told)  # each is checked against what computing gives
    # Whatever is stuck until then is set right when the store is next opened.
    house.reopen()
    for told in (TOLD, SEEN, *OTHERS):
        house.turn(told)
        house.whole(told)
    check_accounts(house)


@pytest.mark.parametrize("lie", ["a later fence", "features of a later fence"])
def test_one_wild_number_in_the_index_bars_nothing_else(house, lie):
    house.reopen(lambda: change(house, *LIES[lie]))
    for told in (TOLD, SEEN, *OTHERS):
        taken = house.turn(told)
        assert taken.restored.sources == {"ssd": told.blocks[-1].end}
        assert taken.found


def test_one_wild_number_in_a_header_bars_nothing_else(house):
    path = house.file(key(LAST.name, "rows"))
    fields, payload = opened(path)
    path.write_bytes(sealed(1, canonical(fields | {"fence": 2**40}), payload, version=VERSION))
    house.reopen(lambda: remove(house, INVENTORY))
    assert not path.exists()
    for told in (SEEN, *OTHERS):
        assert house.turn(told).restored.sources == {"ssd": told.blocks[-1].end}
    assert house.turn(TOLD).restored.boundary == 1
    house.whole(TOLD)


def opened(path):
    data = path.read_bytes()
    end = header_bytes(data)
    return json.loads(data[PREAMBLE_BYTES:end]), data[end:]


def check_accounts(house):
    """Every row has a whole file of its size, and every file a row (I6)."""
    files = {
        path.stem: path.stat().st_blocks * 512 for path in house.folder.glob("records/*/*.rec")
    }
    inventory = house.cache._ssd.inventory
    rows = {key(*one): row.nbytes for one, row in inventory.parts().items()}
    rows |= {feature_key(one): row.nbytes for one, row in inventory.features.files().items()}
    assert rows == files
    assert inventory.used()[0] + inventory.features.used()[0] == sum(files.values())


def test_a_record_that_was_removed_is_a_miss_and_its_row_goes(house):
    for told in (TOLD, SEEN):
        for path in told.files(house.cache, house.folder):
            path.unlink()
            taken = house.turn(told, computing=False)
            assert taken.restored.boundary < len(told.blocks) or not taken.found
            assert path.stem not in house.rows()
            house.whole(told)
    check_accounts(house)


FOLDERS = [
    "records",
    "records/shard",
    INVENTORY,
    "fences",
    "quarantine",
    "owners",
    "secret",
    "models",
    "journal.sqlite",
    ".",
]


def remove(house, what):
    if what == "records/shard":
        what = f"records/{LAST.name.hex()[:2]}"
    path = house.folder / what
    if path.is_dir():
        shutil.rmtree(path)
    for found in house.folder.glob(f"{path.name}*"):
        found.unlink()


@pytest.mark.parametrize("what", FOLDERS)
def test_a_part_of_the_store_that_goes_while_it_is_open_costs_time_at_most(house, what):
    remove(house, what)
    for _ in range(3):
        for told in (TOLD, SEEN, *OTHERS):
            house.turn(told)
    if what not in (INVENTORY, "."):
        house.whole(TOLD)  # what is committed now is served at once
    house.reopen()
    for told in (TOLD, SEEN, *OTHERS):
        house.whole(told)
    check_accounts(house)


@pytest.mark.parametrize("what", FOLDERS)
def test_a_part_of_the_store_that_goes_while_it_is_closed_costs_time_at_most(house, what):
    house.reopen(lambda: remove(house, what))
    for told in (TOLD, SEEN, *OTHERS):
        house.whole(told)
    check_accounts(house)


@pytest.mark.parametrize("what", ["owners", "records", INVENTORY, "."])
def test_an_eviction_without_its_folders_costs_time_at_most(house, what):
    capacity = 4096 * 12
    house.bench.ssd_bytes = capacity
    house.reopen()
    remove(house, what)
    for _ in range(3):
        for told in (TOLD, SEEN, *OTHERS):
            house.turn(told)
    house.reopen()
    house.whole(TOLD)


def test_a_folder_in_a_records_place_costs_time_at_most(house):
    for path in TOLD.files(house.cache, house.folder):
        path.unlink()
        (path / "inner").mkdir(parents=True)
    for _ in range(3):
        house.turn(TOLD)
    house.reopen()
    for _ in range(3):
        house.turn(TOLD)


# At random.


def test_300_random_faults_are_all_met_and_none_is_served(tmp_path):
    said = []
    tally = shelf(tmp_path, 300, seed=4, say=said.append)
    assert (tally.faults, tally.sound) == (300, True), "\n".join(map(str, said))
    assert len(tally.kinds) == 3
    found = verify_store(tmp_path, lambda *_: None, ssd_bytes=1 << 30, wall_clock=lambda: 0.0)
    assert found.verified == found.records > 0


class AnySeal(bytes):
    """A digest that no other differs from."""

    def __ne__(self, other):
        return False


def test_a_cache_that_does_not_look_at_seals_is_caught_by_it(tmp_path, monkeypatch):
    module = sys.modules[unseal.__module__]  # its name is a function's as well
    monkeypatch.setattr(module, "_seal", lambda *_: AnySeal(32))
    assert shelf(tmp_path, 40, seed=4, say=lambda _: None).served > 0


def test_a_cache_that_does_not_count_is_caught_by_it(tmp_path, monkeypatch):
    monkeypatch.setattr(damage, "COUNTED", ("feature_failures",))
    tally = shelf(tmp_path, 40, seed=4, say=lambda _: None)
    assert tally.uncounted > 0
    assert not tally.sound


def test_10_faults_under_a_server_are_all_met_and_none_is_served(tmp_path):
    said = []
    tally = live(tmp_path, 10, seed=4, say=said.append)
    assert (tally.faults, tally.sound) == (10, True), "\n".join(map(str, said))


def test_a_server_whose_store_is_deleted_serves_on_and_stores_again(tmp_path):
    store = tmp_path / "store"
    body = {"model": "spark", "messages": [{"role": "user", "content": "Tell me of birds. " * 9}]}
    body |= {"max_tokens": 3, "temperature": 0, "logprobs": True}
    flags = ["--store", str(store), "--ram-bytes", "0", "--idle", "0", "--restore-floor-s", "60"]
    with ServerProcess("spark", tmp_path / "server.log", flags) as process:
        cold = process.client.ask(body, mode="bypass").bits
        process.client.ask(body)
        process.client.wait_written()
        for what in ("records", "owners", "fences", "."):
            shutil.rmtree(store / what)
            for _ in range(2):
                answer = process.client.ask(body)
                assert answer.bits == cold
                process.client.wait_written()
            if what != ".":  # without its index a store is whole again at the next start
                answer = process.client.ask(body)
                assert answer.bits == cold
                assert answer.receipt["restored_tokens"] > 0
    with ServerProcess("spark", tmp_path / "server.log", flags) as process:
        for _ in range(3):
            answer = process.client.ask(body)
            assert answer.bits == cold
            process.client.wait_written()
        assert answer.receipt["restored_tokens"] > 0


@pytest.mark.long
def test_300_faults_under_a_server_are_all_met_and_none_is_served(tmp_path):
    said = []
    tally = live(tmp_path, 300, seed=5, say=said.append)
    assert (tally.faults, tally.sound) == (300, True), "\n".join(map(str, said))


def test_it_runs_as_a_command(capsys):
    assert main(["--faults", "3", "--seed", "2"]) == 0
    assert "shelf, seed 2: 3 faults" in capsys.readouterr().out
