"""How often the seed's own traffic takes a connection at the wrong moment: its cell with the one 503 (tokens
mode, bursts, eviction only) in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extproc.bench.idle_reuse.exchanges import simulated_exchanges
from extproc.bench.idle_reuse.pool import density_at, reuses
from extproc.bench.suite import Cell, Setting
from extproc.bench.suites.catalogue import SUITES
from extproc.bench.virtual import build_scenario

VLLM_KEEP_ALIVE_S = 5.0
_SUITE, _LOAD, _ARM = "holdback-tokens", "bursts of 32", "eviction"
_CLASS = "interactive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Over all runs of one setting: interactive requests, how many took a used connection, and how many of
    those per second of idle time, in the second below vLLM's keep-alive.
    """

    setting: str
    requests: int
    reuses: int
    per_idle_s: float

    def expected(self, lost_s: float, requests: int) -> float:
        """Failed requests among so many, when reuses fail in a span of `lost_s` of idle time."""
        return self.per_idle_s * lost_s * requests / self.requests


def measure_patterns(runs: int, on_run: Callable[[], None]) -> list[Pattern]:
    """Simulate the cell under `runs` seeds in each setting."""
    return [_measure(setting, runs, on_run) for setting in Setting]


def _measure(setting: Setting, runs: int, on_run: Callable[[], None]) -> Pattern:
    cell = Cell(suite=_SUITE, load=_LOAD, arm=_ARM, setting=setting)
    requests = reused = 0
    near = 0.0
    for seed in range(runs):
        exchanges = simulated_exchanges(build_scenario(SUITES[_SUITE], cell, seed))
        found = reuses(exchanges, keep_alive_s=VLLM_KEEP_ALIVE_S)
        requests += sum(each.traffic_class == _CLASS for each in exchanges)
        reused += sum(each.traffic_class == _CLASS for each in found)
        near += density_at(found, _CLASS, idle_s=VLLM_KEEP_ALIVE_S)
        on_run()
    return Pattern(setting=setting.value, requests=requests, reuses=reused, per_idle_s=near)
