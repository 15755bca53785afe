"""Whole scenarios in virtual time over the production controller: bounds that hold whatever the seed."""

import pytest

from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.eviction import EvictionConfig
from extproc.core.holdback import PriorityHoldbackConfig
from extproc.errors import ConfigError
from extproc.sim.result import RunResult
from extproc.sim.runner import Simulation, run
from extproc.sim.scenario import EndpointLoss, EndpointSpec, Scenario
from extproc.sim.server_config import EngineConfig
from extproc.workload.arrivals import Bursts, ClosedLoop, Poisson, Uniform
from extproc.workload.lengths import Fixed
from extproc.workload.record import RequestOutcome, RequestRecord
from extproc.workload.traffic import AfterEviction, TrafficClass

ENGINE = EngineConfig(max_num_seqs=8, kv_blocks=4001, max_model_len=8192)
DETECTOR = ConcurrencyDetectorConfig(max_concurrency=8)
EVICTING = FlowControlConfig(detector=DETECTOR, eviction=EvictionConfig(enabled=True))
BATCH = TrafficClass(
    name="batch",
    arrivals=Bursts(size=40, every_s=1, count=1),
    output=Fixed(tokens=400),
    priority=-1,
    ttl_s=600.0,
    after_eviction=AfterEviction.RESUME,
)
INTERACTIVE = TrafficClass(
    name="interactive",
    arrivals=Poisson(rate_per_s=4, start_s=0.5, end_s=6),
    output=Fixed(tokens=60),
    priority=10,
)


def scenario(**changes: object) -> Scenario:
    settings: dict[str, object] = {
        "pool": (EndpointSpec(name="a", engine=ENGINE),),
        "classes": (BATCH, INTERACTIVE),
        "flow_control": EVICTING,
        "horizon_s": 120.0,
        **changes,
    }
    return Scenario(**settings)  # type: ignore[arg-type]


def of_class(result: RunResult, name: str) -> list[RequestRecord]:
    return [record for record in result.records if record.traffic_class == name]


def ttfts(result: RunResult) -> list[float]:
    return sorted(record.ttft_s or 99.0 for record in of_class(result, "interactive"))


def batch_end(result: RunResult) -> float:
    return max(record.end_s or 0.0 for record in of_class(result, "batch"))


def test_eviction_lets_interactive_in_and_loses_no_token_of_the_batch() -> None:
    result = run(scenario())
    assert result.evictions > 0
    assert all(record.outcome is RequestOutcome.COMPLETED for record in result.records)
    batch = of_class(result, "batch")
    assert len(batch) == 40
    assert {record.output_tokens for record in batch} == {400}
    assert sum(record.evictions for record in batch) == result.evictions
    assert sum(record.redone_tokens for record in batch) == 0
    without = run(scenario(flow_control=FlowControlConfig(detector=DETECTOR)))
    assert without.evictions == 0
    assert ttfts(result)[len(ttfts(result)) // 2] < ttfts(without)[len(ttfts(without)) // 2] / 3


def test_holdback_saves_evictions() -> None:
    held = FlowControlConfig(
        detector=DETECTOR,
        eviction=EvictionConfig(enabled=True),
        ceilings=PriorityHoldbackConfig(min_ceiling=0.75),
    )
    assert run(scenario(flow_control=held)).evictions < run(scenario()).evictions / 2


def test_the_same_seed_gives_the_same_records_and_another_does_not() -> None:
    first, again, other = (run(scenario(seed=seed)) for seed in (3, 3, 4))
    assert first.records == again.records
    assert first.records != other.records


def test_restarting_clients_redo_their_tokens() -> None:
    restarting = TrafficClass(
        name="batch",
        arrivals=BATCH.arrivals,
        output=BATCH.output,
        priority=-1,
        ttl_s=600.0,
        after_eviction=AfterEviction.RESTART,
    )
    result = run(scenario(classes=(restarting, INTERACTIVE)))
    batch = of_class(result, "batch")
    assert all(record.output_tokens == 400 for record in batch)
    assert sum(record.redone_tokens for record in batch) > 0


def test_exempt_requests_wait_for_nothing_but_the_engine() -> None:
    result = run(scenario(exempt_from_priority=0))
    assert result.evictions == 0
    assert max(ttfts(result)) < 0.1


def test_a_lost_endpoint_fails_its_requests_and_the_batch_resumes_on_the_other() -> None:
    pool = (EndpointSpec(name="a", engine=ENGINE), EndpointSpec(name="b", engine=ENGINE))
    detector = FlowControlConfig(detector=DETECTOR)
    result = run(scenario(pool=pool, flow_control=detector, faults=(EndpointLoss(endpoint="a", at_s=1.0),)))
    assert {record.output_tokens for record in of_class(result, "batch")} == {400}
    assert batch_end(result) > batch_end(run(scenario(pool=pool, flow_control=detector)))


def test_a_closed_loop_keeps_its_concurrency() -> None:
    loop = TrafficClass(name="loop", arrivals=ClosedLoop(concurrency=5, requests=30), output=Fixed(tokens=50))
    result = run(scenario(classes=(loop,), timeline_interval_s=0.05))
    assert len(result.records) == 30
    assert max(point.running for point in result.timeline) == 5


def test_the_horizon_ends_a_run_with_work_under_way() -> None:
    result = run(scenario(horizon_s=1.0))
    outcomes = {record.outcome for record in result.records}
    assert RequestOutcome.UNFINISHED in outcomes
    assert result.ended_at_s == 1.0


def test_impossible_scenarios_are_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        scenario(horizon_s=0.0, replicas=0, faults=(EndpointLoss(endpoint="z", at_s=1.0),))
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"horizon_s", "replicas", "faults[0].endpoint"}
    with pytest.raises(ConfigError, match="max_model_len"):
        scenario(classes=(TrafficClass(name="x", arrivals=BATCH.arrivals, prompt=Fixed(tokens=9000)),))


def test_token_gaps_add_up_to_the_time_between_first_and_last_token_over_all_legs() -> None:
    result = run(scenario(keeps_token_gaps=True))
    evicted = [record for record in of_class(result, "batch") if record.evictions]
    assert evicted
    for record in evicted:
        assert len(record.chunk_gaps_s) == record.output_tokens - 1
        assert sum(record.chunk_gaps_s) == pytest.approx((record.end_s or 0) - (record.first_token_s or 0))
    plain = [(record.end_s, record.output_tokens) for record in run(scenario()).records]
    assert [(record.end_s, record.output_tokens) for record in result.records] == plain


def test_the_prompt_counter_includes_what_the_prefix_cache_held() -> None:
    """As vLLM's does: pacing credits whole prompts to it, also those of resumed requests."""
    same = TrafficClass(
        name="same",
        arrivals=Uniform(rate_per_s=1.0, end_s=2.5),
        prompt=Fixed(tokens=640),
        output=Fixed(tokens=4),
        shared_prefix_tokens=640,
    )
    engine = EngineConfig(max_num_seqs=4)
    simulation = Simulation(
        Scenario(pool=(EndpointSpec(name="a", engine=engine),), classes=(same,), horizon_s=30.0)
    )
    result = simulation.run()
    sample = next(iter(simulation.engines.values())).sample()
    assert sample is not None
    assert sample.prompt_tokens_total == 3 * 640
    assert result.engines[0].prompt_tokens_computed < 2 * 640
