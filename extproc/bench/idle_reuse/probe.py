"""Drives one arm over real sockets: Envoy, extproc, one emulated server, and requests at the wrong moment.

A cycle opens as many connections as it has probes, leaves them unused for the server's keep-alive, and sends
each probe at its own moment just before or after the closing. Each probe lasts longer than the whole window,
so that none is given the connection of another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from random import Random

from extproc.bench.idle_reuse.arms import IdleArm
from extproc.bench.idle_reuse.results import ArmResult, Probe
from extproc.client.answers import StreamEnd
from extproc.client.inference import InferenceClient
from extproc.clock import Clock, SystemClock
from extproc.stack.envoy import EnvoySettings
from extproc.stack.local import HOST, LocalStack
from extproc.tasks import TaskKeeper
from extproc.workload.rng import random_stream

_PATH = "/v1/completions"
_HARDWARE = "h200-qwen2.5-1.5b"
_TOKENS_PER_S = 150.0
"""What one sequence of that engine makes at least, with the few that run here."""
_STREAM_TOKENS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """`streams` long answers run all the while, to keep the server's event loop as busy as a serving one.

    `server` (host:port) is one that runs already and serves `model`; None: an emulated one.
    """

    keep_alive_s: float = 1.0
    cycles: int = 20
    probes: int = 32
    window_s: float = 0.025
    streams: int = 12
    seed: int = 0
    server: str | None = None
    model: str = "emulated"


def measure_arm(arm: IdleArm, plan: ProbePlan, on_cycle: Callable[[], None]) -> ArmResult:
    """Start the arm's stack, send its probes, stop it. Raises StackError."""
    settings = EnvoySettings(
        listen_host=HOST,
        listen_port=0,
        admin_port=0,
        upstream_idle_timeout_s=arm.idle_timeout_s(plan.keep_alive_s),
        upstream_retry_on=arm.retry_on,
    )
    emulator = ["--hardware", _HARDWARE, "--max-num-seqs", "256", "--keep-alive", str(plan.keep_alive_s)]
    emulators, endpoints = ([emulator], []) if plan.server is None else ([], [plan.server])
    with LocalStack({}, emulators=emulators, endpoints=endpoints, envoy=settings) as stack:
        probes = asyncio.run(_Prober(stack.url, plan, on_cycle).run())
        stack.check()
    return ArmResult(name=arm.name, window_s=plan.window_s, probes=probes)


class _Prober:
    def __init__(self, url: str, plan: ProbePlan, on_cycle: Callable[[], None]) -> None:
        self._plan = plan
        self._clock: Clock = SystemClock()
        self._rng: Random = random_stream(plan.seed, "idle-reuse")
        self._client = InferenceClient(url, clock=self._clock, concurrency=plan.probes + plan.streams + 8)
        self._on_cycle = on_cycle

    async def run(self) -> list[Probe]:
        found: list[Probe] = []
        async with self._client, self._background():
            for _ in range(self._plan.cycles):
                found += await self._cycle()
                self._on_cycle()
        return found

    async def _cycle(self) -> list[Probe]:
        plan = self._plan
        answers = await asyncio.gather(*[self._ask(tokens=8) for _ in range(plan.probes)])
        unused_at = max(answer.at for answer in answers)
        offsets = [self._rng.uniform(-plan.window_s, plan.window_s) for _ in range(plan.probes)]
        return await asyncio.gather(*[self._probe(unused_at, offset_s) for offset_s in sorted(offsets)])

    async def _probe(self, unused_at: float, offset_s: float) -> Probe:
        await self._clock.sleep_until(unused_at + self._plan.keep_alive_s + offset_s)
        answer = await self._ask(tokens=math.ceil(2 * self._plan.window_s * _TOKENS_PER_S) + 8)
        code = "" if answer.status == 200 else str(answer.error_code)
        return Probe(offset_s, answer.status, code)

    async def _ask(self, *, tokens: int) -> StreamEnd:
        body = {"model": self._plan.model, "prompt": "probe", "max_tokens": tokens, "ignore_eos": True}
        return await self._client.call(_PATH, body)

    @contextlib.asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        failures: list[BaseException] = []
        keeper = TaskKeeper(lambda name, error: failures.append(error))
        for number in range(self._plan.streams):
            keeper.spawn(self._stream_on(), name=f"stream-{number}")
        try:
            yield
        finally:
            await keeper.close()
        if failures:
            raise failures[0]

    async def _stream_on(self) -> None:
        body = {
            "model": self._plan.model,
            "prompt": "long",
            "max_tokens": _STREAM_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        while True:
            async with self._client.stream(_PATH, body) as answer:
                async for _ in answer:
                    pass
