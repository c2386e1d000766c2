"""``surefoot probe``: exit codes, what is printed where, and that no key is, however a run ends."""

import json
from xml.etree import ElementTree

import httpx
import pytest
from rich.console import Console

from surefoot.cli import app, exits, probe_command
from surefoot.cli.probe_command import (
    INTERRUPTED,
    ProbeArguments,
    base_url,
    probe_server,
)
from surefoot.cli.probe_table import ProbeTable
from surefoot.errors import CapacityError, RequestError, SetupError
from surefoot.probe.asking import Asker
from surefoot.probe.run import EVERY_LEG
from surefoot.probe.trail import Unsettled
from surefoot.probe.verdicts import EXIT_CODES, Evidence, LegReport, ProbeReport, Shown, Verdict
from surefoot.testing.broken_faults import Behaviour, Fault
from surefoot.testing.broken_server import BrokenTransport, Front, VirtualClock
from surefoot.testing.broken_wire import MODEL

KEY = "sk-very-secret-key"
NAMES = [leg.name for leg in EVERY_LEG]


class Echo(httpx.AsyncBaseTransport):
    """Puts a key into the model's name, into every answer, and into every refusal."""

    def __init__(self, inner):
        self.inner = inner

    async def handle_async_request(self, request):
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": f"model-{KEY}"}]})
        body = json.loads(await request.aread())
        assert body["model"] == f"model-{KEY}"
        known = httpx.Request(
            "POST",
            request.url,
            json=body | {"model": MODEL},
            headers={"authorization": request.headers["authorization"]},
            extensions=request.extensions,
        )
        response = await self.inner.handle_async_request(known)
        content = await response.aread()
        if response.status_code != 200:
            return httpx.Response(400, json={"error": {"message": f"no {KEY}"}})
        said = content.replace(b'"content": "', f'"content": "{KEY} '.encode())
        said = said.replace(b'"content":"', f'"content":"{KEY} '.encode())
        return httpx.Response(200, headers=response.headers, content=said)


class Stops(httpx.AsyncBaseTransport):
    """Raises what it is given once so many requests were answered."""

    def __init__(self, inner, after, error):
        self.inner, self.left, self.error = inner, after, error

    async def handle_async_request(self, request):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return await self.inner.handle_async_request(request)


def connecting(fault=None, behaviour=None, around=lambda inner: inner):
    """Return what connects to a broken server in virtual time."""
    clock = VirtualClock()
    front = Front(fault, behaviour or Behaviour(), pass_time=clock.pass_time)
    transport = around(BrokenTransport(front, clock.pass_time))

    def connect(url, keys):
        return Asker(url, keys=keys, clock=clock.now, sleep=clock.pass_time, transport=transport)

    return connect


def probed(connect, **fields):
    known = {"url": "http://broken", "seed": 7, "legs": "fork"}
    return probe_server(ProbeArguments(**(known | fields)), connect=connect)


# --- the URL -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host:8000/v1", "http://host:8000/v1"),
        (" http://host:8000/v1/ ", "http://host:8000/v1"),
        ("http://host/v1/chat/completions", "http://host/v1"),
        ("https://host/proxy", "https://host/proxy/v1"),
        ("https://host/v1beta/openai/", "https://host/v1beta/openai"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_a_url_is_taken_in_every_spelling(typed, url):
    assert base_url(typed) == url


@pytest.mark.parametrize(
    "typed",
    [
        f"http://user:{KEY}@host/v1",
        f"http://{KEY}@host/v1",
        f"http://host/v1?key={KEY}",
        f"http://host/v1#{KEY}",
        f"ftp://host/{KEY}",
        f"host:8000/{KEY}",
        f"http:///{KEY}",
        f"http://host:{KEY}",
        "http://127.0.0.1:99999/v1",
        "http://xn--/v1",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_not_repeated(typed):
    with pytest.raises(SetupError) as refused:
        base_url(typed)
    assert KEY not in str(refused.value)
    assert "http://host:port/v1" in str(refused.value) or "--api-key" in str(refused.value)


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing argument"),
        (["nowhere"], "names no server"),
        (["http://h", "--legs", "fork,nonsense"], "no leg 'nonsense': choose from boundaries, "),
        (["http://h", "--legs", ","], "names no leg"),
        (["http://h", "--budget-tokens", "0"], "--budget-tokens 0 is too small"),
        (["http://h", "--budget-seconds", "inf"], "--budget-seconds inf is endless"),
        (["http://h", "--error-rate", "0"], "--error-rate 0.0 must be above 0"),
        (["http://h", "--error-rate", "nan"], "--error-rate nan must be above 0"),
        (["http://h", "--error-rate", "0.6"], "and at most 0.5"),
        (["http://h", "--seed", "-1"], "--seed -1 is too small"),
        (["http://h", "--model", "\udcff"], "--model is no text"),
        (["http://h", "--api-key", ""], "--api-key is empty"),
        (["http://h", "--api-key", "a\nb"], "a character that no header can"),
        (["http://h", "--html", "/nowhere/at/all.html"], "--html /nowhere/at/all.html cannot be"),
        (["http://h", "--junit", "/"], "--junit / cannot be written"),
    ],
)
def test_a_mistake_is_a_usage_error_before_anything_is_asked(arguments, says, capsys, monkeypatch):
    monkeypatch.delenv("SUREFOOT_API_KEY", raising=False)
    assert app.run(["probe", *arguments]) == exits.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert says in said
    assert "Traceback" not in said


def test_the_command_passes_on_what_was_typed(monkeypatch, tmp_path):
    heard = []
    monkeypatch.setattr(probe_command, "probe_server", lambda given: heard.append(given) or 4)
    typed = ["--model", "m", "--api-key", "a", "--api-key", "b", "--legs", "fork", "--json"]
    typed += [
        "--restart-cmd",
        "true",
        "--html",
        str(tmp_path / "a"),
        "--junit",
        str(tmp_path / "b"),
    ]
    typed += ["--seed", "3", "--budget-tokens", "9", "--budget-seconds", "8", "--error-rate", "0.1"]
    assert app.run(["probe", "http://h", *typed]) == 4
    assert heard == [
        ProbeArguments(
            "http://h", ("a", "b"), "m", "fork", "true", True, tmp_path / "a", tmp_path / "b",
            3, 9, 8.0, 0.1,
        )
    ]  # fmt: skip


def test_a_key_comes_from_the_environment_as_it_does_for_serve(monkeypatch):
    heard = []
    monkeypatch.setattr(probe_command, "probe_server", lambda given: heard.append(given) or 0)
    monkeypatch.setenv("SUREFOOT_API_KEY", "one two")
    assert app.run(["probe", "http://h"]) == 0
    assert heard == [ProbeArguments("http://h", ("one", "two"))]


# --- a run ---------------------------------------------------------------------------------------


def test_a_clean_server_exits_0_and_a_contaminated_one_1(capsys):
    assert probed(connecting()) == 0
    clean = capsys.readouterr().out
    assert "CLEAN  http://broken/v1, broken;" in clean
    assert "exit 0: state was reused" in clean
    assert probed(connecting(Fault.DONOR_LENGTH)) == 1
    dirty = capsys.readouterr().out
    for words in ("the accused request: B1", "the other request: A1", "answer ", "right is "):
        assert words in dirty
    assert "exit 1: an answer came from what only another request had" in dirty
    assert "\x1b" not in clean + dirty


def test_it_is_read_on_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    probed(connecting(Fault.DONOR_LENGTH), legs="fork,image-removed,keys")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > 30


def test_json_is_one_object_on_stdout_and_progress_on_stderr(capsys):
    assert probed(connecting(), as_json=True) == 0
    said = capsys.readouterr()
    value = json.loads(said.out)
    assert {"verdict", "server", "model", "seed", "tokens", "seconds", "legs"} <= set(value)
    assert (value["verdict"], value["seed"]) == ("CLEAN", 7)
    assert [leg["name"] for leg in value["legs"]] == ["fork"]
    assert "CLEAN         fork" in said.err
    assert "exit 0" in said.err


def test_a_drawn_seed_is_printed_and_differs(capsys):
    seeds = set()
    for _ in range(2):
        probed(connecting(), as_json=True, seed=None)
        said = capsys.readouterr()
        seed = json.loads(said.out)["seed"]
        assert f"with seed {seed}\n" in said.err
        seeds.add(seed)
    assert len(seeds) == 2


def test_the_page_and_the_xml_are_written(tmp_path):
    page, xml = tmp_path / "a.html", tmp_path / "a.xml"
    assert probed(connecting(Fault.DONOR_LENGTH), html=page, junit=xml) == 1
    assert "the accused request: B1" in page.read_text(encoding="utf-8")
    suite = ElementTree.fromstring(xml.read_bytes()).find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")


def test_a_file_that_cannot_be_written_is_said_after_the_verdict(tmp_path, capsys):
    page = tmp_path / "a.html"

    def connect(url, keys):
        page.mkdir()  # after the flags were checked
        return connecting()(url, keys)

    with pytest.raises(SetupError, match=r"--html .* cannot be written: "):
        probed(connect, html=page)
    assert "exit 0" in capsys.readouterr().out


def test_what_can_be_written_is_though_another_cannot(tmp_path):
    page, xml = tmp_path / "a.html", tmp_path / "a.xml"

    def connect(url, keys):
        page.mkdir()
        return connecting()(url, keys)

    with pytest.raises(SetupError, match="--html"):
        probed(connect, html=page, junit=xml)
    assert ElementTree.parse(xml).find("testsuite").get("tests") == "1"


def test_no_key_is_in_anything_that_comes_out(tmp_path, capsys):
    page, xml = tmp_path / "a.html", tmp_path / "a.xml"
    for as_json in (False, True):
        probed(connecting(around=Echo), keys=(KEY,), as_json=as_json, html=page, junit=xml)
        said = capsys.readouterr()
        shown = (said.out, said.err, page.read_text(), xml.read_text())
        assert not [text for text in shown if KEY in text]
        assert all("model-[key]" in text for text in shown[2:])
        assert "model-[key]" in said.out
    assert "[key] " in page.read_text()


def test_no_key_is_in_what_is_told_on_the_way(monkeypatch, capsys):
    async def run_probe(asker, options, watch):
        watch.learned("model", f"m-{KEY}")
        raise Unsettled(f"ended by {KEY}")

    monkeypatch.setattr(probe_command, "run_probe", run_probe)
    assert probed(connecting(), keys=(KEY,)) == 4
    said = capsys.readouterr().out
    assert KEY not in said
    assert "m-[key]" in said
    assert "exit 4: ended by [key]. The legs that ended stand" in said


def test_no_key_is_in_an_error():
    def refusing(inner):
        return Stops(inner, 0, httpx.ConnectError(f"no {KEY}"))

    with pytest.raises(CapacityError, match=r"no \[key\]"):
        probed(connecting(around=refusing), keys=(KEY,))
    behaviour = Behaviour(api_keys=("other",))
    with pytest.raises(RequestError) as refused:
        probed(connecting(behaviour=behaviour), keys=(KEY,), url=f"http://{KEY}/v1")
    assert KEY not in str(refused.value)


# --- a run that is cut short ---------------------------------------------------------------------

ALL_OF_FORK = 60  # requests: more than the acquaintance and the fork leg, less than with the next


def cut_short(error, **fields):
    stops = connecting(around=lambda inner: Stops(inner, ALL_OF_FORK, error))
    return probed(stops, legs="fork,sessions,edits", as_json=True, **fields)


def test_ctrl_c_reports_the_legs_that_ended_and_exits_130(capsys, tmp_path):
    xml = tmp_path / "a.xml"
    assert cut_short(KeyboardInterrupt(), junit=xml) == INTERRUPTED
    said = capsys.readouterr()
    value = json.loads(said.out)
    assert [leg["verdict"] for leg in value["legs"]] == ["CLEAN", "INCONCLUSIVE", "INCONCLUSIVE"]
    assert value["verdict"] == "INCONCLUSIVE"
    assert value["tokens"] > 0
    assert (
        "exit 130: the run was stopped; a whole one settles it. The legs that ended stand"
        in said.err
    )
    assert ElementTree.parse(xml).find("testsuite").get("errors") == "2"


def test_an_error_after_a_leg_ended_does_not_lose_that_leg(capsys):
    with pytest.raises(SetupError, match=r"restart \[key\]"):
        cut_short(SetupError(f"restart {KEY}"), keys=(KEY,))
    said = capsys.readouterr()
    legs = json.loads(said.out)["legs"]
    assert legs[0]["verdict"] == "CLEAN"
    assert legs[1]["reason"] == "it did not end: restart [key]"
    assert KEY not in said.out + said.err
    assert "exit " not in said.err


def unreachable():
    return connecting(around=lambda inner: Stops(inner, 0, httpx.ConnectError("no")))


def test_an_error_before_any_leg_ended_still_makes_one_object(capsys, tmp_path):
    xml = tmp_path / "a.xml"
    with pytest.raises(CapacityError, match="cannot be reached"):
        probed(unreachable(), legs="fork,edits", as_json=True, junit=xml)
    value = json.loads(capsys.readouterr().out)
    assert value["verdict"] == "INCONCLUSIVE"
    assert [leg["name"] for leg in value["legs"]] == ["fork", "edits"]
    assert all("cannot be reached" in leg["reason"] for leg in value["legs"])
    assert ElementTree.parse(xml).find("testsuite").get("errors") == "2"


def test_an_error_before_any_leg_ended_prints_no_table(capsys):
    with pytest.raises(CapacityError, match="cannot be reached"):
        probed(unreachable())
    assert "INCONCLUSIVE" not in capsys.readouterr().out


def test_a_budget_that_ends_before_the_first_leg_is_inconclusive(capsys):
    assert probed(connecting(), budget_tokens=1, as_json=True) == 4
    value = json.loads(capsys.readouterr().out)
    assert value["legs"][0]["verdict"] == "INCONCLUSIVE"
    assert "--budget-tokens" in value["legs"][0]["reason"]


# --- the terminal --------------------------------------------------------------------------------


def test_no_answer_moves_the_cursor(capsys):
    evil = "\x1b[2J\x1b]0;title\x07red\r\n\u202eabc \ud7ff"
    request = {"messages": [{"role": evil, "content": evil}], evil: evil}
    seen = Shown(evil, request, evil, {"role": "warm", "expected": evil})
    found = Evidence(Verdict.WRONG, evil, (seen, seen))
    one = LegReport("fork", evil, Verdict.WRONG, evil, evidence=(found, found))
    table = ProbeTable(Console(), ["fork"])
    table.start(evil, 7)
    table.learned(evil, evil)
    table.ended(one)
    told = ProbeReport(evil, evil, 7, (one,), (), 1, 1.0)
    table.report(told)
    table.close(told, 1, evil)
    said = capsys.readouterr().out
    assert all(letter.isprintable() or letter == "\n" for letter in said)
    assert said.count("\\x1b[2J") >= 8


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_has_a_colour_and_a_closing_sentence(verdict, capsys):
    table = ProbeTable(Console(force_terminal=True, color_system="standard"), ["fork"])
    one = LegReport("fork", "t", verdict, "because")
    told = ProbeReport("http://s/v1", "", 7, (one,), (), 1, 1.0)
    table.ended(one)
    table.report(told)
    table.close(told, EXIT_CODES[told.verdict])
    said = capsys.readouterr().out
    assert f"{verdict}" in said
    assert "\x1b[" in said
    assert f"exit {EXIT_CODES[told.verdict]}: " in said
    assert "model not known" in said
