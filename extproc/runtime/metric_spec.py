"""What one metric is, and the buckets in use; the tables are in `metrics_of_requests` and `_of_state`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: `moves` says which event changes it, in the words of the docs."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    moves: str
    buckets: tuple[float, ...] = ()
    is_read: bool = False
    """Taken from its owner at each scrape, as gauges always are, instead of being counted here."""


WAIT_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120)
DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
TOKEN_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2)
SHORT_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
TOKEN_BUCKETS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 1048576)
BYTE_BUCKETS = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)


def counter(
    name: str, unit: str, labels: tuple[str, ...], help_text: str, moves: str, *, is_read: bool = False
) -> Metric:
    return Metric(f"extproc_{name}_total", Kind.COUNTER, unit, labels, help_text, moves, is_read=is_read)


def gauge(name: str, unit: str, labels: tuple[str, ...], help_text: str, moves: str) -> Metric:
    return Metric(f"extproc_{name}", Kind.GAUGE, unit, labels, help_text, moves, is_read=True)


def histogram(
    name: str, unit: str, labels: tuple[str, ...], help_text: str, moves: str, buckets: tuple[float, ...]
) -> Metric:
    return Metric(f"extproc_{name}", Kind.HISTOGRAM, unit, labels, help_text, moves, buckets)
