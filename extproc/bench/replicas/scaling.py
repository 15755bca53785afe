"""Requests per second of 1, 2 and 4 processes behind one Envoy, beside as many that do nothing.

All stacks run at once and are measured in turn, several rounds over, so that whatever else the machine does
falls on all of them alike. What counts is how far ours keeps up with the do-nothing processor from one
process to several: the machine's cores bound both.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from extproc.bench.gateway.arms import OUR_CONFIG, NoopStack
from extproc.bench.gateway.client import run_leg
from extproc.bench.gateway.measure import model_server
from extproc.clock import SystemClock
from extproc.stack.envoy import EnvoySettings
from extproc.stack.ledger import read_metrics
from extproc.stack.local import HOST, LocalStack

_CONCURRENCY = 64
_WARM_UP_S = 0.5


@dataclass(slots=True)
class Setup:
    """`name` is `ours` or `noop`; one figure of `rates` per round, in requests per second."""

    name: str
    processes: int
    stack: LocalStack
    rates: list[float] = field(default_factory=list)
    failures: int = 0

    @property
    def requests_per_s(self) -> float:
        return statistics.median(self.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingResult:
    """`scaling_vs_noop`: our gain from one process to the most, over the do-nothing processor's gain.

    `store_calls_*` are calls to Redis per second and replica, of the largest group, without and under load.
    """

    setups: Sequence[Setup]
    scaling_vs_noop: float
    store_calls_idle: float
    store_calls_busy: float


async def measure_scaling(
    counts: Sequence[int], rounds: int, leg_s: float, on_step: Callable[[str], None]
) -> ScalingResult:
    """Raises StackError when a process does not start."""
    with model_server() as port, contextlib.ExitStack() as stacks:
        setups = [_setup(name, count, port) for count in counts for name in ("noop", "ours")]
        for setup in setups:
            on_step(f"starting {setup.processes} x {setup.name}")
            await asyncio.to_thread(stacks.enter_context, setup.stack)
            await run_leg(setup.stack.envoy_port, 1, _CONCURRENCY, _WARM_UP_S)
        group = next(setup for setup in reversed(setups) if setup.name == "ours")
        idle = await _store_calls(group, None, leg_s)
        busy = []
        for number in range(rounds):
            for setup in setups if number % 2 == 0 else reversed(setups):
                on_step(f"{setup.processes} x {setup.name}")
                if setup is group:
                    busy.append(await _store_calls(group, group, leg_s))
                else:
                    await _measure(setup, leg_s)
        for setup in setups:
            setup.stack.check()
    return ScalingResult(
        setups=setups,
        scaling_vs_noop=_gain(setups, "ours") / _gain(setups, "noop"),
        store_calls_idle=idle,
        store_calls_busy=statistics.median(busy),
    )


def _setup(name: str, processes: int, model_port: int) -> Setup:
    settings = EnvoySettings(listen_host=HOST, listen_port=0, admin_port=0)
    stack_type = NoopStack if name == "noop" else LocalStack
    model = [f"{HOST}:{model_port}"]
    stack = stack_type(OUR_CONFIG, emulators=(), endpoints=model, envoy=settings, replicas=processes)
    return Setup(name, processes, stack)


async def _measure(setup: Setup, seconds: float) -> None:
    leg = await run_leg(setup.stack.envoy_port, 1, _CONCURRENCY, seconds)
    setup.rates.append(leg.requests / leg.duration_s)
    setup.failures += leg.failures


async def _store_calls(group: Setup, loaded: Setup | None, seconds: float) -> float:
    """Calls to Redis per second and replica, over `seconds` with or without load."""
    clock = SystemClock()
    started, before = clock.now(), await _counted(group)
    if loaded is None:
        await clock.sleep_until(started + seconds)
    else:
        await _measure(loaded, seconds)
    calls = await _counted(group) - before
    return calls / (clock.now() - started) / group.processes


async def _counted(group: Setup) -> float:
    pages = [await asyncio.to_thread(read_metrics, url) for url in group.stack.admin_urls]
    return sum(page.get("extproc_replica_store_calls_total", 0.0) for page in pages)


def _gain(setups: Sequence[Setup], name: str) -> float:
    mine = [setup for setup in setups if setup.name == name]
    return mine[-1].requests_per_s / mine[0].requests_per_s
