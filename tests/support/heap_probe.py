"""How much memory is in use inside a server of another process, to the byte: run it through this module.

`python -m tests.support.heap_probe REPORT -m MODULE ARGUMENTS...` runs the module and appends a line to the
file REPORT at each SIGUSR1. What the process holds resident would tell too late, and by megabytes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from extproc.stack.process import ChildProcess


class Heap(NamedTuple):
    """`malloc_bytes` is what C code holds by malloc; `python_blocks` counts Python's small objects."""

    malloc_bytes: int
    python_blocks: int


_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)
"""Of the C library's mallinfo2, in its order."""


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def is_available() -> bool:
    """Whether the C library can tell (glibc 2.33 and newer)."""
    return hasattr(ctypes.CDLL(None), "mallinfo2")


def probed(report: Path, *argv: str) -> list[str]:
    """The command line that runs `python -m argv...` with the probe."""
    return [sys.executable, "-m", "tests.support.heap_probe", str(report), *argv]


def read_settled_heap(child: ChildProcess, report: Path) -> Heap:
    """What is in use once nothing is being finished any more. Raises TimeoutError when that never comes."""
    before = read_heap(child, report)
    for _ in range(200):
        now = read_heap(child, report)
        if now == before:
            return now
        before = now
    raise TimeoutError("the memory in use never came to rest")


def read_heap(child: ChildProcess, report: Path) -> Heap:
    """Ask the process now."""
    before = _lines(report)
    os.kill(child.pid, signal.SIGUSR1)
    child.wait_until(lambda: len(_lines(report)) > len(before), timeout_s=10)
    malloc_bytes, python_blocks = _lines(report)[-1].split()
    return Heap(int(malloc_bytes), int(python_blocks))


def _lines(report: Path) -> list[str]:
    text = report.read_text() if report.exists() else ""
    return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]


def _main() -> None:
    report, module = Path(sys.argv[1]), sys.argv[2]
    measure = ctypes.CDLL(None).mallinfo2
    measure.restype = _MallInfo

    def write(_number: int, _frame: object) -> None:
        gc.collect()
        with report.open("a") as file:
            file.write(f"{measure().uordblks} {sys.getallocatedblocks()}\n")

    signal.signal(signal.SIGUSR1, write)
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
