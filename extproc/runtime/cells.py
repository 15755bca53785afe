"""Counters and histograms for one thread: an addition each, where prometheus-client takes locks and lists.

They are read at the scrape by collectors of the usual kind. Use them from the event loop's thread only.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class CounterCell:
    """One series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class HistogramCell:
    """One series; `bounds` are the upper bounds of its buckets, in order, without infinity."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last one for infinity."""
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


class Counters(Collector):
    """All series of one counter; without labels it is its own series."""

    def __init__(self, name: str, text: str, label_names: Sequence[str]) -> None:
        self._name = name.removesuffix("_total")
        self._text = text
        self._label_names = tuple(label_names)
        self._cells: dict[tuple[str, ...], CounterCell] = {}
        if not label_names:
            self.labels()

    def labels(self, *values: str) -> CounterCell:
        """The series of these label values, in the order of the names."""
        cell = self._cells.get(values)
        if cell is None:
            if len(values) != len(self._label_names):
                raise ValueError(f"{self._name} has the labels {self._label_names}, not {len(values)}")
            cell = self._cells[values] = CounterCell()
        return cell

    def inc(self, amount: float = 1.0) -> None:
        self.labels().inc(amount)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=self._label_names)
        for values, cell in self._cells.items():
            family.add_metric(values, cell.value)
        yield family


class Histograms(Collector):
    """All series of one histogram; without labels it is its own series."""

    def __init__(self, name: str, text: str, label_names: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._label_names = tuple(label_names)
        self._bounds = tuple(bound for bound in bounds if bound != math.inf)
        self._cells: dict[tuple[str, ...], HistogramCell] = {}
        if not label_names:
            self.labels()

    def labels(self, *values: str) -> HistogramCell:
        """The series of these label values, in the order of the names."""
        cell = self._cells.get(values)
        if cell is None:
            if len(values) != len(self._label_names):
                raise ValueError(f"{self._name} has the labels {self._label_names}, not {len(values)}")
            cell = self._cells[values] = HistogramCell(self._bounds)
        return cell

    def observe(self, value: float) -> None:
        self.labels().observe(value)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._label_names)
        for values, cell in self._cells.items():
            family.add_metric(values, cell.buckets(), cell.total)
        yield family
