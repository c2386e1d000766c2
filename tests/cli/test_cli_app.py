"""The command line: exit codes, one sentence per mistake, and help that the page repeats."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot import errors
from surefoot.cli import app, exits
from surefoot.cli.exits import EXIT_CODES, exit_code
from surefoot.errors import CapacityError, RequestError, SetupError, SurefootError

PAGE = Path(__file__).parents[2] / "docs" / "CLI.md"
COMMANDS = (
    (),
    ("serve",),
    ("demo",),
    ("bench",),
    ("probe",),
    ("cache",),
    ("cache", "stats"),
    ("cache", "ls"),
    ("cache", "verify"),
    ("cache", "gc"),
    ("cache", "audit"),
    ("cache", "quarantine"),
    ("cache", "purge"),
    ("cache", "capture"),
    ("cache", "explain"),
)


def error_classes():
    return [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, SurefootError)
    ]


def test_every_error_class_has_an_exit_code_of_its_own():
    assert set(error_classes()) == set(EXIT_CODES)


def test_an_error_exits_by_its_nearest_class():
    class Odd(SetupError):
        """Not in the table."""

    assert exit_code(Odd("x")) == exits.USAGE
    assert exit_code(RequestError("x")) == exits.USAGE
    assert exit_code(CapacityError("x")) == exits.TRY_AGAIN


def test_an_error_is_one_sentence_and_its_exit_code(monkeypatch, capsys):
    def fails(**_):
        raise CapacityError("the disk is full")

    monkeypatch.setattr(app, "app", lambda args: fails())
    assert app.run(["serve", "x"]) == exits.TRY_AGAIN
    assert capsys.readouterr().err == "surefoot: the disk is full\n"


def test_a_bug_is_shown_whole_and_exits_70(monkeypatch, capsys):
    def fails():
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(app, "app", lambda args: fails())
    assert app.run([]) == exits.INTERNAL
    said = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in said
    assert "please report" in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version"], 0),
        (["nonsense"], 2),
        (["serve"], 2),
        (["serve", "x", "--port", "many"], 2),
        (["serve", "x", "--threads", "0"], 2),
        (["serve", "x", "--block-tokens", "0"], 2),
        (["serve", "x", "--image-urls", "private"], 2),
        (["serve", "x", "--max-images", "0"], 2),
        (["serve", "x", "--audit-share", "1.5"], 2),
        (["serve", "x", "--audit-share", "little"], 2),
        (["cache", "audit", "--store", "/nowhere/at/all"], 2),
        (["serve", "x", "--image-bytes", "0"], 2),
        (["serve", "x", "--image-bytes", "much"], 2),
        (["serve", "x", "--image-pixels", "0"], 2),
        (["serve", "x", "--feature-ram-bytes", "-1"], 2),
        (["serve", "x", "--feature-ssd-bytes", "some"], 2),
        (["cache", "stats", "--store", "/nowhere/at/all"], 2),
        (["cache", "verify", "--store", "off"], 2),
        (["bench", "nonsense"], 2),
        (["demo", "--calls", "0"], 2),
    ],
)
def test_arguments_exit_as_they_should(arguments, code, capsys):
    assert app.run(arguments) == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert said.out or said.err


def test_an_empty_store_is_shown_and_tended(tmp_path, capsys):
    (tmp_path / "records").mkdir()
    said = {}
    for command in ("stats", "ls", "verify", "gc"):
        assert app.run(["cache", command, "--store", str(tmp_path), "--json"]) == 0, command
        said[command] = capsys.readouterr().out
    assert json.loads(said["stats"])["parts"] == 0
    assert said["ls"] == ""
    assert json.loads(said["verify"])["corrupt"] == 0
    assert json.loads(said["gc"])["parts"] == 0


def rendered():
    """Return the page: every command's help, at a fixed width, without colour."""
    env = os.environ | {"COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb", "HOME": "/home/you"}
    parts = ["# Command line", "", "Printed by `surefoot --help` and its commands.", ""]
    for command in COMMANDS:
        run = [sys.executable, "-m", "surefoot", *command, "--help"]
        text = subprocess.run(run, capture_output=True, text=True, env=env, check=True).stdout
        text = re.sub(r"[ \t]+\n", "\n", text).replace("python -m surefoot", "surefoot").strip()
        parts += [f"## {' '.join(('surefoot', *command))}", "", "```", text, "```", ""]
    return "\n".join(parts)


def test_the_page_says_what_the_commands_say():
    found = rendered()
    if os.environ.get("SUREFOOT_WRITE_DOCS"):
        PAGE.write_text(found)
    assert PAGE.read_text() == found, "run this test with SUREFOOT_WRITE_DOCS=1 to renew the page"


def test_torch_is_not_imported_to_refuse_a_mistake():
    script = (
        "import sys\n"
        "from surefoot.cli.app import run\n"
        "assert run(['serve', 'x', '--port', '99999999']) == 2\n"
        "assert run(['cache', 'stats', '--store', '/nowhere']) == 2\n"
        "print('torch' in sys.modules)\n"
    )
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
