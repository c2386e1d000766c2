"""I3: cut the power after every operation; the value is whole or absent, and durable once put."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from surefoot.errors import TierError
from surefoot.testing.crash import CrashDisk, PowerCut
from surefoot.testing.tier_contract import TierContract
from surefoot.tiers import Tier
from surefoot.tiers.disk import RealDisk
from surefoot.tiers.ssd import SsdTier

ROOT = Path("/var/store/ssd")
KEY = "abcdef"
NEIGHBOUR = "abcxyz"
OLD, NEW = b"the old value", b"0123456789"


class TestSsdTierOnTheRealDisk(TierContract):
    @pytest.fixture
    def tier(self, tmp_path) -> Tier:
        return SsdTier(tmp_path / "not" / "yet", RealDisk(), "w1")


# The power is cut.


def before_put(disk, tier):
    """Nothing is there: the first value, and its folders, are new."""


def before_replace(disk, tier):
    tier(disk).put(KEY, OLD)
    tier(disk).put(NEIGHBOUR, OLD)


SCENES = [
    pytest.param(before_put, None, lambda tier: tier.put(KEY, NEW), NEW, id="put"),
    pytest.param(before_replace, OLD, lambda tier: tier.put(KEY, NEW), NEW, id="replace"),
    pytest.param(before_replace, OLD, lambda tier: tier.delete(KEY), None, id="delete"),
]


def plain(disk):
    return SsdTier(ROOT, disk, "w1")


def check_every_cut(before, old, act, new, tier=plain):
    """Cut the power before each change; open every disk that could come back (I3)."""
    cut, budget = True, 0
    while cut:
        disk = CrashDisk()
        before(disk, tier)
        kept = plain(disk).get(NEIGHBOUR)
        disk.budget = disk.spent + budget
        try:
            act(tier(disk))
            cut = False
        except PowerCut:
            budget += 1
        for survivor in disk.after_cut():
            value = plain(survivor).get(KEY)
            assert value in ((old, new) if cut else (new,)), (budget, disk.log)
            assert plain(survivor).get(NEIGHBOUR) == kept
            check_it_works_again(survivor)
    return budget


def check_it_works_again(disk):
    tier = SsdTier(ROOT, disk, "w2")
    values = {key: tier.get(key) for key in (KEY, NEIGHBOUR)}
    assert {key for key, _ in tier.list()} == {k for k, v in values.items() if v is not None}
    tier.sweep(["w2"])
    assert not any("staged" in entry.name for _, entry in tier._files())
    tier.put(KEY, b"after")
    assert tier.get(KEY) == b"after"


@pytest.mark.parametrize(("before", "old", "act", "new"), SCENES)
def test_a_cut_leaves_the_old_value_or_the_new_one_and_the_new_one_once_done(before, old, act, new):
    assert check_every_cut(before, old, act, new) >= 2


def test_a_put_that_another_process_has_made_the_folders_for_survives_too():
    disk = CrashDisk()
    for folder in (ROOT.parent.parent, ROOT.parent):
        disk.make_folder(folder)
        disk.sync_folder(folder.parent)
    disk.make_folder(ROOT)
    disk.make_folder(ROOT / KEY[:2])
    plain(disk).put(KEY, NEW)
    assert {plain(survivor).get(KEY) for survivor in disk.after_cut()} == {NEW}


# Wrong tiers that the checks above must tell from the right one.


class Forgetful(CrashDisk):
    """A disk whose caller never calls some operation."""

    forgotten: str
    where: Path | None = None

    def sync_file(self, path):
        if self.forgotten != "sync_file":
            super().sync_file(path)

    def sync_folder(self, path):
        if self.forgotten != "sync_folder" or self.where not in (None, path):
            super().sync_folder(path)


class WritesInPlace(SsdTier):
    def put(self, key, data):
        path = self._path(key)
        self._make_folders(path.parent)
        with suppress(FileNotFoundError):
            self._disk.remove(path)
        self._disk.write_new(path, data)
        self._disk.sync_file(path)
        self._disk.sync_folder(path.parent)
        return 0


class SyncsAfterTheRename(SsdTier):
    def put(self, key, data):
        path = self._path(key)
        self._make_folders(path.parent)
        staged = path.with_name("staged" + self._suffix)
        self._disk.write_new(staged, data)
        self._disk.rename(staged, path)
        self._disk.sync_file(path)
        self._disk.sync_folder(path.parent)
        return 0


class RemovesBeforeTheRename(SsdTier):
    def put(self, key, data):
        self.delete(key)
        return super().put(key, data)


class ForgetsItsFolders(SsdTier):
    def _make_folder(self, path):
        for folder in (*reversed(path.parents), path):
            if folder != folder.parent:
                self._disk.make_folder(folder)


class DeletesAndReturns(SsdTier):
    def delete(self, key):
        self._disk.remove(self._path(key))


def forgetful(operation, where=None):
    class Disk(Forgetful):
        forgotten = operation

    Disk.where = where

    def tier(disk):
        disk.__class__ = Disk
        return plain(disk)

    return tier


def wrong(kind):
    return lambda disk: kind(ROOT, disk, "w1")


@pytest.mark.parametrize(
    ("scene", "tier"),
    [
        pytest.param(0, forgetful("sync_file"), id="bytes never forced down"),
        pytest.param(1, forgetful("sync_file"), id="bytes never forced down, replacing"),
        pytest.param(0, forgetful("sync_folder"), id="names never forced down"),
        pytest.param(0, forgetful("sync_folder", ROOT / "ab"), id="the value's name is not"),
        pytest.param(0, forgetful("sync_folder", ROOT), id="the folder's name is not"),
        pytest.param(0, forgetful("sync_folder", ROOT.parent), id="the root's name is not"),
        pytest.param(0, forgetful("sync_folder", Path("/")), id="the highest new name is not"),
        pytest.param(2, forgetful("sync_folder", ROOT / "ab"), id="removals never forced down"),
        pytest.param(0, wrong(WritesInPlace), id="in place"),
        pytest.param(1, wrong(WritesInPlace), id="in place, replacing"),
        pytest.param(0, wrong(SyncsAfterTheRename), id="synced after the rename"),
        pytest.param(1, wrong(SyncsAfterTheRename), id="synced after the rename, replacing"),
        pytest.param(1, wrong(RemovesBeforeTheRename), id="removed before the rename"),
        pytest.param(0, wrong(ForgetsItsFolders), id="folders made and not forced down"),
        pytest.param(2, wrong(DeletesAndReturns), id="deleted and not forced down"),
    ],
)
def test_a_wrong_tier_is_told_from_the_right_one(scene, tier):
    with pytest.raises(AssertionError):
        check_every_cut(*SCENES[scene].values, tier=tier)


# The medium fails.


class FailingDisk:
    """Reports that one change failed, by its number, and works again after it."""

    def __init__(self, disk, at, *, done):
        self.disk, self.at, self.done = disk, at, done
        self.changes = 0

    def __getattr__(self, name):
        operation = getattr(self.disk, name)
        return operation if name in ("read", "entries", "used") else self.failing(operation)

    def failing(self, operation):
        def change(*args):
            self.changes += 1
            if self.changes != self.at:
                return operation(*args)
            if self.done:
                operation(*args)
            raise OSError(28, "No space left on device")

        return change


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(("before", "old", "act", "new"), SCENES)
def test_a_failed_change_is_a_tier_error_that_leaves_old_or_new_and_heals(
    before, old, act, new, done
):
    faults = 0
    for at in count(1):
        disk = CrashDisk()
        before(disk, plain)
        failing = FailingDisk(disk, at, done=done)
        tier = plain(failing)
        try:
            act(tier)
        except TierError as error:
            told = str(error)
        else:
            if failing.changes < at:
                break
            continue  # the change failed by itself, as the tier expected
        faults += 1
        assert "No space left" in told
        assert KEY in told
        assert tier.get(KEY) in (old, new)
        assert not any("staged" in entry.name for _, entry in tier._files())
        act(tier)
        assert {plain(survivor).get(KEY) for survivor in disk.after_cut()} == {new}
    assert faults >= 2


class BrokenDisk:
    """Fails everything; what it is asked does not matter."""

    def __getattr__(self, name):
        def fail(*args):
            raise OSError(5, "Input/output error")

        return fail


@pytest.mark.parametrize(
    "act",
    [
        lambda tier: tier.put(KEY, NEW),
        lambda tier: tier.get(KEY),
        lambda tier: tier.head(KEY, 1),
        lambda tier: tier.delete(KEY),
        lambda tier: list(tier.list()),
        lambda tier: tier.sweep(["w2"]),
    ],
)
def test_every_fault_of_the_disk_is_a_tier_error(act):
    with pytest.raises(TierError, match="Input/output error"):
        act(SsdTier(ROOT, BrokenDisk(), "w1"))


def test_a_tier_whose_folder_was_taken_away_heals_after_one_failure():
    disk = CrashDisk()
    tier = plain(disk)
    tier.put(KEY, OLD)
    disk._root.names.clear()
    with pytest.raises(TierError):
        tier.put(KEY, NEW)
    tier.put(KEY, NEW)
    assert {plain(survivor).get(KEY) for survivor in disk.after_cut()} == {NEW}


class Guarded(CrashDisk):
    """A disk whose top folder belongs to another user, who lets nobody read it."""

    def sync_folder(self, path):
        if path == Path("/"):
            raise PermissionError(13, "Permission denied")
        super().sync_folder(path)


def test_a_root_in_place_needs_no_right_to_its_parent():
    disk = Guarded()
    disk.make_folder(Path("/store"))
    SsdTier(Path("/store"), disk, "w1").put(KEY, NEW)
    assert SsdTier(Path("/store"), disk, "w1").get(KEY) == NEW


def test_a_new_root_that_cannot_be_forced_down_is_an_error():
    with pytest.raises(TierError, match="Permission denied"):
        SsdTier(Path("/store"), Guarded(), "w1").put(KEY, NEW)


# Files and folders.


def test_a_value_is_one_private_file_fanned_out_by_its_key(tmp_path):
    tier = SsdTier(tmp_path / "ssd", RealDisk(), "w1")
    before = os.umask(0)
    try:
        used = tier.put(KEY, NEW)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / "ssd" / "ab" / "abcdef.rec"]
    assert files[0].read_bytes() == NEW
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(files[0].parent.parent.stat().st_mode) == 0o700
    assert used == files[0].stat().st_blocks * 512


def test_the_order_is_bytes_then_name_then_the_name_forced_down():
    disk = CrashDisk()
    tier = plain(disk)
    tier.put(KEY, OLD)
    before = disk.spent
    tier.put(KEY, NEW)
    folder = ROOT / "ab"
    assert disk.log[before:] == [
        f"write_new {folder}/abcdef.1.staged.w1",
        f"sync_file {folder}/abcdef.1.staged.w1",
        f"rename {folder}/abcdef.rec",
        f"sync_folder {folder}",
    ]


def test_a_folder_new_to_the_process_is_forced_down_with_the_root():
    disk = CrashDisk()
    tier = plain(disk)
    tier.put(KEY, OLD)
    before = disk.spent
    tier.put("xyz", NEW)
    assert disk.log[before : before + 5] == [
        f"make_folder {ROOT}",
        f"sync_folder {ROOT.parent}",
        f"make_folder {ROOT}/xy",
        f"sync_folder {ROOT}",
        f"write_new {ROOT}/xy/xyz.1.staged.w1",
    ]


class Observed(CrashDisk):
    """Starts another put of the same folder while the root's own name is not down yet."""

    def sync_folder(self, path):
        if path == ROOT.parent and not self.others:
            self.others.append(self.pool.submit(self.tier.put, NEIGHBOUR, NEW))
            self.overtaken = bool(wait(self.others, timeout=0.2).done)
        super().sync_folder(path)


def test_no_thread_returns_from_put_while_another_is_still_forcing_its_folders_down():
    disk = Observed()
    with ThreadPoolExecutor(1) as disk.pool:
        disk.others = []
        disk.tier = plain(disk)
        disk.tier.put(KEY, NEW)
    assert disk.others[0].result() == 512
    assert not disk.overtaken


def test_head_reads_the_first_bytes_only():
    tier = plain(CrashDisk())
    tier.put(KEY, NEW)
    assert [tier.head(KEY, nbytes) for nbytes in (0, 4, 99)] == [b"", b"0123", NEW]
    assert tier.head(NEIGHBOUR, 4) is None


def test_a_dead_writers_leftovers_are_swept_and_a_living_ones_are_not():
    disk = CrashDisk()
    plain(disk).put("abc.staged.dead", OLD)
    for name in ("abcdef.0.staged.dead", "abcdef.1.staged.dead", "xyz.0.staged.un-dead"):
        disk.write_new(ROOT / "ab" / name, b"half")
    tier = plain(disk)
    assert [key for key, _ in tier.list()] == ["abc.staged.dead"]
    assert tier.sweep(["w1", "un-dead"]) == 2
    assert tier.sweep(["w1", "un-dead"]) == 0
    names = {entry.name for _, entry in tier._files()}
    assert names == {"abc.staged.dead.rec", "xyz.0.staged.un-dead"}
    assert SsdTier(ROOT, CrashDisk(), "w1").sweep([]) == 0


class Swept(CrashDisk):
    """Names a leftover that somebody else has just removed, or that nobody can remove."""

    error: OSError

    def remove(self, path):
        raise self.error


def test_a_leftover_that_is_gone_already_is_not_counted():
    disk = CrashDisk()
    plain(disk).put(KEY, OLD)
    disk.write_new(ROOT / "ab" / "abcdef.0.staged.dead", b"half")
    disk.__class__ = Swept
    disk.error = FileNotFoundError(2, "No such file")
    assert plain(disk).sweep(["w1"]) == 0
    disk.error = OSError(5, "Input/output error")
    with pytest.raises(TierError, match=r"abcdef\.0\.staged\.dead"):
        plain(disk).sweep(["w1"])


def test_a_listing_leaves_out_what_is_not_the_tiers_own():
    disk = CrashDisk()
    plain(disk).put(KEY, NEW)
    disk.make_folder(ROOT / "ab" / "folder")
    disk.make_folder(ROOT / "zz")
    for path in ("stray.rec", "ab/notes", "ab/ABC.rec", "ab/zzz.rec", "zz/abd.rec", "ab/.rec"):
        disk.write_new(ROOT / path, b"x")
    assert list(plain(disk).list()) == [(KEY, 512)]


@pytest.mark.parametrize("writer", ["", "a.b", "a/b", "rec", "a b"])
def test_a_writers_name_cannot_be_mistaken_for_anything_else(writer):
    with pytest.raises(AssertionError):
        SsdTier(ROOT, CrashDisk(), writer)


def test_the_ssd_is_durable():
    assert (plain(CrashDisk()).name, plain(CrashDisk()).durable) == ("ssd", True)
