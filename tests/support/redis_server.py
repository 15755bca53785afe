"""A real redis-server of the test's own, on a free port; it can be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path


def find_redis_server() -> str | None:
    """The server's binary: Debian's `redis-server` or `valkey-server`."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """With the append-only file, so that a killed server keeps what it acknowledged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, timeout_s: float = 20.0) -> None:
        binary = find_redis_server()
        assert binary is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        options += ["--appendonly", "yes", "--save", "", "--logfile", str(self._folder / "redis.log")]
        self._process = subprocess.Popen(
            [binary, *options], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "redis-server did not answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def kill(self) -> None:
        """End it without warning."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it from answering."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a paused server answer again."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
