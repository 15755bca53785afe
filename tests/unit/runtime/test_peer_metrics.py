"""The peer's metric names carry what ours do."""

from __future__ import annotations

from extproc.core.outcomes import Outcome
from extproc.core.types import RequestId
from extproc.runtime.peer_metrics import OUTCOMES, PREFIX, PeerNames
from tests.unit.runtime.test_metrics_move import Bench, key


def busy_bench() -> Bench:
    bench = Bench()
    bench.meters.add_alias(PeerNames(bench.meters.registry, "pool-a"))
    bench.fill()
    for ttl_s in (5.0, 60.0):
        bench.arrive(ttl_s=ttl_s)
    bench.arrive(deadline_s=bench.clock.now() + 1)
    bench.advance(6)
    bench.finish(RequestId(999))
    return bench


def test_counts_gauges_and_waits_appear_under_the_peers_names() -> None:
    series = busy_bench().series()
    pool = {"inference_pool": "pool-a"}
    band = {**pool, "priority": "10"}
    assert series[key(f"{PREFIX}requests_total", **band, outcome="Dispatched")] == 2
    assert series[key(f"{PREFIX}requests_total", **band, outcome="EvictedTTL")] == 2
    assert series[key(f"{PREFIX}queue_size", **band)] == 1
    assert series[key(f"{PREFIX}queue_bytes", **band)] == 400
    assert series[key(f"{PREFIX}capacity_utilization_requests", **band)] == 1 / 3
    assert series[key(f"{PREFIX}pool_saturation", **pool, stage="effective")] == 1
    assert series[key(f"{PREFIX}revocations_total", **pool, outcome="timed_out")] == 0
    wait = key(f"{PREFIX}request_queue_duration_seconds_count", **band, outcome="EvictedTTL")
    assert series[wait] == 2
    bucket = key(f"{PREFIX}request_queue_duration_seconds_bucket", **band, outcome="EvictedTTL", le="+Inf")
    assert series[bucket] == 2


def test_off_by_default_and_every_outcome_has_a_name_there() -> None:
    assert PREFIX not in Bench().meters.expose().decode()
    assert set(OUTCOMES) == {outcome.value for outcome in Outcome}
