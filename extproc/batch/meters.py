"""Prometheus metrics of one batch worker: names and meaning in one place; never labelled by job or line."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_STORE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_QUEUE_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


class BatchMeters:
    """One registry of its own, so that several workers can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.legs = Counter(
            "extproc_batch_legs", "Requests sent, by how they ended.", ["ended"], registry=self.registry
        )
        self.results = Counter(
            "extproc_batch_results", "Lines finished, by state.", ["state"], registry=self.registry
        )
        self.output_tokens = self._counter("output_tokens", "Output tokens received.")
        self.resumed_tokens = self._counter("resumed_tokens", "Saved tokens that a continuation built on.")
        self.redone_tokens = self._counter("redone_tokens", "Output tokens that had to be generated again.")
        self.evictions = self._counter("evictions", "Requests that lost their place at the gateway.")
        self.restarts = Counter(
            "extproc_batch_restarts",
            "Interrupted requests that started from nothing, by the feature that forced it.",
            ["feature"],
            registry=self.registry,
        )
        self.lost_leases = self._counter("lost_leases", "Items taken over by another worker, or withdrawn.")
        self.store_failures = self._counter("store_failures", "Calls of the store that failed.")
        self.store_write_seconds = Histogram(
            "extproc_batch_store_write_seconds",
            "Time of one grouped write.",
            buckets=_STORE_BUCKETS,
            registry=self.registry,
        )
        self.queue_seconds = Histogram(
            "extproc_batch_queue_seconds",
            "Time from sending a request to its response headers.",
            buckets=_QUEUE_BUCKETS,
            registry=self.registry,
        )
        self.in_flight = self._gauge("in_flight_requests", "Requests sent and not ended.")
        self.queued = self._gauge("queued_requests", "Requests sent and without response headers.")
        self.window = self._gauge("window_requests", "Limit on requests in flight.")
        self.unsaved_tokens = self._gauge("unsaved_tokens", "Output tokens not yet in the store.")
        self.open_circuits = self._gauge("open_circuits", "Gateway addresses that are left alone for now.")

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"extproc_batch_{name}", text, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"extproc_batch_{name}", text, registry=self.registry)

    def expose(self) -> bytes:
        """The page for a scraper."""
        return generate_latest(self.registry)
