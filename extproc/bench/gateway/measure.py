"""Runs the arms side by side and puts their costs next to each other.

Every cell (chunks per answer, concurrency) is measured on all arms in turn before the next begins, several
rounds over, so that whatever else the machine does falls on all of them alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from extproc.bench.gateway.arms import Arm, build_arms
from extproc.bench.gateway.client import Leg, run_leg
from extproc.errors import ExtprocError

ALL_ARMS = ("envoy", "noop", "lean", "duplex")
_WARM_UP_S = 0.3
_PACE_PER_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlan:
    """How much is measured. `memory_requests` are sent to the lean arm at the end, for its memory's sake."""

    arms: tuple[str, ...] = ALL_ARMS
    tokens: tuple[int, ...] = (1, 256)
    concurrencies: tuple[int, ...] = (1, 64, 512)
    rounds: int = 3
    leg_s: float = 1.5
    memory_requests: int = 50_000

    @classmethod
    def quick(cls) -> GatewayPlan:
        """Ends within 50 seconds."""
        return cls(rounds=2, leg_s=0.35, memory_requests=3_000)


@dataclass(slots=True)
class Row:
    """One cell of one arm: medians over the rounds. `cpu_us` is microseconds per request, by process."""

    arm: str
    tokens: int
    concurrency: int
    requests: int = 0
    failures: int = 0
    duration_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    cpu_us: dict[str, float] = field(default_factory=dict)
    _legs: list[Leg] = field(default_factory=list)
    _costs_us: dict[str, list[float]] = field(default_factory=dict)

    def add(self, leg: Leg, cpu_s: dict[str, float]) -> None:
        """Take in one more round."""
        self._legs.append(leg)
        self.requests += leg.requests
        self.failures += leg.failures
        self.duration_s += leg.duration_s
        self.p50_ms = 1000 * statistics.median(each.quantile_s(0.5) for each in self._legs)
        self.p99_ms = 1000 * statistics.median(each.quantile_s(0.99) for each in self._legs)
        for name, seconds in cpu_s.items():
            costs = self._costs_us.setdefault(name, [])
            costs.append(1e6 * seconds / max(leg.requests, 1))
            self.cpu_us[name] = statistics.median(costs)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "arm": self.arm,
            "tokens": self.tokens,
            "concurrency": self.concurrency,
            "requests": self.requests,
            "failures": self.failures,
            "requests_per_s": round(self.requests / self.duration_s, 1) if self.duration_s else 0.0,
            "p50_ms": round(self.p50_ms, 3),
            "p99_ms": round(self.p99_ms, 3),
            "cpu_us_per_request": {name: round(value, 1) for name, value in self.cpu_us.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayResult:
    """Ratios are of the processor's CPU time per request; None where an arm was left out."""

    rows: tuple[Row, ...]
    cpu_ratio_vs_noop: float | None
    cpu_ratio_256_vs_16_tokens: float | None
    added_p50_ms: float | None
    """Lean against Envoy alone, one request at a time, one chunk."""
    added_p99_ms: float | None
    rss_growth_mib: float
    memory_requests: int


async def measure(plan: GatewayPlan, on_leg: Callable[[str], None] = lambda text: None) -> GatewayResult:
    """Start everything, measure, stop everything. Raises StackError when a process does not start."""
    with model_server() as port, contextlib.ExitStack() as stacks:
        arms = build_arms(port, plan.arms)
        for arm in arms:
            on_leg(f"starting {arm.name}")
            await asyncio.to_thread(stacks.enter_context, arm.stack)
        rows = {(arm.name, cell): Row(arm.name, *cell) for cell in _cells(plan) for arm in arms}
        for arm in arms:
            await run_leg(arm.stack.envoy_port, 1, 64, _WARM_UP_S)
        for number in range(plan.rounds):
            for cell in _cells(plan):
                for arm in arms if number % 2 == 0 else reversed(arms):
                    on_leg(f"{arm.name}: {cell[0]} chunks, concurrency {cell[1]}")
                    await _measure_cell(arm, rows[arm.name, cell], plan.leg_s)
        lean = next((arm for arm in arms if arm.name == "lean"), None)
        growth, ratio = 0.0, None
        if lean is not None:
            on_leg("lean: 16 against 256 chunks at one pace")
            ratio = await _ratio_by_tokens(lean, plan)
            on_leg(f"lean: memory over {plan.memory_requests} requests")
            growth = await _memory_growth(lean, plan.memory_requests)
        for arm in arms:
            arm.stack.check()
    return _result(plan, list(rows.values()), growth, ratio)


def _cells(plan: GatewayPlan) -> list[tuple[int, int]]:
    """(chunks per answer, concurrency)."""
    return [(tokens, concurrency) for tokens in plan.tokens for concurrency in plan.concurrencies]


async def _ratio_by_tokens(arm: Arm, plan: GatewayPlan) -> float:
    """CPU time of the processor per request with 256 chunks over that with 16, at the same requests/s.

    At full speed the longer answers would slow Envoy down, fewer requests would share a wake-up of the event
    loop, and each would cost more for that reason alone.
    """
    costs: dict[int, list[float]] = {16: [], 256: []}
    for number in range(2 * max(plan.rounds, 4)):
        for tokens in (16, 256) if number % 2 == 0 else (256, 16):
            before = arm.cpu_s("extproc")
            leg = await run_leg(arm.stack.envoy_port, tokens, 16, plan.leg_s / 2, rate_per_s=_PACE_PER_S)
            costs[tokens].append((arm.cpu_s("extproc") - before) / max(leg.requests, 1))
    return statistics.median(costs[256]) / statistics.median(costs[16])


async def _measure_cell(arm: Arm, row: Row, seconds: float) -> None:
    children = {"envoy": "envoy"} | ({"processor": "extproc"} if arm.has_processor else {})
    before = {name: arm.cpu_s(child) for name, child in children.items()}
    leg = await run_leg(arm.stack.envoy_port, row.tokens, row.concurrency, seconds)
    row.add(leg, {name: arm.cpu_s(child) - before[name] for name, child in children.items()})


async def _memory_growth(arm: Arm, requests: int) -> float:
    """MiB that the processor's memory grew over `requests`, after as many had been served before.

    The first ten thousand warm it up: tables, buffers and the allocator's arenas take their size.
    """
    port = arm.stack.envoy_port
    await run_leg(port, 1, 64, 600.0, limit=requests)
    before = arm.rss_mib()
    await run_leg(port, 1, 64, 600.0, limit=requests)
    return arm.rss_mib() - before


def _result(
    plan: GatewayPlan, rows: Sequence[Row], growth: float, ratio_by_tokens: float | None
) -> GatewayResult:
    def find(arm: str, tokens: int, concurrency: int) -> Row | None:
        wanted = (arm, tokens, concurrency)
        return next((row for row in rows if (row.arm, row.tokens, row.concurrency) == wanted), None)

    shared = [cell for cell in _cells(plan) if find("lean", *cell) and find("noop", *cell)]
    ours, floor = (
        [row.cpu_us["processor"] for cell in shared if (row := find(arm, *cell))] for arm in ("lean", "noop")
    )
    first = min(plan.concurrencies)
    lean, alone = find("lean", 1, first), find("envoy", 1, first)
    return GatewayResult(
        rows=tuple(rows),
        cpu_ratio_vs_noop=sum(ours) / sum(floor) if ours and sum(floor) else None,
        cpu_ratio_256_vs_16_tokens=ratio_by_tokens,
        added_p50_ms=lean.p50_ms - alone.p50_ms if lean and alone else None,
        added_p99_ms=lean.p99_ms - alone.p99_ms if lean and alone else None,
        rss_growth_mib=growth,
        memory_requests=plan.memory_requests,
    )


@contextlib.contextmanager
def model_server() -> Iterator[int]:
    """The canned model server's port; it ends with the block."""
    argv = [sys.executable, "-m", "extproc.bench.gateway.model"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise ExtprocError("the canned model server did not start")
            yield int(line)
        finally:
            process.stdin.close()
            process.wait(5)
