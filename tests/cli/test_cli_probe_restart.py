"""``--restart-cmd``: what runs it, and what shows that the old process is gone, by real sockets."""

import asyncio
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from surefoot.cli.probe_restart import restarting
from surefoot.errors import CapacityError, SetupError
from surefoot.probe.asking import Asker
from surefoot.probe.trail import Unsettled
from surefoot.testing.broken_faults import Behaviour
from surefoot.testing.broken_server import BrokenTransport, Front, VirtualClock
from surefoot.testing.broken_wire import MODEL

# Takes one connection and holds it; ends on SIGTERM, after a while of its own if it is told to.
LINGERS = """
import signal, socket, sys, time
def end(*_):
    time.sleep(float(sys.argv[1]))
    sys.exit()
signal.signal(signal.SIGTERM, end)
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    held = listener.accept()
    while True:
        signal.pause()
"""


@contextmanager
def old_process(lingers_s=0.0):
    """Yield a process that listens, and its port."""
    command = (sys.executable, "-c", LINGERS, str(lingers_s))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def restarted(command, port, **limits):
    clock = VirtualClock()
    front = Front(None, Behaviour(), pass_time=clock.pass_time)

    async def once():
        async with Asker(
            f"http://127.0.0.1:{port}/v1",
            clock=clock.now,
            sleep=clock.pass_time,
            transport=BrokenTransport(front, clock.pass_time),
        ) as asker:
            asker.model = MODEL
            await restarting(command, asker, **limits)()

    asyncio.run(once())


def test_a_restart_command_runs_in_a_shell_and_speaks_on_stderr(tmp_path, capfd):
    with old_process() as (process, port):
        restarted(f"echo restarted && kill {process.pid} && echo done > {tmp_path}/it", port)
    assert (tmp_path / "it").read_text() == "done\n"
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "restarted\n")


def test_a_process_that_takes_its_time_to_end_is_waited_for():
    with old_process(lingers_s=0.2) as (process, port):
        restarted(f"kill {process.pid}", port)
        assert process.wait(timeout=60) == 0


def test_a_process_that_never_ended_settles_nothing():
    with old_process() as (_, port), pytest.raises(Unsettled, match="old process lives"):
        restarted("true", port, gone_s=0.05)


def test_a_process_that_speaks_before_it_ends_is_gone_all_the_same():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        speaks = (
            "import socket,sys; one,_ = socket.socket(fileno=int(sys.argv[1])).accept(); "
            "one.sendall(b'HTTP/1.1 408 Request Timeout\\r\\n\\r\\n'); one.close()"
        )
        number = listener.fileno()
        command = (sys.executable, "-c", speaks, str(number))
        with subprocess.Popen(command, pass_fds=[number]):
            restarted("true", port)


def test_a_restart_command_that_fails_is_a_setup_error():
    with (
        old_process() as (_, port),
        pytest.raises(SetupError, match=r"--restart-cmd 'exit 3' failed with exit code 3"),
    ):
        restarted("exit 3", port)


def test_a_restart_command_that_does_not_return_is_ended():
    with old_process() as (_, port), pytest.raises(SetupError, match=r"did not end in 0\.01 s"):
        restarted("exec tail -f /dev/null", port, timeout_s=0.01)


def test_a_server_that_is_gone_before_the_command_runs_cannot_be_reached(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(CapacityError, match="cannot be reached"):
        restarted(f"touch {tmp_path}/it", port)
    assert not (tmp_path / "it").exists()


def test_without_a_restart_command_there_is_nothing_to_run():
    assert restarting(None, Asker("http://broken/v1", clock=float)) is None
