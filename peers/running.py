"""Start a peer, stop it, start it anew on the same port; who runs is written down in a file.

The file is what lets another process restart a server: the probe runs a command for that, and the
command is this package's own. A server that is up has answered one request, so that what it
compiles at its first is not taken for prefill.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from peers.servers import Peer, state_folder

START_S = 300.0  # vLLM on two busy cores needs about 50
STOP_S = 30.0
POLL_S = 0.1
FIRST_ANSWER_S = 120.0
SEES_NO_LOGPROBS = 400


class PeerError(Exception):
    """A server did not start, or did not stop; the text says which, and where its log lies."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started: its process, which leads a group, and its port."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        """Where its OpenAI API lies."""
        return f"http://127.0.0.1:{self.port}/v1"


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start(peer: Peer, home: Path, port: int) -> Running:
    """Start ``peer`` with no state from before, and return once it answers.

    Raises:
        PeerError: it runs already, ended, or did not answer in time.
    """
    if _record_file(peer, home).exists() and _alive(_recorded(peer, home).pid):
        raise PeerError(f"{peer.name} runs already: python -m peers stop {peer.name}")
    shutil.rmtree(state_folder(home, peer.name), ignore_errors=True)
    log_file(home, peer.name).unlink(missing_ok=True)
    return _launch(peer, home, port)


def restart(peer: Peer, home: Path) -> Running:
    """Stop ``peer`` and start it on its port and its state; return once it answers.

    Raises:
        PeerError: it does not run, does not stop, or does not come back.
    """
    port = _recorded(peer, home).port
    stop(peer, home)
    return _launch(peer, home, port)


def stop(peer: Peer, home: Path) -> None:
    """Stop ``peer`` and all that it started; what does not end in time is killed.

    Raises:
        PeerError: it was never started, or cannot even be killed.
    """
    pid = _recorded(peer, home).pid
    _signal(pid, signal.SIGTERM)
    if not _within(STOP_S, lambda: not _alive(pid)):
        _signal(pid, signal.SIGKILL)
        if not _within(STOP_S, lambda: not _alive(pid)):
            raise PeerError(f"{peer.name} (process {pid}) cannot be stopped")
    with suppress(ChildProcessError):  # it may be another's child
        os.waitpid(pid, os.WNOHANG)
    # Workers that outlived it. Of a group of zombies macOS says that it is not permitted.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _record_file(peer, home).unlink(missing_ok=True)


def log_file(home: Path, name: str) -> Path:
    """Return where a peer's output goes."""
    return home / "logs" / f"{name}.log"


def _launch(peer: Peer, home: Path, port: int) -> Running:
    log = log_file(home, peer.name)
    for folder in (log.parent, _record_file(peer, home).parent, state_folder(home, peer.name)):
        folder.mkdir(parents=True, exist_ok=True)
    running = Running(_spawn(peer.argv(home, port), os.environ | peer.variables, log), port)
    _record_file(peer, home).write_text(json.dumps(asdict(running)))
    with httpx.Client(trust_env=False) as client:
        if not _within(START_S, lambda: not _alive(running.pid) or _healthy(client, running)):
            stop(peer, home)
            raise PeerError(f"{peer.name} did not answer within {START_S:.0f} s; see {log}")
        if not _alive(running.pid):
            _record_file(peer, home).unlink()
            raise PeerError(f"{peer.name} ended while it started; see {log}")
        _answer_once(client, running)
    return running


def _spawn(argv: list[str], environment: Mapping[str, str], log: Path) -> int:
    """Start a process that leads a group and may outlive us, which a ``Popen`` would deplore."""
    return os.posix_spawnp(
        argv[0],
        argv,
        environment,
        file_actions=(
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ),
        setpgroup=0,
    )


def _healthy(client: httpx.Client, running: Running) -> bool:
    try:
        return client.get(f"{running.url.removesuffix('/v1')}/health").is_success
    except httpx.TransportError:
        return False


def _answer_once(client: httpx.Client, running: Running) -> None:
    model = client.get(f"{running.url}/models").json()["data"][0]["id"]
    hello = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hello."}]}
    for more in ({"logprobs": True, "top_logprobs": 5}, {}):
        answer = client.post(
            f"{running.url}/chat/completions", json=hello | more, timeout=FIRST_ANSWER_S
        )
        if answer.status_code != SEES_NO_LOGPROBS:
            answer.raise_for_status()
            return


def _record_file(peer: Peer, home: Path) -> Path:
    return home / "running" / f"{peer.name}.json"


def _recorded(peer: Peer, home: Path) -> Running:
    try:
        return Running(**json.loads(_record_file(peer, home).read_text()))
    except FileNotFoundError:
        raise PeerError(f"{peer.name} does not run") from None


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _alive(pid: int) -> bool:
    # Asked of ps, since a process that ended stays a zombie until whoever started it looks.
    state = subprocess.run(
        ("ps", "-o", "stat=", "-p", str(pid)), capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


def _within(seconds: float, come_true: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not come_true():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
