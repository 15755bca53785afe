"""An emulated vLLM inside the test's own event loop, with steps of a fraction of a millisecond."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from extproc.clock import SystemClock
from extproc.sim.emulator.app import EmulatorApp
from extproc.sim.emulator.faults import FaultPlan, parse_fault
from extproc.sim.emulator.loop import EngineLoop
from extproc.sim.emulator.request import ServedModel
from extproc.sim.server_config import EngineConfig, StepCost
from extproc.sim.server_model import ServerModel

FAST = StepCost(base_s=2e-4, prefill_token_s=1e-7, sequence_s=1e-6, context_token_s=0.0)


@dataclass(slots=True)
class Emulated:
    """A running emulator."""

    url: str
    loop: EngineLoop

    @property
    def model(self) -> ServerModel:
        return self.loop.model


@asynccontextmanager
async def emulated(
    *faults: str, step_s: float | None = None, model: str = "tiny", **changes: object
) -> AsyncIterator[Emulated]:
    """Serve on loopback; `step_s` is the length of a step, `changes` are fields of `EngineConfig`."""
    cost = FAST if step_s is None else StepCost(base_s=step_s, prefill_token_s=0.0, sequence_s=0.0)
    settings: dict[str, object] = {"max_model_len": 2048, "kv_blocks": 1001, "cost": cost, **changes}
    config = EngineConfig(**settings)  # type: ignore[arg-type]
    clock = SystemClock()
    loop = EngineLoop(ServerModel(config, max_stretch_steps=1), clock)
    plan = FaultPlan()
    for text in faults:
        plan.add(parse_fault(text))
    served = ServedModel(name=model, max_model_len=config.max_model_len)
    app = EmulatorApp(loop, served, clock, random.Random(1), plan)
    runner = web.AppRunner(app.build(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    task = asyncio.get_running_loop().create_task(loop.run())
    try:
        yield Emulated(f"http://127.0.0.1:{runner.addresses[0][1]}", loop)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.cleanup()
