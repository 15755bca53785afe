"""How soon an endpoint is measured again: fast under load, slow when idle, never a burden to the engine.

Pure: figures in, seconds out. Must not know sockets or timers.
"""

from __future__ import annotations

from extproc.config.endpoints import ScrapeConfig
from extproc.formats.engine_metrics import EngineMetrics

NEARLY_FULL_FRACTION = 0.8
"""KV usage from which on an engine is watched as closely as one that queues."""


def next_interval_s(
    config: ScrapeConfig, previous_s: float, answer_s: float, metrics: EngineMetrics | None
) -> float:
    """Seconds from the start of one measurement to the start of the next, before jitter.

    `previous_s` is the last interval, `answer_s` how long the engine took to answer, `metrics` what it said
    (None: it did not answer properly).
    """
    if metrics is None or not _is_at_work(metrics):
        interval_s = min(config.max_interval_s, max(2 * previous_s, config.busy_interval_s))
    elif (metrics.waiting_requests or 0) > 0 or (metrics.kv_usage_fraction or 0.0) >= NEARLY_FULL_FRACTION:
        interval_s = config.min_interval_s
    else:
        interval_s = config.busy_interval_s
    return max(interval_s, min(config.max_interval_s, answer_s / config.max_duty_fraction))


def _is_at_work(metrics: EngineMetrics) -> bool:
    return bool(metrics.running_requests or metrics.waiting_requests)
