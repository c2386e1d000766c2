"""The tables measured in this process have the shape that is printed; no figure is asserted."""

from surefoot.bench import rooms, storage
from surefoot.bench.tables import Bench


def bench(tmp_path, said):
    return Bench(tmp_path, tmp_path / "models", said.append)


def test_names_and_plan_are_measured_over_the_real_rooms(tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "LONG_TOKENS", 8 * rooms.BLOCK)
    monkeypatch.setattr(rooms, "STORED_PARTS", 20)
    said = []
    for measure in (rooms.names, rooms.plan):
        table = measure(bench(tmp_path, said))
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert len(table.targets) == 1


def test_a_rebuild_is_measured_over_a_store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "REBUILT_RECORDS", 20)
    said = []
    table = storage.rebuild(bench(tmp_path, said))
    assert len(said) == 3
    assert len(table.rows[0]) == len(table.columns)
    assert len(table.targets) == 1


def test_a_blocks_state_bytes_are_what_a_record_holds_beside_its_header(tmp_path):
    expected = 30 * 2 * 3 * 256 * 64 * 2
    record = tmp_path / "one.rec"
    record.write_bytes(bytes(expected + 4096))
    assert storage._part_bytes([record]) == expected
