"""Crowds: each of many clients is told what it would be told alone on a cold server.

16 at once, 32 in the long form. Forks, edits of early turns, streams that are left, pictures, two
salts of each of two keys. Every answer is held against the cold one in text, log-probabilities and
state, and none may hold another session's canary (I1, I5). What must be a hit says so in its
receipt.
"""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

import pytest

from surefoot.bench.client import Answer, Client
from surefoot.bench.process import ServerProcess
from surefoot.testing.crowds import (
    KEYS,
    TENANTS,
    Crowd,
    Heard,
    References,
    faults,
    visit,
    wait_at_rest,
)

# One thread a server: two servers at a time compute here, and the number decides bits.
FLAGS = ("--threads", "1", "--restore-floor-s", "60")
KEYED = tuple(flag for key in KEYS for flag in ("--api-key", key))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("crowds")


@pytest.fixture(scope="module")
def references(folder):
    flags = ("--store", "off", *FLAGS)
    with ServerProcess("spark", folder / "reference.log", flags) as process:
        yield References(process.client)


class Place:
    """A server of the crowd's keys."""

    def __init__(self, url):
        self.url = url
        self.client = Client(url, KEYS[0])

    def status(self):
        return self.client.wait("status", lambda _: True, timeout_s=30)

    def settled(self):
        """Wait until all is stored and nobody computes; return the status."""
        return wait_at_rest(self.client)


@contextmanager
def serving(folder, name, store, *flags, model="spark"):
    more = ("--store", str(store), *FLAGS, *KEYED, *flags)
    with ServerProcess(model, folder / f"{name}.log", more) as process:
        place = Place(process.client.url)
        try:
            yield place
        finally:
            place.client.close()


def hold(heard, references, crowd, *, taught=True):
    """Every answer is the cold one; a model taught to say canaries does, or none could leak."""
    broken = [
        fault for one in heard for fault in faults(one, references.of(one.ask), crowd.canaries)
    ]
    assert broken == []
    if not taught:
        return
    asked = [one for one in heard if one.ask.leg in ("first", "twin")]
    said = sum(any(one.text == canary for canary in one.ask.canaries) for one in asked)
    assert said >= 0.9 * len(asked), Counter(one.text for one in asked)


@pytest.mark.parametrize(
    ("clients", "thin"),
    [(16, True), *(pytest.param(32, thin, marks=pytest.mark.long) for thin in (True, False))],
)
def test_a_crowd_is_told_the_truth_whatever_is_held_where(folder, references, clients, thin):
    crowd = Crowd(32, clients, thin=thin)
    store = folder / f"store-{clients}-{thin}"
    with serving(folder, "ample", store) as place:
        hold(visit(crowd.scripts, [place.url]), references, crowd)
        working_set = place.settled()["tiers"]["ram"]["bytes"]
        hold(visit(crowd.strangers(), [place.url]), references, crowd)
    with serving(folder, "tight", store, "--ram-bytes", str(working_set // 4)) as place:
        for wave in (1,) if thin else (1, 2):
            heard = visit(crowd.again(wave), [place.url])
            hold(heard, references, crowd)
        tiers = {tier for one in heard for tier in one.answer.receipt["sources"]}
        assert tiers == {"ram", "ssd"}
        status = place.settled()
        assert status["tiers"]["ram"]["bytes"] <= working_set // 4
        assert status["tiers"]["ram"]["evictions"] > 0
        assert status["counters"]["verification_failures"] == 0
        assert status["counters"]["disagreements"] == 0


@pytest.mark.long
def test_a_crowd_is_told_the_truth_by_a_model_that_has_only_rows(folder):
    crowd = Crowd(5, 8, thin=True, model="smollm2")
    narrow = (*FLAGS, "--block-tokens", "32")
    with ServerProcess("smollm2", folder / "rows-cold.log", ("--store", "off", *narrow)) as process:
        cold = References(process.client)
        for script in crowd.scripts:
            for ask in script:
                cold.of(ask)
    store = folder / "rows"
    with serving(folder, "rows-ample", store, *narrow, model="smollm2") as place:
        heard = visit(crowd.scripts, [place.url])
        hold(heard, cold, crowd, taught=False)
        working_set = place.settled()["tiers"]["ram"]["bytes"]
        hold(visit(crowd.strangers(), [place.url]), cold, crowd, taught=False)
    tight = ("--ram-bytes", str(working_set // 4))
    with serving(folder, "rows-tight", store, *narrow, *tight, model="smollm2") as place:
        hold(visit(crowd.again(1, block=32), [place.url]), cold, crowd, taught=False)
        assert place.settled()["tiers"]["ram"]["evictions"] > 0


def command(store, *words):
    """Run ``surefoot cache ...`` on a store that is in use; return what it printed, as JSON."""
    run = [sys.executable, "-m", "surefoot", "cache", *words, "--store", str(store), "--json"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return (
        [json.loads(line) for line in done.stdout.splitlines()]
        if words[0] == "ls"
        else (json.loads(done.stdout))
    )


def tend(store, over):
    """Look at the store and tend it, over and over, until the crowd has gone home."""
    seen = []
    while not over.is_set() or len(seen) < 4:
        words = ("stats", "ls", "verify", "gc")[len(seen) % 4]
        seen.append((words, command(store, words)))
    return seen


def test_two_servers_and_the_commands_share_one_store(folder, references):
    crowd = Crowd(2, 4, thin=True)
    store = folder / "shared"
    over = Event()
    with serving(folder, "left", store) as left, serving(folder, "right", store) as right:
        urls = [left.url, right.url]
        with ThreadPoolExecutor(1) as pool:
            tending = pool.submit(tend, store, over)
            try:
                hold(visit(crowd.scripts, urls), references, crowd)
                left.settled()
                right.settled()
                # What one server was told first, the other is asked now: hits, out of the store.
                heard = visit(crowd.again(1), urls[::-1])
                hold(heard, references, crowd)
            finally:
                over.set()
            for words, found in tending.result():
                if words == "verify":
                    assert (found["corrupt"], found["failed"]) == (0, 0), found
                if words == "gc":
                    assert found["orphans"] == 0, found
        sources = Counter(tier for one in heard for tier in one.answer.receipt["sources"])
        assert sources["ssd"] > 0
        bar_while_they_ask(crowd, store, urls, references)
        for status in (left.settled(), right.settled()):
            assert status["counters"]["verification_failures"] == 0
            assert status["counters"]["disagreements"] == 0


def bar_while_they_ask(crowd, store, urls, references):
    """Quarantine blocks by hand under both servers: what that costs is time."""
    names = sorted({one["name"] for one in command(store, "ls") if one["kind"] == "part"})
    assert len(names) > 50

    def bar():
        return [command(store, "quarantine", name) for name in names[:: len(names) // 3]]

    scripts = [[replace(ask, seen=0) for ask in script] for script in crowd.again(2)]
    with ThreadPoolExecutor(1) as pool:
        barring = pool.submit(bar)
        hold(visit(scripts, urls), references, crowd)
        assert all(found["fences"] for found in barring.result())
    hold(visit(scripts, urls), references, crowd)
    assert command(store, "stats")["fences"] >= 3


def test_two_models_share_a_folder_and_keep_each_other_s_records(folder, references):
    crowd = Crowd(3, 4, thin=True)
    store = folder / "models"
    with serving(folder, "narrow", store) as one:
        hold(visit(crowd.scripts, [one.url]), references, crowd)
        held = one.settled()["tiers"]["ssd"]
        # Who opens a store collects what no model needs any more: the first one's are needed.
        with serving(folder, "broad", store, "--block-tokens", "32") as other:
            others = References(other.client)
            hold(visit(crowd.scripts, [other.url]), others, crowd)
            other.settled()
            assert command(store, "gc")["parts"] == 0
            models = command(store, "stats")["models"]
            assert models.keys() == {one.status()["model"], other.status()["model"]}
            for place, cold in ((one, references), (other, others)):
                heard = visit(crowd.again(1, block=32), [place.url])
                hold(heard, cold, crowd)
        assert one.settled()["tiers"]["ssd"]["parts"] >= held["parts"]


def test_a_crowd_s_scripts_follow_from_its_seed_and_every_tenant_has_its_own():
    crowd, same, other = Crowd(1, 8), Crowd(1, 8), Crowd(2, 8)
    assert crowd.scripts == same.scripts
    assert not set(crowd.canaries) & set(other.canaries)
    assert len(set(crowd.canaries)) == 24
    tenants = {(ask.key, ask.salt) for script in crowd.scripts for ask in script}
    assert tenants == set(TENANTS)
    for tenant in TENANTS:
        told = [
            json.dumps(ask.messages)
            for script in crowd.scripts
            for ask in script
            if (ask.key, ask.salt) == tenant
        ]
        assert len(set(told)) == len(told)
    legs = {ask.leg for script in crowd.scripts for ask in script}
    assert legs == {ask.leg for script in Crowd(1, 8, thin=True).scripts for ask in script}


def answer(text="AB-123", **fields):
    receipt = {"state_digest": "d", "restored_tokens": 96, "computed_tokens": 4}
    receipt |= {"prompt_tokens": 100, "sources": {"ram": 96}, "media": []} | fields
    return Answer(text, (), receipt, 0.0, 0.0)


def test_what_is_wrong_with_an_answer_is_said():
    crowd = Crowd(1, 4)
    ask = replace(crowd.scripts[0][0], canaries=frozenset({"AB-123"}), unseen=False, pieces=None)
    fine = Heard(replace(ask, seen=16), "AB-123", answer())
    canaries = ("AB-123", "CD-456")

    def said(heard, cold=None):
        return list(faults(heard, cold or answer(), canaries))

    assert said(fine) == []
    assert said(Heard(ask, "AB", None)) == []
    assert said(Heard(ask, "CD", None))
    for cold in (answer("AB-124"), answer(state_digest="e")):
        assert said(fine, cold)
    for broken in (
        Heard(ask, "CD-456", answer("CD-456")),
        Heard(ask, "AB-123", answer(computed_tokens=5)),
        Heard(replace(ask, unseen=16), "AB-123", answer()),
        Heard(fine.ask, "AB-123", answer(restored_tokens=80, computed_tokens=20)),
        Heard(fine.ask, "AB-123", answer(media=[{"feature_hit": False}])),
    ):
        assert said(broken, answer(broken.text)), broken


@pytest.mark.parametrize("name", ["running", "idle_work", "auditing", "pending_writes"])
def test_a_server_that_still_does_anything_is_not_at_rest(name):
    rest = dict.fromkeys(("running", "idle_work", "auditing", "pending_writes"), 0)
    statuses = iter([rest | {name: 1}, rest])

    class Told:
        def wait(self, what, ready, *, timeout_s):
            return next(status for status in statuses if ready(status))

    assert wait_at_rest(Told()) == rest
