"""A smaller suite: the same rates, bursts and lengths for a part of the time, and that part of the batch.

For a first look, and for servers that would take hours for the whole. Its figures are not the suite's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from extproc.bench.suite import Load, Setting, Suite
from extproc.workload.arrivals import Arrivals, AtTimes, Bursts, ClosedLoop, Steps
from extproc.workload.traffic import TrafficClass


def scaled(suite: Suite, factor: float) -> Suite:
    """`suite` with every class's arrivals cut to `factor` (0 to 1) of their span, at least one of each."""
    if factor == 1.0:
        return suite
    loads = tuple(dataclasses.replace(load, traffic=_scaled_traffic(load, factor)) for load in suite.loads)
    return dataclasses.replace(suite, loads=loads)


def _scaled_traffic(load: Load, factor: float) -> Callable[[Setting], tuple[TrafficClass, ...]]:
    def traffic(setting: Setting) -> tuple[TrafficClass, ...]:
        return tuple(_scaled_class(each, factor) for each in load.traffic(setting))

    return traffic


def _scaled_class(traffic: TrafficClass, factor: float) -> TrafficClass:
    return dataclasses.replace(traffic, arrivals=_scaled_arrivals(traffic.arrivals, factor))


def _scaled_arrivals(arrivals: Arrivals, factor: float) -> Arrivals:
    match arrivals:
        case Bursts():
            return dataclasses.replace(arrivals, count=math.ceil(arrivals.count * factor))
        case AtTimes():
            return AtTimes(at_s=arrivals.at_s[: math.ceil(len(arrivals.at_s) * factor)])
        case Steps():
            start_s = arrivals.at_s[0]
            return dataclasses.replace(arrivals, end_s=start_s + (arrivals.end_s - start_s) * factor)
        case ClosedLoop(end_s=None):
            return arrivals
        case _:
            assert arrivals.end_s is not None
            end_s = arrivals.start_s + (arrivals.end_s - arrivals.start_s) * factor
            return dataclasses.replace(arrivals, end_s=end_s)
