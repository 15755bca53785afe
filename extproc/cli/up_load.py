"""The load of `extproc up`: batch that fills the pool, and interactive requests on top, until cancelled."""

from __future__ import annotations

from extproc.bench.load import LoadGenerator
from extproc.bench.load_options import LoadOptions
from extproc.bench.prompts import PromptFactory, PromptStyle
from extproc.clock import SystemClock
from extproc.workload.arrivals import ClosedLoop, Poisson
from extproc.workload.lengths import Fixed, UniformLength
from extproc.workload.traffic import AfterEviction, TrafficClass

_FOREVER_S = 1e7


def endless_load(url: str, model: str, slots: int) -> LoadGenerator:
    """Batch keeps `slots` and half as many again requests open; interactive comes in short waves."""
    interactive = TrafficClass(
        name="interactive",
        priority=10,
        arrivals=Poisson(rate_per_s=max(1.0, slots / 16), end_s=_FOREVER_S),
        prompt=Fixed(tokens=64),
        output=Fixed(tokens=16),
    )
    batch = TrafficClass(
        name="batch",
        priority=-1,
        arrivals=ClosedLoop(concurrency=slots + slots // 2),
        prompt=Fixed(tokens=32),
        output=UniformLength(low=100, high=200),
        after_eviction=AfterEviction.RESUME,
    )
    options = LoadOptions(base_url=url, objectives={"interactive": "interactive", "batch": "batch"})
    prompts = PromptFactory(model=model, style=PromptStyle.TOKEN_IDS, seed=1, run_salt="up")
    return LoadGenerator(options, prompts, SystemClock(), classes=[interactive, batch], seed=1)
