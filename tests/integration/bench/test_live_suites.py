"""A suite's cell over real sockets: Envoy, extproc, an emulator, started and stopped by the bench."""

from __future__ import annotations

from extproc.bench.arms import BATCH_PRIORITY, INTERACTIVE_PRIORITY, requests, seed_flow_control
from extproc.bench.live import run_local
from extproc.bench.suite import Arm, Cell, Load, Setting, Suite
from extproc.workload.arrivals import Uniform
from extproc.workload.lengths import Fixed
from extproc.workload.record import RequestOutcome
from extproc.workload.traffic import AfterEviction, TrafficClass

SLOTS = 4


def _traffic(setting: Setting) -> tuple[TrafficClass, ...]:
    batch = TrafficClass(
        name="batch",
        priority=BATCH_PRIORITY,
        arrivals=Uniform(rate_per_s=100.0, end_s=0.08),
        output=Fixed(tokens=400),
        after_eviction=AfterEviction.RESUME,
    )
    interactive = TrafficClass(
        name="interactive",
        priority=INTERACTIVE_PRIORITY,
        arrivals=Uniform(rate_per_s=10.0, start_s=0.3, end_s=0.8),
        output=Fixed(tokens=20),
    )
    return (interactive, batch)


SUITE = Suite(
    name="toy",
    title="A toy on real sockets",
    seed="000",
    section="0",
    hardware="h200-qwen2.5-1.5b",
    engine={"max_num_seqs": SLOTS},
    loads=(Load(name="few", traffic=_traffic, horizon_s=60.0),),
    arms=(Arm(name="eviction", flow_control=seed_flow_control(requests(SLOTS), evicts=True)),),
)


def test_evicted_batch_resumes_and_nothing_is_lost() -> None:
    cell = Cell(suite="toy", load="few", arm="eviction", setting=Setting.WAVE)
    run = run_local(SUITE, cell, 0, speed=1.0)
    assert {record.outcome for record in run.records} == {RequestOutcome.COMPLETED}
    assert run.evictions > 0
    assert run.tokens_redone == 0
    assert [record.output_tokens for record in run.batch] == [400] * 8
    assert len(run.ttfts("interactive", until_s=60.0)) == 5
