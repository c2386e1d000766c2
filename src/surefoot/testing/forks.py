"""Processes that start in milliseconds, to be killed: forks of one that has imported everything.

A template is a process without threads that has imported what its children run and computed
nothing. At a word it forks, and the child goes on as a fresh process would: with arguments, an
output file, and no way to answer but what it leaves behind. When the template's own input ends, so
do its children.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, NoReturn


class Template:
    """A template process; use as a context manager, from any thread.

    Args:
        module: what the template runs: a module whose ``__main__`` is a call of ``breed``.
    """

    def __init__(self, module: str) -> None:
        self._command = [sys.executable, "-m", module]
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def __enter__(self) -> "Template":
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()

    def fork(self, arguments: Sequence[str], output: Path) -> int:
        """Start a child and return its process id; ``output`` gets what it prints."""
        return self._order({"arguments": list(arguments), "output": str(output)})

    def ended(self, pid: int) -> bool:
        """Whether a child that was not reaped has ended."""
        return bool(self._order({"ended": pid}))

    def reap(self, pid: int) -> int:
        """Wait until a child has ended; return its exit code, or minus the signal that ended it."""
        return self._order({"reap": pid})

    def kill(self, pid: int) -> int:
        """End a child without a word (SIGKILL); on return it is gone, and its locks are free."""
        os.kill(pid, signal.SIGKILL)
        return self.reap(pid)

    def _order(self, order: dict[str, Any]) -> int:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())


def breed(run: Callable[[list[str]], None]) -> None:
    """Be a template: for every order on standard input, fork a child that runs ``run``."""
    children: set[int] = set()
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        if "ended" in order:
            answer = int(_has_ended(order["ended"]))
        elif "reap" in order:
            pid, status = os.waitpid(order["reap"], 0)
            children.discard(pid)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if not answer:
                _live(run, order["arguments"], order["output"])
            children.add(answer)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _live(run: Callable[[list[str]], None], arguments: list[str], output: str) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    code = 1
    try:
        run(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - a child must never go on as its template
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
