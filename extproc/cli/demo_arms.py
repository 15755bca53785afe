"""The demo's three arms, its traffic, and one run of an arm against a local stack.

Batch work fills every sequence slot of two emulated servers and waits for more; interactive requests come at
intervals and once in a burst. Only the flow control differs between the arms. It must not print anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.bench.load import LoadGenerator, LoadResult
from extproc.bench.load_options import LoadOptions, LoadProgress
from extproc.bench.prompts import PromptFactory, PromptStyle
from extproc.bench.statistics import percentile
from extproc.bench.summary import known, summarize
from extproc.clock import SystemClock
from extproc.stack.ledger import read_metrics, wait_for_empty_ledger
from extproc.stack.local import LocalStack
from extproc.stack.process import StackError
from extproc.workload.arrivals import Bursts, ClosedLoop, Uniform
from extproc.workload.lengths import Fixed, UniformLength
from extproc.workload.record import RequestOutcome, RequestRecord
from extproc.workload.traffic import AfterEviction, TrafficClass

SERVERS = 2
SLOTS = 16
"""Sequences that one emulated server runs at once; 32 in all, as in `docs/`'s examples."""
SERVER_SPEED = 0.08
"""The emulated engine is a fast accelerator; slowed down so, 32 streams fit a laptop."""
MODEL = "emulated"
OBJECTIVES = {"interactive": 10, "batch": -1}
"""What clients may ask for in the objective header, and the priority that it means."""

BATCH_TOKENS_PER_S = 670.0
"""What 32 slots of the slowed servers produce; sizes the batch job to the wanted seconds."""
BURST = 12


@dataclass(frozen=True, slots=True)
class Arm:
    """A name and the `flow_control` section that makes it."""

    name: str
    flow_control: Mapping[str, Any]


_LIMIT = {"type": "concurrency-detector", "mode": "requests", "max_concurrency": SLOTS}
_NO_LIMIT = {**_LIMIT, "max_concurrency": 100_000}

ARMS = (
    Arm("none", {"detector": _NO_LIMIT}),
    Arm("eviction", {"detector": _LIMIT, "eviction": {"enabled": True}}),
    Arm(
        "eviction+holdback",
        {
            "detector": _LIMIT,
            "eviction": {"enabled": True},
            "ceilings": {"type": "priority-holdback", "min_ceiling": 0.9},
        },
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm. `tokens_lost` were generated and had to be generated again, or never arrived."""

    name: str
    interactive_requests: int
    ttft_p50_s: float
    ttft_p95_s: float
    batch_requests: int
    output_tokens_per_s: float
    tokens_lost: int
    evictions: int
    rejected: int
    unfinished: int
    ledger_in_flight: int
    envoy_version: str

    @property
    def is_good(self) -> bool:
        """Every request had its whole answer and nothing is left in the ledger."""
        return self.unfinished == 0 and self.ledger_in_flight == 0


def traffic(seconds: float) -> list[TrafficClass]:
    """The same load for every arm: a batch job of about `seconds`, and interactive requests meanwhile."""
    mean_output = min(150.0, 9.0 * seconds)  # shorter answers in short runs, so that all slots stay full
    output = UniformLength(low=round(0.67 * mean_output), high=round(1.33 * mean_output))
    requests = max(2 * SERVERS * SLOTS, round(BATCH_TOKENS_PER_S * seconds / mean_output))
    interactive = TrafficClass(
        name="interactive",
        priority=10,
        arrivals=Uniform(rate_per_s=2.0, start_s=1.5, end_s=max(2.0, seconds - 3.0)),
        prompt=Fixed(tokens=64),
        output=Fixed(tokens=16),
    )
    return [
        TrafficClass(
            name="batch",
            priority=-1,
            arrivals=ClosedLoop(concurrency=requests, requests=requests),
            prompt=Fixed(tokens=32),
            output=output,
            after_eviction=AfterEviction.RESUME,
        ),
        interactive,
        TrafficClass(
            name="burst",
            priority=10,
            arrivals=Bursts(size=BURST, every_s=1.0, count=1, start_s=0.55 * seconds),
            prompt=Fixed(tokens=64),
            output=Fixed(tokens=16),
        ),
    ]


def stack_for(arm: Arm) -> LocalStack:
    """Envoy, extproc with the arm's flow control, and the emulated servers; not started yet."""
    config = {
        "flow_control": {"default_ttl_s": 300.0, **arm.flow_control},
        "requests": {"priority": {"objectives": OBJECTIVES}},
    }
    server = ["--max-num-seqs", str(SLOTS), "--speed", str(SERVER_SPEED), "--model", MODEL]
    return LocalStack(config, emulators=[server] * SERVERS)


async def run_arm(
    arm: Arm, stack: LocalStack, seconds: float, on_progress: Callable[[LoadProgress], None]
) -> ArmResult:
    """Send the load through the started stack; returns when all of it has ended. Raises StackError."""
    options = LoadOptions(
        base_url=stack.url,
        horizon_s=4 * seconds + 30.0,
        objectives={"interactive": "interactive", "burst": "interactive", "batch": "batch"},
    )
    prompts = PromptFactory(model=MODEL, style=PromptStyle.TOKEN_IDS, seed=1, run_salt=arm.name)
    generator = LoadGenerator(options, prompts, SystemClock(), classes=traffic(seconds), seed=1)
    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(_watch(generator.progress, stack, on_progress))
        result = await generator.run()
        watcher.cancel()
    return _figures(arm, stack, result)


async def _watch(
    progress: LoadProgress, stack: LocalStack, on_progress: Callable[[LoadProgress], None]
) -> None:
    """Report progress, and end the run when a process of the stack has died."""
    while True:
        on_progress(progress)
        stack.check()
        await asyncio.sleep(0.2)


def _figures(arm: Arm, stack: LocalStack, result: LoadResult) -> ArmResult:
    ledger = wait_for_empty_ledger(stack.admin_url)
    batch = [record for record in result.records if record.traffic_class == "batch"]
    interactive = [record for record in result.records if record.traffic_class != "batch"]
    ttfts = known(interactive, lambda record: record.ttft_s)
    if not ttfts:
        raise StackError(f"arm {arm.name}: no interactive request got a token; logs: {stack.directory}")
    summary = summarize(batch, name="batch")
    return ArmResult(
        name=arm.name,
        interactive_requests=len(interactive),
        ttft_p50_s=percentile(ttfts, 0.50),
        ttft_p95_s=percentile(ttfts, 0.95),
        batch_requests=len(batch),
        output_tokens_per_s=summary.output_tokens_per_s,
        tokens_lost=_tokens_lost(batch),
        evictions=int(read_metrics(stack.admin_url).get("extproc_revocations_issued_total", 0)),
        rejected=sum(
            record.refused + (record.outcome is RequestOutcome.REJECTED) for record in result.records
        ),
        unfinished=sum(record.outcome is not RequestOutcome.COMPLETED for record in result.records),
        ledger_in_flight=ledger.in_flight + ledger.queued,
        envoy_version=stack.envoy_version(),
    )


def _tokens_lost(batch: Sequence[RequestRecord]) -> int:
    """Generated twice, or generated for an answer that never came to its end."""
    return sum(
        record.redone_tokens + (0 if record.outcome is RequestOutcome.COMPLETED else record.output_tokens)
        for record in batch
    )
