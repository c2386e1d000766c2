"""Real processes, killed at drawn moments: nothing acknowledged is lost, nothing false is served.

The short form of ``make crash``, and the proof that its checks would notice: each is shown a store
that is wrong in one way.
"""

import subprocess
import sys
from contextlib import closing

import pytest

from surefoot.record import key as record_key
from surefoot.testing import cache_kit, kill_rounds
from surefoot.testing.census import take_census, told_in_time
from surefoot.testing.forks import Template
from surefoot.testing.kill_rounds import kill_workers, missing
from surefoot.testing.kill_servers import kill_servers
from surefoot.testing.kill_workers import AMPLE, Ledger, Orders, open_worker_cache, order
from surefoot.testing.kills import run_all

pytestmark = pytest.mark.usefixtures("patience")

SEED = 4


def test_sixty_killed_workers_lose_nothing_that_was_acknowledged(tmp_path):
    figures = kill_workers(60, seed=SEED, lanes=2, folder=tmp_path, say=lambda _: None)
    assert not figures.faults, "\n".join(figures.faults)
    assert figures.kills >= 60
    assert figures.opened > 10
    assert figures.acknowledged > 100
    assert figures.restores > 10


def test_something_is_acknowledged_on_the_slowest_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(kill_rounds, "STEPS_MOST", 3)  # of a life that gets no further than that
    figures = kill_workers(20, seed=SEED, lanes=1, folder=tmp_path, say=lambda _: None)
    assert not figures.faults, "\n".join(figures.faults)
    assert figures.acknowledged > 0


def test_six_killed_servers_answer_as_cold_ones_from_what_is_left(tmp_path):
    figures = kill_servers(6, seed=SEED, lanes=2, folder=tmp_path, say=lambda _: None)
    assert not figures.faults, "\n".join(figures.faults)
    assert figures.kills >= 6
    assert figures.checked > 2
    assert figures.answers > 6


def test_a_run_prints_its_figures_and_returns_its_faults(tmp_path, capsys):
    assert run_all(server_kills=0, worker_kills=2, seed=SEED, folder=tmp_path) == []
    printed = capsys.readouterr().out
    assert "workers: " in printed
    assert " 0 faults, " in printed
    assert "servers" not in printed


def test_a_worker_needs_no_torch():
    code = "import sys, surefoot.testing.kill_rounds; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What is killed is dead, and what is dead holds nothing.


def test_a_killed_child_is_gone_and_so_are_those_of_a_template_that_ends(tmp_path):
    with Template("surefoot.testing.kill_workers") as template:
        for number in range(2):
            orders = Orders(f"w{number}", str(tmp_path / "store"), AMPLE, "no pipe", SEED)
            pid = template.fork(order(orders), tmp_path / f"{number}.out")
            assert template.reap(pid) == 1
            assert "no pipe" in (tmp_path / f"{number}.out").read_text()
    (tmp_path / "pipe").touch()
    with Template("surefoot.testing.kill_workers") as template:
        orders = Orders("w", str(tmp_path / "store"), AMPLE, str(tmp_path / "pipe"), SEED)
        first = template.fork(order(orders), tmp_path / "first.out")
        assert not template.ended(first)
        assert template.kill(first) == -9
        template.fork(order(orders), tmp_path / "second.out")
    with closing(opened(tmp_path / "store")) as cache:
        cache.drain(60)
        assert take_census(tmp_path / "store", cache.status(), writers=1).faults == []


# What the checks would notice.


def opened(store, *, tell=lambda *_: None, ram_bytes=0):
    return open_worker_cache(store, ssd_bytes=AMPLE, ram_bytes=ram_bytes, tell=tell)


def remove(store, path):
    path.unlink()
    return "a row without a file"


def cut_short(store, path):
    path.write_bytes(path.read_bytes()[:-1])
    return "is not whole"


def flip(store, path):
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    return "is not whole"


def grow(store, path):
    path.write_bytes(path.read_bytes() + bytes(9000))
    return "and its row says"


def add_another(store, path):
    first = "0" * 60
    (path.parent.parent / "00").mkdir(exist_ok=True)
    (path.parent.parent / "00" / f"{first}abcd.rows.rec").write_bytes(path.read_bytes())
    return "a file without a row"


def leave_staged(store, path):
    path.with_name(f"{path.stem}.0.staged.dead").write_bytes(b"")
    return "no record"


def leave_a_stranger(store, path):
    (store / "secret.staged").write_bytes(b"")
    return "nobody accounts for"


def leave_a_lock(store, path):
    (store / "owners" / "dead.lock").write_bytes(b"")
    return "have the store open"


DAMAGE = [
    remove,
    cut_short,
    flip,
    grow,
    add_another,
    leave_staged,
    leave_a_stranger,
    leave_a_lock,
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_census_finds_what_does_not_belong(tmp_path, damage):
    with closing(opened(tmp_path)) as cache:
        cache_kit.take_turn(cache, range(1, 20))
        cache.drain(60)
        assert take_census(tmp_path, cache.status(), writers=1).faults == []
        fault = damage(tmp_path, min(tmp_path.glob("records/*/*.rec")))
        faults = take_census(tmp_path, cache.status(), writers=1).faults
        assert any(fault in one for one in faults), faults


def test_the_census_compares_the_sums_that_a_store_states(tmp_path):
    with closing(opened(tmp_path)) as cache:
        cache_kit.take_turn(cache, range(1, 20))
        cache.drain(60)
        status = cache.status()
        status["tiers"]["ssd"]["bytes"] += 512
        faults = take_census(tmp_path, status, writers=1).faults
        assert len(faults) == 1
        assert "the store says" in faults[0]


def test_a_status_is_asked_for_until_the_index_answered_in_time():
    states = iter(["down", "down", "up", "never asked for"])

    def ask():
        return {"tiers": {"ssd": {"state": next(states)}}}

    assert told_in_time(ask, 60.0)["tiers"]["ssd"]["state"] == "up"
    assert next(states) == "never asked for"
    states = iter(["down", "up"])
    assert told_in_time(ask, 0.0)["tiers"]["ssd"]["state"] == "down"


def test_what_is_not_what_computing_gives_is_found(tmp_path):
    block = cache_kit.blocks_of(range(1, 5))[0]
    with closing(opened(tmp_path)) as cache:
        cache_kit.commit(cache, block, spoil=True)
        cache.drain(60)
        found = take_census(tmp_path, cache.status(), writers=1)
        assert found.faults == []
        false = missing(Ledger(tight=False), found)
        assert sorted(false) == [f"not what computing gives: {key}" for key in sorted(found.parts)]


def ledger_of(*lines, tight=False):
    ledger = Ledger(tight=tight)
    for line in lines:
        ledger.read(line)
    return ledger


def test_what_was_committed_before_a_quiet_moment_of_its_worker_must_be_there():
    assert ledger_of("a committed k", "b quiet").must == set()
    assert ledger_of("a committed k", "a quiet", "a committed later").must == {"k"}
    # Whatever a worker says of leaving: a store with room evicts nothing.
    assert ledger_of("a committed k", "a quiet", "b leave k").must == {"k"}


def test_in_a_tight_store_what_was_told_to_leave_may_leave():
    told = ("a committed k", "a put k", "a quiet")
    assert ledger_of(*told, tight=True).must == {"k"}
    assert ledger_of(*told, "b leave k", tight=True).must == set()
    assert ledger_of("a committed refused", "a quiet", tight=True).must == set()
    assert ledger_of("b put k", "b leave k", *told, tight=True).must == {"k"}
    assert ledger_of("a committed k", "a put k", "b leave k", "a quiet", tight=True).must == set()


def test_a_worker_that_breaks_is_a_fault():
    assert ledger_of("a broke AssertionError()").faults == ["a broke AssertionError()"]


def test_what_was_acknowledged_and_is_not_there_is_found(tmp_path):
    lines = []
    with closing(opened(tmp_path, tell=lambda *words: lines.append(words))) as cache:
        block = cache_kit.blocks_of(range(1, 5))[0]
        cache_kit.commit(cache, block)
        cache.drain(60)
        assert ("put", record_key(block.name, "rows")) in lines
        found = take_census(tmp_path, cache.status(), writers=1)
    ledger = ledger_of(*(f"a committed {key}" for key in found.records), "a quiet")
    assert missing(ledger, found) == []
    gone, _ = found.records.popitem()
    (fault,) = missing(ledger, found)
    assert gone in fault
