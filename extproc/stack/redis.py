"""A redis-server (or valkey-server) of the stack's own, in memory only, on a free port of this machine."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from extproc.stack.process import ChildProcess, StackError

_HOST = "127.0.0.1"


def redis_binary() -> str:
    """Path of `redis-server` or `valkey-server`. Raises StackError when neither is installed."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise StackError("several replicas need redis-server or valkey-server: apt install redis-server")
    return found


def redis_child(port: int, directory: Path) -> ChildProcess:
    """Not started yet. What it holds is gone when it ends: credits are leased for seconds only."""
    argv = [redis_binary(), "--port", str(port), "--bind", _HOST, "--dir", str(directory)]
    argv += ["--save", "", "--appendonly", "no"]
    return ChildProcess("redis", argv, directory / "redis.log")


def redis_url(port: int) -> str:
    return f"redis://{_HOST}:{port}/0"


def answers_ping(port: int) -> bool:
    """True when a Redis answers there."""
    try:
        with socket.create_connection((_HOST, port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False
