"""`extproc bench sim`: how fast the simulator runs, as simulated seconds and tokens per wall second."""

from __future__ import annotations

import dataclasses
import json
import resource
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from extproc.clock import Clock, SystemClock
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.sim.files import load_engine
from extproc.sim.runner import run
from extproc.sim.scenario import EndpointSpec, Scenario
from extproc.workload.arrivals import Arrivals, ClosedLoop, Poisson
from extproc.workload.lengths import Fixed, UniformLength
from extproc.workload.record import RequestRecord
from extproc.workload.traffic import TrafficClass

_HARDWARE = "h200-qwen2.5-14b"
_SEQUENCES = 128
_DAY_S = 86_400.0
_DAY_RATE_PER_S, _DAY_ENDPOINTS = 10.0, 8


@dataclass(frozen=True, slots=True)
class Speed:
    """One measured run."""

    endpoints: int
    simulated_s: float
    wall_s: float
    processor_s: float
    tokens: int
    requests: int

    @property
    def speedup(self) -> float:
        return self.simulated_s / self.wall_s

    @property
    def tokens_per_s(self) -> float:
        """Simulated output tokens per wall second."""
        return self.tokens / self.wall_s


def processor_s() -> float:
    """Processor time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@click.command()
@click.option("--seconds", default=1000.0, show_default=True, help="Simulated seconds with one endpoint.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="The best counts.")
@click.option("--day", is_flag=True, help="Simulate the whole day, not a part of it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def sim(seconds: float, repeats: int, day: bool, as_json: bool) -> None:
    """Measure the simulator: one endpoint, 64 endpoints, and a day of 10 requests/s over 8 endpoints.

    Every endpoint decodes 128 sequences all the time, through the production controller. The best of the
    repeats counts, since other work on the machine can only slow a run down. Tokens per second are taken
    over equal simulated times.

    Example: extproc bench sim --json
    """
    clock = SystemClock()
    one = best([_busy(1, seconds, clock) for _ in range(repeats)])
    window_s = max(5.0, seconds / 20)
    single = best([_busy(1, window_s, clock) for _ in range(3 * repeats)])
    many = best([_busy(64, window_s, clock) for _ in range(repeats)])
    part_s = _DAY_S if day else _DAY_S / 30 * min(1.0, seconds / 1000)
    part = _day(part_s, clock)
    data: dict[str, object] = {
        "speedup": one.speedup,
        "speedup_per_processor_s": one.simulated_s / one.processor_s,
        "tokens_per_s_1": single.tokens_per_s,
        "tokens_per_s_64": many.tokens_per_s,
        "day_wall_s": part.wall_s * _DAY_S / part_s,
        "day_is_measured": day,
        "day_requests": part.requests,
        "max_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if as_json:
        click.echo(json.dumps(data))
        return
    table = Table("what", "value", box=None)
    table.add_row("simulated seconds per wall second, 1 endpoint", f"{one.speedup:,.0f}")
    table.add_row("the same per second of processor time", f"{data['speedup_per_processor_s']:,.0f}")
    table.add_row("simulated tokens per wall second, 1 endpoint", f"{single.tokens_per_s:,.0f}")
    table.add_row("simulated tokens per wall second, 64 endpoints", f"{many.tokens_per_s:,.0f}")
    kind = "measured" if day else f"from {part_s:,.0f} s of it"
    table.add_row(f"a day of 10 requests/s over 8 endpoints ({kind})", f"{data['day_wall_s']:,.0f} s")
    table.add_row("most memory", f"{data['max_resident_mib']:,.0f} MiB")
    Console(width=100).print(table)


def best(runs: list[Speed]) -> Speed:
    return max(runs, key=lambda speed: speed.speedup)


def busy_scenario(endpoints: int, seconds: float) -> Scenario:
    """Every endpoint full with 128 sequences of 512 + 500 to 1,500 tokens, for ever."""
    loop = ClosedLoop(concurrency=endpoints * _SEQUENCES)
    return _scenario(endpoints, seconds, loop, 500, 1500)


def day_scenario(seconds: float) -> Scenario:
    """10 requests/s of 512 + 100 to 400 tokens over 8 endpoints."""
    return _scenario(_DAY_ENDPOINTS, seconds, Poisson(rate_per_s=_DAY_RATE_PER_S, end_s=seconds), 100, 400)


def _scenario(endpoints: int, seconds: float, arrivals: Arrivals, low: int, high: int) -> Scenario:
    engine = dataclasses.replace(load_engine(_HARDWARE), max_num_seqs=_SEQUENCES)
    traffic = TrafficClass(
        name="load", arrivals=arrivals, prompt=Fixed(tokens=512), output=UniformLength(low=low, high=high)
    )
    return Scenario(
        pool=tuple(EndpointSpec(name=f"engine-{number}", engine=engine) for number in range(endpoints)),
        classes=(traffic,),
        flow_control=FlowControlConfig(detector=ConcurrencyDetectorConfig(max_concurrency=_SEQUENCES)),
        horizon_s=seconds,
    )


def _busy(endpoints: int, seconds: float, clock: Clock) -> Speed:
    return _timed(busy_scenario(endpoints, seconds), clock)


def _day(seconds: float, clock: Clock) -> Speed:
    return _timed(day_scenario(seconds), clock)


def _timed(scenario: Scenario, clock: Clock) -> Speed:
    """Run without keeping records: memory must not grow with the length of the run."""

    def drop(record: RequestRecord) -> None:
        return

    started_at, used_s = clock.now(), processor_s()
    result = run(scenario, on_record=drop)
    return Speed(
        endpoints=len(scenario.pool),
        simulated_s=result.ended_at_s,
        wall_s=clock.now() - started_at,
        processor_s=processor_s() - used_s,
        tokens=result.output_tokens,
        requests=result.requests,
    )
