"""The store as it is opened: after a crash, with files lost or damaged, over quota, by several."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from surefoot.cache import folder as folder_module
from surefoot.cache.folder import Folder
from surefoot.errors import SetupError
from surefoot.receipt import Miss
from surefoot.record import Header
from surefoot.record import key as record_key
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    HYBRID,
    MODEL,
    ROWS_ONLY,
    Bench,
    blocks_of,
    check_restored,
    commit,
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
    return made


def restore(cache):
    plan = cache.plan(BLOCKS, limit=10)
    restored = cache.restore(plan, deadline_s=5)
    check_restored(cache, plan, restored)
    return restored


def files(bench):
    return sorted(
        path.relative_to(bench.folder) for path in bench.folder.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("how", ["deleted", "empty", "garbage", "half", "flipped"])
def test_any_one_file_may_be_lost_or_damaged(bench, tmp_path, how):
    with bench.open() as cache:  # open, so that the lock and SQLite's side files exist as well
        assert restore(cache).boundary == 10
        everything = files(bench)
    assert any(path.name == "inventory.sqlite" for path in everything)
    records = [path for path in everything if path.parts[0] == "records"]
    for relative in [*(path for path in everything if path not in records), *records[:3]]:
        path = bench.folder / relative
        if not path.exists():
            continue
        data = path.read_bytes()
        path.unlink()
        if how != "deleted":
            middle = len(data) // 2
            path.write_bytes(
                {
                    "empty": b"",
                    "garbage": b"garbage" * 999,
                    "half": data[:middle],
                    "flipped": data[:middle] + bytes(~one & 255 for one in data[middle:]),
                }[how]
            )
        with bench.open() as cache:
            restored = restore(cache)
            assert len(cache.secret) == 32
            assert restored.boundary == 10 or relative.parts[0] == "records"
            take_turn(cache, TOKENS)
            assert restore(cache).boundary == 10
            assert cache.drain(60)
        with bench.open() as cache:
            assert restore(cache).sources == {"ssd": 40}


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_the_index_may_go_while_the_store_is_open(bench, suffix):
    with bench.open() as cache:
        (bench.folder / f"inventory.sqlite{suffix}").unlink()
        take_turn(cache, list(range(100, 141)))
        assert restore(cache).boundary == 10
    with bench.open() as cache:
        assert restore(cache).boundary == 10
        plan = cache.plan(blocks_of(range(100, 141)), limit=10)
        assert plan.boundary == 10


def test_a_lost_index_is_rebuilt_from_the_records_headers(bench):
    with bench.open() as cache:
        before = sorted(entry[:6] for entry in cache.entries())
        bytes_before = cache.status()["tiers"]["ssd"]["bytes"]
    (bench.folder / "inventory.sqlite").unlink()
    with bench.open() as cache:
        assert sorted(entry[:6] for entry in cache.entries()) == before
        assert cache.status()["tiers"]["ssd"]["bytes"] == bytes_before
        plan = cache.plan(blocks_of([*range(22), 99, *range(23, 41)]), limit=10)
        assert plan.diverged_at_token == 22  # tokens come from the headers too
        assert restore(cache).boundary == 10


def test_a_row_whose_file_is_gone_goes_when_the_store_is_opened(bench):
    gone = bench.records()[0]
    gone.unlink()
    with bench.open() as cache:
        assert len(list(cache.entries())) == len(bench.records())
        used = sum(path.stat().st_blocks * 512 for path in bench.records())
        assert cache.status()["tiers"]["ssd"]["bytes"] == used


def test_bytes_that_the_index_has_wrong_are_set_right_when_the_store_is_opened(bench):
    with bench.open() as cache:
        used = cache.status()["tiers"]["ssd"]["bytes"]
        cache._ssd.inventory.resize(
            {(row.name, row.group): 1 for row in cache._ssd.inventory.rows()}
        )
        assert cache.status()["tiers"]["ssd"]["bytes"] < used
    with bench.open() as cache:
        assert cache.status()["tiers"]["ssd"]["bytes"] == used


def test_files_that_are_no_records_of_their_name_go_when_found(bench):
    first, second = bench.records()[:2]
    second.write_bytes(first.read_bytes())
    (bench.folder / "inventory.sqlite").unlink()
    with bench.open() as cache:
        assert not second.exists()
        assert cache.status()["tiers"]["ssd"]["parts"] == len(bench.records())


def test_what_a_dead_writer_left_is_cleaned_and_a_living_ones_is_not(bench):
    with bench.open() as living:
        bench.tier.hold_puts = True
        others = blocks_of(range(50, 62))
        commit(living, others[0], groups=["rows"])
        assert bench.tier.held.wait(10)
        held = bench.tier
        staged_at = len(living._ssd.inventory.parts())
        # A dead one: its lock is free, its row staged, its file half written.
        header = Header(others[1], "rows", b"c" * 32, ())
        living._ssd.inventory.stage(header, owner="dead", nbytes=9, tick=0.0)
        (bench.folder / "owners" / "dead.lock").write_text(MODEL.hex())
        shard = bench.folder / "records" / record_key(others[1].name, "rows")[:2]
        shard.mkdir(exist_ok=True)
        leftover = shard / f"{record_key(others[1].name, 'rows')}.0.staged.dead"
        leftover.write_bytes(b"half")
        # Another had its file in place, and died before it could say so.
        header = Header(others[2], "rows", b"c" * 32, ())
        living._ssd.inventory.stage(header, owner="dead", nbytes=9, tick=0.0)
        name = f"{record_key(others[2].name, 'rows')}.rec"
        whole = bench.folder / "records" / name[:2] / name
        whole.parent.mkdir(exist_ok=True)
        whole.write_bytes(b"whole")
        with bench.open() as second:
            assert not leftover.exists()
            assert not whole.exists()
            assert not (bench.folder / "owners" / "dead.lock").exists()
            assert len(second._ssd.inventory.parts()) == staged_at
            assert second.plan(others, limit=3).boundary == 0
            held.release.set()
            assert living.drain(60)
            assert {entry.group for entry in second.entries() if entry.name == others[0].name.hex()}


def test_a_killed_process_leaves_a_store_that_opens(tmp_path):
    script = f"""
        import os
        from pathlib import Path
        from surefoot.testing.cache_kit import Bench, EVERY_LAW, take_turn
        bench = Bench(Path({str(tmp_path)!r}), EVERY_LAW)
        cache = bench.start()
        take_turn(cache, list(range(41)))
        cache.drain(60)
        bench.tier.hold_puts = True
        take_turn(cache, list(range(100, 141)))
        bench.tier.held.wait(10)
        os.kill(os.getpid(), {int(signal.SIGKILL)})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    bench = Bench(tmp_path, EVERY_LAW)
    bench._writers = 50
    with bench.open() as cache:
        assert restore(cache).sources == {"ssd": 40}
        assert all(row.state == "stored" for row in cache._ssd.inventory.parts().values())
        assert not list(tmp_path.rglob("*.staged.*"))
        assert len(list((tmp_path / "owners").glob("*.lock"))) == 1


def test_the_quota_is_kept_on_write_and_at_open(bench):
    whole = len(bench.records()) * 4096
    bench.ssd_bytes = whole // 2
    with bench.open() as cache:
        assert cache.drain(60)
        assert cache.status()["tiers"]["ssd"]["bytes"] <= bench.ssd_bytes
        assert 0 < len(bench.records()) * 4096 <= bench.ssd_bytes
        for seed in range(1, 6):
            bench.wall.pass_(100)
            take_turn(cache, [seed * 1000 + one for one in TOKENS])
            assert cache.drain(60)
            assert sum(path.stat().st_blocks * 512 for path in bench.records()) <= bench.ssd_bytes
        assert cache.status()["tiers"]["ssd"]["evictions"] > 0


def test_a_store_without_room_takes_nothing(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    bench.ssd_bytes = 1_000
    with bench.open() as cache:
        take_turn(cache, TOKENS)
        assert cache.drain(60)
        assert bench.records() == []
        assert cache.status()["counters"]["refused_writes"] == 10
        assert restore(cache).sources == {"ram": 40}


def test_the_floor_of_free_disk_space_is_kept(bench, monkeypatch):
    free = {"bytes": 1_000_000}

    class Usage:
        def __init__(self, path):
            self.free = free["bytes"]

    monkeypatch.setattr(folder_module.shutil, "disk_usage", Usage)
    bench.free_floor_bytes = 900_000
    count = len(bench.records())
    with bench.open() as cache:
        assert cache.drain(60)
        assert len(bench.records()) == count
        free["bytes"] = 890_000
        take_turn(cache, list(range(100, 141)))
        assert cache.drain(60)
        assert len(bench.records()) < count
        assert cache.status()["counters"]["refused_writes"] > 0


def test_the_least_recently_used_conversation_leaves_first(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    bench.ssd_bytes = 4096 * 32
    with bench.open() as cache:
        for seed in (1, 2, 3):
            bench.wall.pass_(1)
            take_turn(cache, [seed * 1000 + one for one in TOKENS])
        assert cache.drain(60)
        bench.wall.pass_(1)
        take_turn(cache, [1000 + one for one in TOKENS])  # used again, and not yet written down
        bench.wall.pass_(1)
        take_turn(cache, [4000 + one for one in TOKENS])
        assert cache.drain(60)
    with bench.open() as cache:
        reach = [
            cache.plan(blocks_of([seed * 1000 + one for one in TOKENS]), limit=10).boundary
            for seed in (1, 2, 3, 4)
        ]
    assert reach[0] == reach[2] == reach[3] == 10
    assert reach[1] < 10


def test_last_use_survives_a_restart(tmp_path):
    bench = Bench(tmp_path, ROWS_ONLY)
    with bench.open() as cache:
        take_turn(cache, TOKENS)
    bench.wall.pass_(500)
    with bench.open() as cache:
        restore(cache)
    with bench.open() as cache:
        assert {entry.last_used for entry in cache.entries()} == {bench.wall.now}


def test_a_queued_snapshot_keeps_the_rows_below_it_from_looking_dead(tmp_path):
    bench = Bench(tmp_path, HYBRID)
    with bench.open() as cache:
        for block in BLOCKS[:3]:
            commit(cache, block, groups=["rows"])
        assert cache.drain(60)
        bench.tier.hold_puts = True
        commit(cache, blocks_of([9, 9, 9, 9])[0], groups=["rows"])
        assert bench.tier.held.wait(10)
        commit(cache, BLOCKS[2], groups=["state"])  # behind the one that is being written
        cache._ssd.evict(0)
        assert sum(block.name.hex() in str(bench.records()) for block in BLOCKS[:3]) == 3
        bench.tier.release.set()
        assert cache.drain(60)
        assert cache.plan(BLOCKS, limit=3).boundary == 3


def test_a_running_turns_rows_are_not_dead_before_its_snapshot_comes(tmp_path):
    bench = Bench(tmp_path, HYBRID)
    bench.ram_bytes = 5_000
    with bench.open() as cache:
        plan = cache.plan(BLOCKS, limit=10)
        with cache.pinned(plan):
            for block in BLOCKS[:3]:
                commit(cache, block, groups=["rows"], turn=plan)
            assert cache.drain(60)
            cache._ram.evict(0)
            cache._ssd.evict(0)
            commit(cache, BLOCKS[2], groups=["state"], turn=plan)
        assert cache.drain(60)
        assert cache.plan(BLOCKS, limit=3).boundary == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SetupError, match="cannot be used"):
        Bench(tmp_path / "store").start()


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "store"
    path.write_text("a file")
    with pytest.raises(SetupError, match=str(path)):
        Bench(path).start()


def test_owners_tell_the_living_from_the_dead(tmp_path):
    folder = Folder(tmp_path)
    folder.create()
    folder.own("living", MODEL.hex())
    (tmp_path / "owners" / "dead.lock").write_text("x")
    assert Folder(tmp_path).owners() == ({"living": MODEL.hex()}, ["dead"])
    folder.close("living")
    assert Folder(tmp_path).owners() == ({}, ["dead"])


def test_another_models_parts_are_neither_served_nor_touched(bench):
    other = MODEL[::-1].replace(b"m", b"o")
    with bench.open(model=other) as cache:
        blocks = blocks_of(TOKENS, model=other)
        assert cache.plan(blocks, limit=10).miss_reason is Miss.COLD
    with bench.open() as cache:
        assert restore(cache).boundary == 10


def test_a_model_known_from_its_records_alone_is_last_open_when_it_was_found(bench):
    (bench.folder / "inventory.sqlite").unlink()
    other = MODEL.replace(b"m", b"o")
    bench.wall.pass_(500)
    with bench.open(model=other) as cache:
        models = cache._ssd.inventory.models()
        assert models[MODEL] == (bench.wall(), None)
        assert models[other].laws is not None
