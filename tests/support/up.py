"""`extproc up` as a user starts it, for clients in other processes."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def running_up(*options: str) -> Iterator[str]:
    """The URL of its Envoy, on a free port; Ctrl-C at the end."""
    command = [sys.executable, "-m", "extproc", "up", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = next((line for line in process.stdout if line.startswith("Envoy:")), "")
            found = re.search(r"http://\S+", first)
            assert found is not None, "it has not started"
            yield found.group()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)
