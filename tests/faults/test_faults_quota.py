"""What a store may take up, counted as ``du`` counts; who may read it; and what ``off`` touches.

Limits hold on real bytes after every single write (I6), records leave in the promised order (I13),
and nothing that somebody stands on leaves (I7).
"""

import os
import stat
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from tempfile import gettempdir

import pytest

from surefoot.bench.process import ServerProcess
from surefoot.cache import folder as folder_module
from surefoot.cache.fences import Reason
from surefoot.cache.quota import ORPHAN_S
from surefoot.cache.ssd import ASIDE_SHARE
from surefoot.cache.write_budget import HOUR_S
from surefoot.receipt import Miss
from surefoot.testing.cache_kit import (
    EVERY_LAW,
    MODEL,
    ROWS_ONLY,
    Bench,
    blocks_of,
    check_restored,
    commit,
    feature_name_of,
    features_of,
    image_of,
    take_turn,
)
from surefoot.testing.damage import Shelves

pytestmark = pytest.mark.usefixtures("patience")

TOKENS = list(range(41))
OTHER = MODEL.replace(b"m", b"o")
FILE = 4096  # what a small record takes up


def du(*folders):
    """Return the bytes that folders take up, files that are being written included.

    Captures, which have a bound of their own, are left out.
    """
    return sum(
        path.stat(follow_symlinks=False).st_blocks * 512
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and ".capture." not in path.name
    )


class Measured(Shelves):
    """Caches that are measured after each write of any of their tiers."""

    def __init__(self, folder, groups=EVERY_LAW):
        super().__init__(folder, groups)
        self.most = self.most_aside = 0

    def measure(self):
        counted = [self.folder / "records", self.folder / "quarantine"]
        self.most = max(self.most, du(*counted))
        self.most_aside = max(self.most_aside, du(counted[1]))

    def _tier(self, records, writer):
        tier = super()._tier(records, writer)
        put = tier.put

        def measured(key, data):
            nbytes = put(key, data)
            self.measure()
            return nbytes

        tier.put = measured
        return tier


def conversation(seed):
    return [seed * 1000 + one for one in TOKENS]


def taken(bench, cache, seed, **how):
    bench.wall.pass_(1)
    done = take_turn(cache, conversation(seed), **how)
    assert cache.drain(60)
    return done


@pytest.mark.parametrize("files", [3, 17, 40])
def test_the_disk_never_holds_more_than_the_quota_after_any_write(tmp_path, files):
    bench = Measured(tmp_path / "store")
    bench.ssd_bytes = files * FILE
    with bench.open() as cache:
        for seed in range(12):
            taken(bench, cache, seed % 7)
            picture = image_of(seed)
            cache.commit_features(feature_name_of(picture), picture, features_of(picture))
            if seed % 3 == 2:
                cache.quarantine(blocks_of(conversation(seed % 7))[2].name, Reason.BY_HAND, "so")
            assert cache.drain(60)
            bench.measure()
    assert 0 < bench.most <= bench.ssd_bytes


def test_what_is_set_aside_takes_a_sixteenth_and_the_oldest_leaves(tmp_path):
    bench = Measured(tmp_path / "store", ROWS_ONLY)
    bench.ssd_bytes = 64 * FILE  # four files aside
    with bench.open() as cache:
        for seed in range(6):
            taken(bench, cache, seed)
            cache.quarantine(blocks_of(conversation(seed))[7].name, Reason.BY_HAND, "so")
            assert cache.drain(60)
        aside = sorted((tmp_path / "store" / "quarantine").rglob("*.rec"))
        figures = cache.status()["quarantined"]
    assert 0 < bench.most_aside <= bench.ssd_bytes * ASIDE_SHARE
    assert bench.most <= bench.ssd_bytes
    numbers = {int(path.name.partition(".")[0]) for path in aside}
    assert min(numbers) > 3
    assert max(numbers) == 6
    assert figures == {"bytes": len(aside) * FILE, "records": len(aside)}


def test_a_store_that_holds_too_much_is_brought_under_its_quota_when_it_is_opened(tmp_path):
    bench = Measured(tmp_path / "store")
    with bench.open() as cache:
        for seed in range(6):
            taken(bench, cache, seed)
    before = du(bench.folder / "records")
    bench.ssd_bytes = before // 3
    with bench.open() as cache:
        assert cache.drain(60)
        assert 0 < du(bench.folder / "records") <= bench.ssd_bytes
        assert taken(bench, cache, 5)[1].boundary == 10  # what was used last is still there
        assert du(bench.folder / "records") <= bench.ssd_bytes


def test_so_is_one_that_is_full_of_another_models_records_and_of_no_index(tmp_path):
    bench = Measured(tmp_path / "store")
    with bench.open(model=OTHER) as cache:
        for seed in range(6):
            for block in blocks_of(conversation(seed), model=OTHER):
                commit(cache, block)
            assert cache.drain(60)
    for path in bench.folder.glob("inventory.sqlite*"):
        path.unlink()
    bench.ssd_bytes = du(bench.folder / "records") // 3
    with bench.open() as cache:
        assert cache.drain(60)
        assert du(bench.folder / "records") <= bench.ssd_bytes
        taken(bench, cache, 1)
        assert du(bench.folder / "records") <= bench.ssd_bytes
        assert taken(bench, cache, 1)[1].boundary == 10


def test_a_model_that_is_open_elsewhere_is_no_orphan_however_long_ago_it_was_opened(tmp_path):
    bench = Shelves(tmp_path / "store", ROWS_ONLY)
    with bench.open() as cache:
        taken(bench, cache, 2)
    other = bench.start(model=OTHER)
    bench.wall.pass_(1)
    theirs = blocks_of(conversation(1), model=OTHER)
    for block in theirs:
        commit(other, block)
    assert other.drain(60)
    bench.wall.pass_(ORPHAN_S * 2)
    bench.ssd_bytes = 24 * FILE
    with bench.open() as cache:
        # The least recently used leave, whoever they belong to: here our own.
        taken(bench, cache, 3)
        assert cache.plan(blocks_of(conversation(2)), limit=10).boundary < 10
        assert other.plan(theirs, limit=10).boundary == 10
        taken(bench, cache, 4)
        assert other.plan(theirs, limit=10).boundary < 10
        assert taken(bench, cache, 4)[1].boundary == 10
    other.close()


def test_a_model_that_nobody_opened_for_a_week_leaves_first_though_it_was_used_last(tmp_path):
    bench = Shelves(tmp_path / "store", ROWS_ONLY)
    with bench.open() as cache:
        taken(bench, cache, 2)
    bench.wall.pass_(1)
    with bench.open(model=OTHER) as cache:
        for block in blocks_of(conversation(1), model=OTHER):
            commit(cache, block)
    bench.wall.pass_(ORPHAN_S + 1)
    bench.ssd_bytes = 24 * FILE
    with bench.open() as cache:
        taken(bench, cache, 3)
        assert cache.plan(blocks_of(conversation(2)), limit=10).boundary == 10
        left = [row.model for row in cache._ssd.inventory.rows()]
        assert 0 <= left.count(OTHER) < 5


def test_what_a_turn_stands_on_stays_whatever_else_needs_room(tmp_path):
    bench = Measured(tmp_path / "store", ROWS_ONLY)
    bench.ssd_bytes = 12 * FILE
    with bench.open() as cache:
        taken(bench, cache, 1)
        blocks = blocks_of(conversation(1))
        plan = cache.plan(blocks, limit=10)
        with cache.pinned(plan):
            for seed in range(2, 8):
                taken(bench, cache, seed)
            restored = cache.restore(plan, deadline_s=5)
            check_restored(cache, plan, restored)
            assert restored.boundary == 10
    assert bench.most <= bench.ssd_bytes


def test_the_free_floor_is_kept_by_every_kind_of_write(tmp_path, monkeypatch):
    bench = Measured(tmp_path / "store")
    start = 400 * FILE

    class Usage:
        def __init__(self, path):
            self.free = start - du(bench.folder)

    monkeypatch.setattr(folder_module.shutil, "disk_usage", Usage)
    bench.free_floor_bytes = 260 * FILE
    with bench.open() as cache:
        for seed in range(5):
            taken(bench, cache, seed)
            picture = image_of(seed)
            cache.commit_features(feature_name_of(picture), picture, features_of(picture))
            cache.quarantine(blocks_of(conversation(seed))[3].name, Reason.BY_HAND, "so")
            assert cache.drain(60)
            # A fence and the index are not refused: they are what keeps a promise.
            small = du(bench.folder) - du(bench.folder / "records", bench.folder / "quarantine")
            assert Usage(None).free >= bench.free_floor_bytes - small
    assert bench.most > 10 * FILE


def test_ram_holds_no_more_record_bytes_than_it_may(tmp_path):
    bench = Shelves(tmp_path / "store")
    bench.ram_bytes, bench.feature_ram_bytes = 20_000, 3_000
    with bench.open() as cache:
        for seed in range(8):
            taken(bench, cache, seed % 5)
            picture = image_of(seed)
            cache.commit_features(feature_name_of(picture), picture, features_of(picture))
            held = sum(len(cache._ram.get((block.name, group))) for block, group, _ in
                       cache._ram.items())  # fmt: skip
            assert held == cache.status()["tiers"]["ram"]["bytes"] <= 20_000
            assert cache.status()["features"]["ram"]["bytes"] <= 3_000


# The write budget.


def test_what_is_over_the_write_budget_stays_in_ram_and_is_counted(tmp_path):
    bench = Bench(tmp_path / "store", ROWS_ONLY)
    bench.write_budget = 7 * FILE
    with bench.open() as cache:
        taken(bench, cache, 1)
        assert 0 < len(bench.records()) < 10
        written = len(bench.records())
        assert cache.status()["counters"]["over_budget_writes"] == 10 - written
        plan, restored = take_turn(cache, conversation(1))
        assert restored.boundary == 10  # RAM has what the disk was spared
        check_restored(cache, plan, restored)
        # An hour later the same conversation is committed again, and reaches the disk.
        bench.clock.pass_(HOUR_S)
        for block in blocks_of(conversation(1)):
            commit(cache, block)
        assert cache.drain(60)
        assert len(bench.records()) == 10
        cache.quarantine(blocks_of(conversation(1))[9].name, Reason.BY_HAND, "so")
        bench.clock.pass_(HOUR_S)
        taken(bench, cache, 2)
        spent = cache.status()["counters"]["over_budget_writes"]
        # Nothing is left for this hour: even so a fence is put up, and holds.
        cache.quarantine(blocks_of(conversation(2))[0].name, Reason.BY_HAND, "so")
        assert cache.plan(blocks_of(conversation(2)), limit=10).miss_reason is Miss.QUARANTINED
        assert spent > 10 - written


def test_no_write_budget_is_no_limit(tmp_path):
    bench = Bench(tmp_path / "store", ROWS_ONLY)
    with bench.open() as cache:
        for seed in range(5):
            taken(bench, cache, seed)
        assert len(bench.records()) == 50
        assert cache.status()["counters"]["over_budget_writes"] == 0


# What is touched, and who may read it.

WATCH = """
import os, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod",
           "os.truncate", "os.utime", "shutil.rmtree", "sqlite3.connect", "tempfile.mkstemp",
           "tempfile.mkdtemp"}
def watch(event, arguments):
    if event == "open" and arguments[2] & WRITES and arguments[0] != os.devnull:
        print("TOUCHED", event, arguments[0], file=sys.stderr, flush=True)
    if event in CHANGES:
        print("TOUCHED", event, arguments[:1], file=sys.stderr, flush=True)
sys.addaudithook(watch)
"""


def watched(script, **how):
    """Run a script that tells of every change to any file system; return what it told."""
    code = WATCH + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False, **how
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("TOUCHED")]


TURNS = """
from pathlib import Path
from surefoot.cache import quarantine
from surefoot.cache.fences import Reason
from surefoot.testing.cache_kit import *
quarantine.DURABLE_S = 60.0
bench = Bench({store}, EVERY_LAW)
with bench.open() as cache:
    for _ in range(2):
        take_turn(cache, list(range(41)))
        picture = image_of(1)
        cache.commit_features(feature_name_of(picture), picture, features_of(picture))
        cache.drain(60)
    cache.quarantine(blocks_of(range(41))[1].name, Reason.BY_HAND, "so")
    cache.drain(60)
"""


def test_without_a_store_a_cache_touches_no_file(tmp_path):
    assert watched(TURNS.format(store=None), cwd=tmp_path) == []
    # The watch is awake: the same turns with a store are seen.
    seen = watched(TURNS.format(store=f"Path({str(tmp_path / 'store')!r})"))
    assert any("inventory.sqlite" in line for line in seen)
    assert any(".staged." in line for line in seen)


@contextmanager
def served(folder, flags, *, umask=0o077):
    """Serve ``spark`` under a watch and a umask; yields the process, and its log afterwards."""
    patient = [*flags, "--restore-floor-s", "60"]
    process = ServerProcess("spark", folder / "server.log", patient)
    code = f"{WATCH}\nos.umask({umask})\nfrom surefoot.cli import main\nsys.exit(main())\n"
    start = process._command.index("surefoot")
    process._command[1 : start + 1] = ["-B", "-c", code]
    with process:
        yield process


def ask(process):
    body = {"model": "spark", "messages": [{"role": "user", "content": "Hello " * 30}]}
    body |= {"max_tokens": 3, "temperature": 0}
    return process.client.ask(body)


def test_a_server_without_a_store_touches_no_file(tmp_path, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    with served(tmp_path, ["--store", "off"]) as process:
        assert ask(process).receipt["restored_tokens"] == 0
        assert ask(process).receipt["restored_tokens"] > 0
    lines = (tmp_path / "server.log").read_text().splitlines()
    touched = [line for line in lines if line.startswith("TOUCHED")]
    # What torch makes in the system's folder for temporary files when it is imported is not ours.
    assert [line for line in touched if f"{gettempdir()}/" not in line] == []
    assert not any(str(tmp_path) in line or "surefoot" in line for line in touched), touched


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_nobody_else_may_read_anything_of_a_caches_store(tmp_path, umask):
    store = tmp_path / "store"
    watched(f"os.umask({umask})\n" + TURNS.format(store=f"Path({str(store)!r})"))
    check_modes(store)


def test_nobody_else_may_read_anything_of_a_servers_store(tmp_path):
    store = tmp_path / "store"
    with served(tmp_path, ["--store", str(store)], umask=0) as process:
        ask(process)
        process.client.wait_written()
        damaged = next(store.glob("records/*/*.rec"))
        damaged.write_bytes(b"damaged")
        check_modes(store)
    with served(tmp_path, ["--store", str(store)], umask=0) as process:
        ask(process)
        process.client.wait_written()
        check_modes(store)
        kinds = {path.relative_to(store).parts[0] for path in store.rglob("*")}
        assert {"records", "fences", "owners", "secret", "inventory.sqlite"} <= kinds
        assert {"quarantine", "models", "journal.sqlite"} <= kinds
    check_modes(store)


def check_modes(store):
    for path in (store, *store.rglob("*")):
        found = path.stat()
        wanted = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
        assert stat.S_IMODE(found.st_mode) == wanted, (path, oct(found.st_mode))
        assert found.st_uid == os.geteuid()
