"""How soon an endpoint is measured again."""

import pytest

from extproc.config.endpoints import ScrapeConfig
from extproc.formats.engine_metrics import EngineMetrics
from extproc.runtime.scrape_pace import next_interval_s

CONFIG = ScrapeConfig()


def interval(previous_s: float = 0.2, answer_s: float = 0.0, metrics: EngineMetrics | None = None) -> float:
    return next_interval_s(CONFIG, previous_s, answer_s, metrics)


def test_an_engine_that_queues_or_is_nearly_full_is_watched_closest() -> None:
    assert interval(metrics=EngineMetrics(running_requests=1, waiting_requests=2)) == 0.05
    assert interval(metrics=EngineMetrics(running_requests=1, kv_usage_fraction=0.9)) == 0.05


def test_an_engine_at_work_is_watched_at_the_busy_pace() -> None:
    assert interval(5.0, metrics=EngineMetrics(running_requests=1, waiting_requests=0)) == 0.2


@pytest.mark.parametrize("metrics", [EngineMetrics(running_requests=0, waiting_requests=0), None])
def test_an_idle_or_silent_engine_is_watched_slower_and_slower(metrics: EngineMetrics | None) -> None:
    steps, interval_s = [], 0.05
    for _ in range(7):
        interval_s = interval(interval_s, metrics=metrics)
        steps.append(interval_s)
    assert steps == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_answering_never_takes_more_than_a_tenth_of_the_engines_time() -> None:
    assert interval(answer_s=0.018, metrics=EngineMetrics(waiting_requests=1)) == pytest.approx(0.18)
    assert interval(answer_s=0.9, metrics=EngineMetrics(waiting_requests=1)) == 5.0
