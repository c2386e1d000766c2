"""What a server is given."""

from scripted import ScriptedBackend, ScriptedTurns, config

from surefoot.scheduler import Turns
from surefoot.server.config import Backend


def test_answers_are_dated_in_whole_seconds():
    assert config().now() == 1_800_000_000
    assert config(wall_clock=None).now() == config().created


def test_the_scripted_backend_is_one():
    backend: Backend = ScriptedBackend(ScriptedTurns())
    turns: Turns | None = backend.turns
    assert turns is not None
