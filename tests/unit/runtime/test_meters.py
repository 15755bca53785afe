"""Collectors from the catalogue: exposition, label order, and gauges that vanish with what they describe."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.errors import InvariantError
from extproc.runtime.meters import Meters, Reading


def series(meters: Meters) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(meters.expose().decode())
        for sample in family.samples
    }


def test_a_counter_appears_at_zero_once_its_child_exists() -> None:
    meters = Meters()
    child = meters.counter("extproc_requests_total").labels("10", "dispatched")
    key = ("extproc_requests_total", (("outcome", "dispatched"), ("priority", "10")))
    assert series(meters)[key] == 0
    child.inc()
    assert series(meters)[key] == 1


def test_a_gauge_series_goes_with_what_it_describes() -> None:
    meters = Meters()
    depths = {("10", "a"): 3.0, ("10", "b"): 0.0}
    meters.add_source(lambda: [Reading("extproc_flow_queue_requests", key, n) for key, n in depths.items()])
    assert series(meters)[("extproc_flow_queue_requests", (("fairness_id", "a"), ("priority", "10")))] == 3
    del depths["10", "a"]
    left = [name for name in series(meters) if name[0] == "extproc_flow_queue_requests"]
    assert left == [("extproc_flow_queue_requests", (("fairness_id", "b"), ("priority", "10")))]


def test_a_gauge_that_is_not_in_the_catalogue_is_a_bug() -> None:
    meters = Meters()
    meters.add_source(lambda: [Reading("extproc_made_up", (), 1.0)])
    with pytest.raises(InvariantError):
        meters.expose()
