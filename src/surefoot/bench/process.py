"""A server in a process of its own, started and stopped as a user would."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from surefoot.bench.client import Client, wait_healthy
from surefoot.errors import EngineError

START_TIMEOUT_S = 300.0  # the first start of a GGUF model expands its weights
STOP_TIMEOUT_S = 20.0
_URL = re.compile(r"http://[0-9.]+:\d+")


class ServerProcess:
    """``surefoot serve MODEL ...`` on a free port of this machine; use as a context manager."""

    def __init__(self, model: str, log: Path, flags: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "surefoot", "serve", model, "--port", "0", *flags]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._client: Client | None = None

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def client(self) -> Client:
        """A client of this server."""
        assert self._client is not None
        return self._client

    def __enter__(self) -> "ServerProcess":
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        url = self._read_url(self._process)
        try:
            wait_healthy(url, lambda: self._poll() is None, timeout_s=START_TIMEOUT_S)
        except EngineError as error:
            self.__exit__(None, None, None)
            raise EngineError(f"{error}; its last words: {self._last_words()}") from error
        self._client = Client(url)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            self._client.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _poll(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def _read_url(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        for line in process.stdout:
            match = _URL.search(line)
            if match:
                return match[0]
        process.wait()
        process.stdout.close()
        raise EngineError(f"the server did not start: {self._last_words()}")

    def _last_words(self) -> str:
        return " ".join(self._log.read_text(errors="replace").strip().splitlines()[-3:])
