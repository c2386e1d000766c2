"""A bounded long run: nothing wrong, no file left open, and a growing server would be noticed.

The short form counts files and answers, which are the same on any machine; whether memory is flat
takes minutes to tell from how it settles (``make soak``).
"""

import os
import socket
from itertools import count

import pytest

from surefoot.testing import soak as soaking
from surefoot.testing.crowds import Crowd
from surefoot.testing.soak import Line, Sample, Soak, sample, soak


def test_a_crowd_that_comes_again_and_again_leaves_nothing_open(tmp_path):
    crowds = [Crowd(seed, 4, thin=True) for seed in (1, 2, 3)]
    found = soak(tmp_path, crowds, seconds=1.0, waves=5, say=lambda one: None)
    assert found.wrong == []
    assert len(found.samples) >= 5
    assert found.answers == 20 * len(found.samples)
    assert found.restored > 0
    assert found.evictions["ram"] > 0
    assert found.evictions["ssd"] > 0
    assert found.more_files <= 0
    assert found.more_sockets <= 0
    assert found.line.mean > 1e8, "a server with torch in it"


def samples(resident, files=9, sockets=1):
    return [
        Sample(60.0 * at, nbytes, files, sockets)
        for at, nbytes in zip(count(), resident, strict=False)
    ]


def test_the_line_is_the_least_squares_one():
    line = Line.through(samples([100, 160, 220]))
    assert (line.mean, line.slope, line.over_s) == (160.0, 1.0, 120.0)
    assert line.share == 120 / 160
    assert Line.through(samples([100, 130, 100])).slope == 0.0


def test_what_grows_is_not_flat():
    level = [1000, 4000, 5000, 5000, 5001, 4999, 5000, 5000]
    assert Soak(samples(level)).flat, "what was before the warm-up's end does not count"
    assert not Soak(samples([5000 + 20 * at for at in range(8)])).flat
    assert not Soak(samples(level), wrong=["an answer"]).flat
    for more in ({"files": 10}, {"sockets": 2}):
        last = samples(level, **more)[-1]
        assert not Soak([*samples(level)[:-1], last]).flat, more


def test_open_files_and_sockets_of_a_process_are_counted(tmp_path):
    before = sample(os.getpid(), 0.0)
    with (tmp_path / "file").open("w"), socket.socket():
        during = sample(os.getpid(), 0.0)
    after = sample(os.getpid(), 0.0)
    assert (during.files, during.sockets) == (before.files + 1, before.sockets + 1)
    assert (after.files, after.sockets) == (before.files, before.sockets)
    assert during.resident > 1e7


@pytest.mark.parametrize(("flat", "code"), [(True, 0), (False, 1)])
def test_the_command_says_what_it_found_and_ends_with_1_if_something_grew(
    monkeypatch, capsys, flat, code
):
    def ran(folder, crowds, *, seconds, say):
        assert (seconds, len(crowds), len(crowds[0].scripts)) == (30.0, 2, 8)
        rising = [10**8 + (0 if flat else at * 10**7) for at in range(5)]
        return Soak(samples(rising), answers=3, restored=7, evictions={"ram": 1})

    monkeypatch.setattr(soaking, "soak", ran)
    assert soaking.main(["--minutes", "0.5", "--clients", "8", "--crowds", "2"]) == code
    told = capsys.readouterr().out
    assert "% of the mean" in told
    assert told.endswith("flat\n" if flat else "NOT flat\n")
