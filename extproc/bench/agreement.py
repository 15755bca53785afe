"""Does virtual time say what real sockets say? One cell, run both ways, figure by figure.

The path of the local stack (client, Envoy, extproc, event loops) costs real milliseconds, which `speed` turns
into fewer modelled ones than a suite assumes. So the path is measured on an idle stack first, in a run of its
own, and the simulation is given that figure; what the loaded stack then does is compared as it was measured.
The client's network is the same draw on both sides, so every figure is also compared without it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from extproc.bench.live import run_local
from extproc.bench.outcome import RunOutcome
from extproc.bench.statistics import percentile
from extproc.bench.suite import Cell, Load, Setting, Suite
from extproc.bench.virtual import run_virtual
from extproc.workload.arrivals import Uniform
from extproc.workload.traffic import TrafficClass

EVICTION_SLACK = 3.0
"""Counts this close agree whatever their ratio: 1 against 3 evictions is no difference worth a name."""
_PROBES = 40
_PROBE_GAP_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A cell that is run both ways, and the speed at which this machine keeps up with it."""

    suite: str
    load: str
    arm: str
    setting: Setting
    speed: float

    @property
    def cell(self) -> Cell:
        return Cell(suite=self.suite, load=self.load, arm=self.arm, setting=self.setting)


COMPARISONS: tuple[Comparison, ...] = (
    Comparison(suite="holdback-requests", load="2/s", arm="eviction", setting=Setting.WAVE, speed=0.4),
    Comparison(
        suite="same-priority-fairness",
        load="surge",
        arm="requests 128",
        setting=Setting.STEADY,
        speed=0.8,
    ),
)


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """One figure: over real sockets, in virtual time with the measured path, and with the suite's own.

    `ratio` is local over virtual; only rows that are `judged` decide whether the two agree.
    """

    figure: str
    local: float
    virtual: float
    virtual_assumed: float
    ratio: float | None
    is_judged: bool
    agrees: bool

    def as_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """`path_s` is what the local path costs from client to engine and back, in modelled seconds; `invalid`
    says why the local run must not be used.
    """

    speed: float
    path_s: float
    rows: tuple[AgreementRow, ...]
    invalid: str

    @property
    def agrees(self) -> bool:
        return not self.invalid and all(row.agrees for row in self.rows if row.is_judged)


def compare_ways(
    suite: Suite, cell: Cell, seed: int, *, speed: float, within: float, on_step: Callable[[str], None]
) -> Agreement:
    """Run the cell both ways. Raises StackError, ConfigError."""
    on_step("measuring the path of an idle stack")
    path_s = measure_path(suite, cell, seed, speed=speed)
    on_step("running over real sockets")
    local = run_local(suite, cell, seed, speed=speed)
    on_step("simulating")
    measured = run_virtual(with_path(suite, path_s), cell, seed)
    rows = agreement_rows(suite, local, measured, run_virtual(suite, cell, seed), within=within)
    return Agreement(speed=speed, path_s=path_s, rows=tuple(rows), invalid=local.invalid)


def with_path(suite: Suite, path_s: float) -> Suite:
    """The suite with `path_s` between client and engine and back in place of its assumed path."""
    return dataclasses.replace(
        suite, latencies=dataclasses.replace(suite.latencies, gateway_s=max(0.0, path_s) / 2)
    )


def measure_path(suite: Suite, cell: Cell, seed: int, *, speed: float) -> float:
    """Median TTFT of single requests over an idle local stack, less what the model says without any path."""
    probe = probe_suite(suite, cell)
    at = dataclasses.replace(cell, load=probe.loads[0].name)
    local, model = run_local(probe, at, seed, speed=speed), run_virtual(with_path(probe, 0.0), at, seed)
    name = suite.measured[0]
    return percentile(local.ttfts(name), 0.5) - percentile(model.ttfts(name), 0.5)


def probe_suite(suite: Suite, cell: Cell) -> Suite:
    """The suite with one load: requests of its first measured class, one at a time."""

    def traffic(setting: Setting) -> tuple[TrafficClass, ...]:
        classes = suite.load(cell.load).traffic(setting)
        first = next(each for each in classes if each.name == suite.measured[0])
        arrivals = Uniform(rate_per_s=1 / _PROBE_GAP_S, start_s=1.0, end_s=1.0 + _PROBES * _PROBE_GAP_S)
        output = dataclasses.replace(first, arrivals=arrivals)
        return (output,)

    load = Load(name="probes", traffic=traffic, horizon_s=60.0)
    return dataclasses.replace(suite, loads=(load,))


def agreement_rows(
    suite: Suite, local: RunOutcome, virtual: RunOutcome, assumed: RunOutcome, *, within: float
) -> list[AgreementRow]:
    """Every figure of the cell; TTFT also without the client's network, which both sides share."""
    rows: list[AgreementRow] = []

    def add(name: str, read: Callable[[RunOutcome], float], *, is_judged: bool = True) -> None:
        values = read(local), read(virtual), read(assumed)
        if all(math.isfinite(value) for value in values):
            slack = EVICTION_SLACK if name == "evictions" else 0.0
            rows.append(_row(name, *values, within=within, slack=slack, is_judged=is_judged))

    for name in suite.measured:
        add(f"{name} TTFT p50, ms", _ttft_ms(suite, name, 0.5))
        add(f"{name} TTFT p95, ms", _ttft_ms(suite, name, 0.95), is_judged=False)
        if any(suite.latencies.network_s):
            read = _ttft_ms(suite, name, 0.5, network_s=suite.latencies.network_s)
            add(f"{name} TTFT p50 with the client's network, ms", read)
    add("evictions", lambda run: float(run.evictions))
    add("batch time, s", lambda run: run.batch_time_s)
    add("tokens redone", lambda run: float(run.tokens_redone))
    return rows


def _ttft_ms(
    suite: Suite, name: str, fraction: float, *, network_s: tuple[float, float] = (0.0, 0.0)
) -> Callable[[RunOutcome], float]:
    def read(run: RunOutcome) -> float:
        values = run.ttfts(name, window_s=suite.window_s, network_s=network_s)
        return percentile(values, fraction) * 1000

    return read


def _row(
    figure: str,
    local: float,
    virtual: float,
    assumed: float,
    *,
    within: float,
    slack: float,
    is_judged: bool,
) -> AgreementRow:
    gap = abs(local - virtual)
    agrees = gap <= slack or gap <= within * max(abs(local), abs(virtual))
    ratio = local / virtual if virtual else None
    return AgreementRow(figure, local, virtual, assumed, ratio, is_judged, agrees)
