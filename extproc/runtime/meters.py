"""Prometheus collectors built from the catalogue: events are counted here, states are read at scrape.

A gauge that is written on each event costs time on the request path and goes stale when its owner forgets
it, so gauges come from `Source`s that are asked once per scrape and name only what exists at that
moment: the series of a vanished flow or endpoint is gone with the next scrape. This module knows neither
requests nor policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from extproc.errors import InvariantError
from extproc.runtime.catalogue import Kind, Metric, all_metrics
from extproc.runtime.cells import Counters, Histograms


class Reading(NamedTuple):
    """The value of one series now; `labels` in the catalogue's order."""

    name: str
    labels: tuple[str, ...]
    value: float


Source = Callable[[], Iterable[Reading]]


class Meters:
    """All collectors of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._aliases = CollectorRegistry(auto_describe=False)
        self._specs = {metric.name: metric for metric in all_metrics()}
        self._counters: dict[str, Counters] = {}
        self._histograms: dict[str, Histograms] = {}
        self._sources: list[Source] = []
        for metric in self._specs.values():
            self._build(metric)
        self.registry.register(_Readings(self._specs, self._sources))

    def counter(self, name: str) -> Counters:
        """The counter `name` of the catalogue; take `.labels(...)` once and keep it on the request path."""
        return self._counters[name]

    def histogram(self, name: str) -> Histograms:
        return self._histograms[name]

    def add_source(self, source: Source) -> None:
        """Ask `source` for its readings at every scrape."""
        self._sources.append(source)

    def add_alias(self, collector: Collector) -> None:
        """Expose `collector` too: one that gives our own series other names."""
        self._aliases.register(collector)

    def expose(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry) + generate_latest(self._aliases)

    def _build(self, metric: Metric) -> None:
        if metric.is_read:
            return
        if metric.kind is Kind.COUNTER:
            counters = self._counters[metric.name] = Counters(metric.name, metric.help, metric.labels)
            self.registry.register(counters)
        elif metric.kind is Kind.HISTOGRAM:
            histograms = Histograms(metric.name, metric.help, metric.labels, metric.buckets)
            self._histograms[metric.name] = histograms
            self.registry.register(histograms)


class _Readings(Collector):
    """Turns the readings of all sources into families, refusing what the catalogue doesn't know."""

    def __init__(self, specs: dict[str, Metric], sources: list[Source]) -> None:
        self._specs = specs
        self._sources = sources

    def describe(self) -> Iterable[MetricFamily]:
        return []

    def collect(self) -> Iterator[MetricFamily]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for source in self._sources:
            for name, labels, value in source():
                family = families.get(name)
                if family is None:
                    family = families[name] = self._family(name)
                family.add_metric(labels, value)
        yield from families.values()

    def _family(self, name: str) -> GaugeMetricFamily | CounterMetricFamily:
        spec = self._specs.get(name)
        if spec is None or not spec.is_read:
            raise InvariantError(f"{name} is not read at scrapes, by the catalogue")
        if spec.kind is Kind.COUNTER:
            return CounterMetricFamily(name.removesuffix("_total"), spec.help, labels=spec.labels)
        return GaugeMetricFamily(name, spec.help, labels=spec.labels)
