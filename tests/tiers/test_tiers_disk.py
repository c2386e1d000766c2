"""The real disk does what the simulated one stands in for."""

import io
import os
import stat
from contextlib import contextmanager

import pytest

from surefoot.testing.crash import CrashDisk
from surefoot.tiers.disk import Disk, RealDisk


@pytest.fixture(params=["real", "crash"])
def disk(request, tmp_path) -> Disk:
    if request.param == "real":
        return RealDisk()
    crash = CrashDisk()
    for folder in (*reversed(tmp_path.parents), tmp_path):
        if folder != folder.parent:
            crash.make_folder(folder)
    return crash


def test_a_new_file_is_read_back(disk, tmp_path):
    disk.write_new(tmp_path / "a", b"12345")
    disk.sync_file(tmp_path / "a")
    assert disk.read(tmp_path / "a") == b"12345"
    assert [disk.read(tmp_path / "a", nbytes) for nbytes in (0, 3, 9)] == [b"", b"123", b"12345"]


def test_a_new_file_never_replaces_one(disk, tmp_path):
    disk.write_new(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        disk.write_new(tmp_path / "a", b"2")
    assert disk.read(tmp_path / "a") == b"1"


def test_a_rename_replaces_what_is_there(disk, tmp_path):
    disk.write_new(tmp_path / "a", b"1")
    disk.write_new(tmp_path / "b", b"2")
    disk.rename(tmp_path / "a", tmp_path / "b")
    assert disk.read(tmp_path / "b") == b"1"
    assert [entry.name for entry in disk.entries(tmp_path)] == ["b"]


def test_what_is_not_there_is_said_so(disk, tmp_path):
    absent = tmp_path / "absent"
    for act in (
        lambda: disk.read(absent),
        lambda: disk.remove(absent),
        lambda: disk.sync_file(absent),
        lambda: disk.used(absent),
        lambda: disk.rename(absent, tmp_path / "b"),
        lambda: disk.entries(absent),
        lambda: disk.sync_folder(absent),
        lambda: disk.write_new(absent / "a", b""),
        lambda: disk.make_folder(absent / "a"),
    ):
        with pytest.raises(FileNotFoundError):
            act()


def test_a_file_is_no_folder_and_a_folder_no_file(disk, tmp_path):
    disk.write_new(tmp_path / "a", b"1")
    disk.make_folder(tmp_path / "f")
    with pytest.raises(NotADirectoryError):
        disk.entries(tmp_path / "a")
    with pytest.raises(IsADirectoryError):
        disk.read(tmp_path / "f")


def test_a_folder_is_made_once(disk, tmp_path):
    assert disk.make_folder(tmp_path / "f") is True
    disk.write_new(tmp_path / "f" / "a", b"1")
    assert disk.make_folder(tmp_path / "f") is False
    disk.sync_folder(tmp_path)
    assert disk.read(tmp_path / "f" / "a") == b"1"


def test_entries_are_names_with_the_bytes_they_take_up(disk, tmp_path):
    for name, size in (("a", 0), ("b", 1), ("c", 100_000)):
        disk.write_new(tmp_path / name, bytes(size))
        disk.sync_file(tmp_path / name)
    disk.remove(tmp_path / "b")
    found = dict(disk.entries(tmp_path))
    assert found == {name: disk.used(tmp_path / name) for name in ("a", "c")}
    assert found["a"] == 0
    assert found["c"] >= 100_000
    assert found["c"] % 512 == 0


def test_files_and_folders_are_for_their_owner_alone(tmp_path):
    disk = RealDisk()
    before = os.umask(0)
    try:
        disk.make_folder(tmp_path / "f")
        disk.write_new(tmp_path / "f" / "a", b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "f" / "a").stat().st_mode) == 0o600


def test_forcing_down_reaches_the_system(tmp_path, monkeypatch):
    forced = []
    fsync = os.fsync

    def noted(descriptor):
        forced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    disk = RealDisk()
    disk.write_new(tmp_path / "a", b"1")
    disk.sync_file(tmp_path / "a")
    disk.sync_folder(tmp_path)
    assert forced == [str(tmp_path / "a"), str(tmp_path)]


def test_nothing_is_left_open(tmp_path):
    disk = RealDisk()
    before = os.listdir("/proc/self/fd")
    disk.write_new(tmp_path / "a", b"1")
    disk.sync_file(tmp_path / "a")
    disk.sync_folder(tmp_path)
    disk.read(tmp_path / "a")
    disk.entries(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_a_name_that_vanishes_under_a_listing_is_left_out(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1")
    scandir = os.scandir

    @contextmanager
    def vanishing(path):
        with scandir(path) as scan:
            entries = list(scan)
        (tmp_path / "b").unlink()
        yield entries

    monkeypatch.setattr(os, "scandir", vanishing)
    assert [entry.name for entry in RealDisk().entries(tmp_path)] == ["a"]


def test_a_write_that_the_system_cuts_short_goes_on(tmp_path, monkeypatch):
    class Slow(io.FileIO):
        def write(self, data):
            return super().write(data[:3])

    monkeypatch.setattr("builtins.open", lambda descriptor, mode, buffering: Slow(descriptor, mode))
    RealDisk().write_new(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    ("kind", "error"),
    [("pipe", FileNotFoundError), ("link", FileNotFoundError), ("folder", IsADirectoryError)],
)
def test_what_is_no_file_of_ours_is_absent_at_once_and_replaced(tmp_path, kind, error):
    path = tmp_path / "a"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(error):
        RealDisk().read(path)
    assert not before or len(os.listdir("/proc/self/fd")) == before
    if kind != "folder":
        RealDisk().write_new(tmp_path / "b", b"1")
        RealDisk().rename(tmp_path / "b", path)
        assert RealDisk().read(path) == b"1"


def test_a_file_that_claims_a_terabyte_is_not_read_into_memory(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1" * 5000)
    os.truncate(path, 1 << 40)
    found = RealDisk().read(path)
    assert found[:5000] == b"1" * 5000
    assert len(found) < 4 << 20
    assert RealDisk().read(path, 10) == b"1" * 10
