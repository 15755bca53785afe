"""Child processes that never outlive us: own process group, log in a file, readiness by polling.

It knows nothing of what the children are. A child is killed by the kernel when the thread that started it
dies (parent-death signal), so start children from a thread that lives as long as they should.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from extproc.clock import Clock, SystemClock
from extproc.errors import ExtprocError

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02
_LIBC = ctypes.CDLL(None, use_errno=True)


class StackError(ExtprocError):
    """A process of the local stack did not start, or died; the message ends with its last log lines."""


class ChildProcess:
    """One child with its log file; `start`, `wait_until`, `stop`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._env = None if env is None else {**os.environ, **env}
        self._clock = clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id. Raises StackError when it was never started."""
        if self._process is None:
            raise StackError(f"{self.name} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start in its own session, so that a Ctrl-C in the terminal reaches us alone."""
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

        with self.log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                raise StackError(f"{self.name} cannot be started ({self._argv[0]}): {error}") from error

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Return once `is_ready()`. Raises StackError when the child ends first or the time is up."""
        assert self._process is not None
        deadline = self._clock.now() + timeout_s
        while not is_ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(_POLL_S)
                raise StackError(f"{self.name} ended with status {status}\n{self.tail()}")
            if self._clock.now() > deadline:
                raise StackError(f"{self.name} was not ready within {timeout_s:g} s\n{self.tail()}")

    def wait(self, timeout_s: float) -> int | None:
        """Exit status, or None when it still runs after `timeout_s`."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole group; nothing happens when it has ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self, *, grace_s: float = 5.0) -> int | None:
        """SIGTERM, then SIGKILL after `grace_s`; returns the exit status (None: never started)."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
            if self.wait(grace_s) is None:
                self.signal(signal.SIGKILL)
        status = self._process.wait()
        self.signal(signal.SIGKILL)  # whatever the child itself may have left in its group
        return status

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return ""
        text = self.log.read_bytes()[-16384:].decode("utf-8", "replace")
        return "\n".join(f"  {self.name}| {line}" for line in text.splitlines()[-lines:])


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Distinct ports free at this moment; they are probed together so that none is given twice."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def answers_http(host: str, port: int, path: str) -> bool:
    """True when a GET is answered with 2xx."""
    connection = http.client.HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("GET", path)
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def accepts_connections(host: str, port: int) -> bool:
    """True when something listens on the port."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
