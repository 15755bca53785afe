"""Children start, are told apart when they fail, and never outlive their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from extproc.stack.process import ChildProcess, StackError, free_ports

UP = "print('up', flush=True); time.sleep(60)"
SLEEPER = [sys.executable, "-c", f"import time; {UP}"]
STUBBORN = [
    sys.executable,
    "-c",
    f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {UP}",
]
PARENT = """
import sys
from pathlib import Path
from extproc.stack.process import ChildProcess
argv = [sys.executable, "-c", "import time; time.sleep(60)"]
child = ChildProcess("child", argv, Path(sys.argv[1]) / "log")
child.start()
print(child.pid, flush=True)
sys.stdin.read()
"""


def is_gone(pid: int) -> bool:
    """True once `pid` has ended (a zombie that waits for its reaper has)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def wait_gone(pid: int, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_gone(pid)


def started(argv: list[str], log: Path) -> ChildProcess:
    child = ChildProcess("child", argv, log)
    child.start()
    child.wait_until(lambda: "up" in child.tail(), timeout_s=20)
    return child


def test_stop_ends_a_polite_child_with_sigterm(tmp_path: Path) -> None:
    child = started(SLEEPER, tmp_path / "log")
    assert child.stop() == -signal.SIGTERM
    assert not child.is_running


def test_stop_kills_a_stubborn_child(tmp_path: Path) -> None:
    child = started(STUBBORN, tmp_path / "log")
    assert child.stop(grace_s=0.05) == -signal.SIGKILL


def test_a_child_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    child = ChildProcess(
        "child", [sys.executable, "-c", "raise SystemExit('no such model')"], tmp_path / "log"
    )
    child.start()
    with pytest.raises(StackError, match=r"status 1\n.*no such model"):
        child.wait_until(lambda: False, timeout_s=20)


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="no-such-command"):
        ChildProcess("child", ["no-such-command"], tmp_path / "log").start()


def test_children_die_when_the_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not is_gone(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert wait_gone(child)
    for pipe in (parent.stdin, parent.stdout):
        assert pipe is not None
        pipe.close()


def test_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20
