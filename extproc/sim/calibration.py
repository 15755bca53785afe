"""Fits the step costs of a hardware file to its calibration rows, by simulating each row.

Minimises sum of weight x log(simulated / target) squared over the coefficients that the file lets be fitted,
by a pattern search over their logarithms: a handful of numbers, a noisy but cheap function. Every simulated
figure is the mean over a few seeds. It must not know files or reports: how a figure is taken from records is
handed in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extproc.sim.hardware import CalibrationArm, CalibrationRow, Coefficient, Hardware
from extproc.sim.runner import run
from extproc.sim.scenario import EndpointSpec, Scenario
from extproc.sim.server_config import StepCost
from extproc.workload.record import RequestRecord

Measure = Callable[[Sequence[RequestRecord], str, str], float]
"""(records, traffic class, figure name) to the figure."""

_FIRST_STEP, _LAST_STEP = 0.20, 0.01
"""Steps of the search, as fractions of a coefficient."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted costs, and what each calibration row gives with them."""

    cost: StepCost
    rows: tuple[CalibrationRow, ...]
    loss: float
    evaluations: int


def evaluate(
    hardware: Hardware, cost: StepCost, measure: Measure, seeds: Sequence[int]
) -> tuple[CalibrationRow, ...]:
    """The calibration rows with their simulated figures under `cost`."""
    return tuple(_evaluated(row, hardware, cost, measure, seeds) for row in hardware.calibration)


def fit(
    hardware: Hardware,
    measure: Measure,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    on_evaluation: Callable[[float], None] | None = None,
) -> Fit:
    """Search from the file's own coefficients; `on_evaluation` is called with the best loss so far."""
    evaluations = 0
    best_rows = evaluate(hardware, hardware.engine.cost, measure, seeds)
    best = hardware.engine.cost
    step = _FIRST_STEP
    while step >= _LAST_STEP:
        has_improved = False
        for name in hardware.fits:
            for factor in (1 + step, 1 / (1 + step)):
                candidate = _scaled(best, name, factor)
                rows = evaluate(hardware, candidate, measure, seeds)
                evaluations += 1
                if _loss(rows) < _loss(best_rows):
                    best, best_rows, has_improved = candidate, rows, True
                if on_evaluation is not None:
                    on_evaluation(_loss(best_rows))
        if not has_improved:
            step /= 2
    return Fit(best, best_rows, _loss(best_rows), evaluations)


def _evaluated(
    row: CalibrationRow, hardware: Hardware, cost: StepCost, measure: Measure, seeds: Sequence[int]
) -> CalibrationRow:
    values = []
    for seed in seeds:
        value = _figure(row, row.arm, hardware, cost, measure, seed)
        if row.reference is not None:
            other = _figure(row, row.reference, hardware, cost, measure, seed)
            value = value - other if row.compared_by == "difference" else value / other
        values.append(value)
    simulated = sum(values) / len(values)
    return dataclasses.replace(row, simulated=simulated, residual_fraction=simulated / row.target - 1)


def _figure(
    row: CalibrationRow,
    arm: CalibrationArm,
    hardware: Hardware,
    cost: StepCost,
    measure: Measure,
    seed: int,
) -> float:
    engine = dataclasses.replace(hardware.engine, cost=cost, max_num_seqs=arm.max_num_seqs)
    scenario = Scenario(
        name=row.name,
        pool=(EndpointSpec(name="engine", engine=engine),),
        classes=arm.classes,
        flow_control=arm.flow_control,
        delays=arm.delays,
        scraping=arm.scraping,
        horizon_s=arm.horizon_s,
        seed=seed,
    )
    return measure(run(scenario).records, row.traffic_class, row.figure)


def _scaled(cost: StepCost, name: Coefficient, factor: float) -> StepCost:
    """`cost` with one coefficient changed, kept to three digits: what the data can tell."""
    value = float(f"{getattr(cost, name) * factor:.3g}")
    return dataclasses.replace(cost, **{name: value})


def _loss(rows: Sequence[CalibrationRow]) -> float:
    """A figure of the wrong sign (a difference that vanished) counts as off by a factor of 100."""
    return sum(row.weight * math.log(max((row.simulated or 0.0) / row.target, 0.01)) ** 2 for row in rows)
