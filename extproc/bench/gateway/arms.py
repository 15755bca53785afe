"""The four set-ups that are compared, each with its own Envoy: started together, measured in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extproc.stack.envoy import EnvoySettings, ProcessingMode
from extproc.stack.local import HOST, LocalStack
from extproc.stack.process import accepts_connections

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

OUR_CONFIG: dict[str, Any] = {
    "flow_control": {"detector": {"type": "concurrency-detector", "max_concurrency": 100_000}},
    "endpoints": {"scrape": {"enabled": False}},
}
"""Everything at its default, but for a pool that never fills and no scraping of the canned server."""


class NoopStack(LocalStack):
    """Envoy with the processor that does nothing in the place of ours."""

    def spawn_extproc(self, index: int = 0) -> None:
        port = self.extproc_ports[index]
        argv = [sys.executable, "-m", "extproc.bench.gateway.noop", str(port), self.endpoints[0]]
        self._spawn(self.extproc_name(index), argv)

    def wait_extproc(self, index: int = 0) -> None:
        port = self.extproc_ports[index]
        child = self.child(self.extproc_name(index))
        child.wait_until(lambda: accepts_connections(HOST, port), timeout_s=30)


@dataclass(slots=True)
class Arm:
    """One set-up. `has_processor` False: Envoy alone."""

    name: str
    stack: LocalStack
    has_processor: bool = True
    failures: int = field(default=0)

    def cpu_s(self, child: str) -> float:
        """CPU seconds that the living threads of a child have used so far, to the nanosecond."""
        threads = Path(f"/proc/{self.stack.child(child).pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def rss_mib(self) -> float:
        """Resident memory of the processor."""
        pages = int(Path(f"/proc/{self.stack.child('extproc').pid}/statm").read_text().split()[1])
        return pages * _PAGE_BYTES / 2**20


def build_arms(model_port: int, names: Sequence[str]) -> list[Arm]:
    """The arms by name: `envoy`, `noop`, `lean`, `duplex`."""
    return [_build(name, f"{HOST}:{model_port}") for name in names]


def _build(name: str, model: str) -> Arm:
    mode = ProcessingMode.FULL_DUPLEX if name == "duplex" else ProcessingMode.LEAN
    settings = EnvoySettings(listen_host=HOST, listen_port=0, admin_port=0, mode=mode)
    stack_type = NoopStack if name == "noop" else LocalStack
    config = None if name == "envoy" else OUR_CONFIG
    stack = stack_type(config, emulators=(), endpoints=[model], envoy=settings)
    return Arm(name, stack, has_processor=name != "envoy")
