"""The simulated disk is as cruel as it says, and no crueller."""

from pathlib import Path

import pytest

from surefoot.testing.crash import CrashDisk, PowerCut

A, B, F = Path("/a"), Path("/b"), Path("/f")


def states(disk, *paths):
    """Return every combination of what the paths may hold after a cut."""
    found = set()
    for survivor in disk.after_cut():
        held = []
        for path in paths:
            try:
                held.append(survivor.read(path))
            except FileNotFoundError:
                held.append(None)
        found.add(tuple(held))
    return found


def test_bytes_and_name_of_a_new_file_may_be_lost():
    disk = CrashDisk()
    disk.write_new(A, b"1234")
    assert states(disk, A) == {(None,), (b"",), (b"12",), (b"1234",)}
    disk.sync_file(A)
    assert states(disk, A) == {(None,), (b"1234",)}
    disk.sync_folder(Path("/"))
    assert states(disk, A) == {(b"1234",)}


def test_a_name_forced_down_says_nothing_about_the_bytes():
    disk = CrashDisk()
    disk.write_new(A, b"1234")
    disk.sync_folder(Path("/"))
    assert states(disk, A) == {(b"",), (b"12",), (b"1234",)}


def test_a_rename_may_be_kept_or_lost_at_either_end():
    disk = CrashDisk()
    for path, data in ((A, b"new"), (B, b"old")):
        disk.write_new(path, data)
        disk.sync_file(path)
    disk.sync_folder(Path("/"))
    disk.rename(A, B)
    assert states(disk, A, B) == {(a, b) for a in (b"new", None) for b in (b"old", b"new")}
    disk.sync_folder(Path("/"))
    assert states(disk, A, B) == {(None, b"new")}


def test_a_removal_may_be_lost():
    disk = CrashDisk()
    disk.write_new(A, b"1")
    disk.sync_file(A)
    disk.sync_folder(Path("/"))
    disk.remove(A)
    assert states(disk, A) == {(None,), (b"1",)}
    disk.sync_folder(Path("/"))
    assert states(disk, A) == {(None,)}


def test_a_new_folder_takes_what_it_holds_with_it():
    disk = CrashDisk()
    disk.make_folder(F)
    disk.write_new(F / "a", b"1")
    disk.sync_file(F / "a")
    disk.sync_folder(F)
    assert states(disk, F / "a") == {(None,), (b"1",)}
    disk.sync_folder(Path("/"))
    assert states(disk, F / "a") == {(b"1",)}


def test_the_power_stays_off_after_the_budget():
    disk = CrashDisk(budget=1)
    disk.make_folder(F)
    for _ in range(2):
        with pytest.raises(PowerCut):
            disk.write_new(F / "a", b"1")
    assert disk.log == ["make_folder /f"]
    assert disk.entries(F) == []


def test_a_survivor_shares_nothing_with_the_disk_it_came_from():
    disk = CrashDisk()
    disk.make_folder(F)
    disk.write_new(F / "a", b"1")
    disk.write_new(A, b"2")
    for survivor in disk.after_cut():
        survivor.make_folder(F)
        survivor.write_new(F / "b", b"2")
    assert [entry.name for entry in disk.entries(F)] == ["a"]


def test_disks_are_told_apart_by_what_a_reader_sees():
    disk = CrashDisk()
    disk.make_folder(F)
    disk.write_new(F / "a", b"1")
    disk.write_new(A, b"2")
    assert disk.told() == ((A, b"2"), (F / "a", b"1"))
    assert disk.files() == [A, F / "a"]
    disk.remove(A)
    assert disk.files() == [F / "a"]
    assert len({survivor.told() for survivor in disk.after_cut()}) == 9
