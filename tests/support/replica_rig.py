"""Three replicas behind one Envoy under load, with everything that a test may kill, stop or cut off."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc.client.answers import EndKind, StreamEnd
from extproc.client.inference import InferenceClient
from extproc.clock import SystemClock
from extproc.stack.envoy import EnvoySettings
from extproc.stack.local import HOST, LocalStack
from tests.support.fault_rig import FaultRig
from tests.support.interactive_load import HEADERS
from tests.support.tcp_proxy import TcpProxy

SLOTS = 16
REPLICAS = 3
LEASE_S = 1.5
_LASTING_S = 0.1
SHARE = -(-SLOTS // REPLICAS)


class ReplicaRig(FaultRig):
    """One emulated engine with more places than the group may use, so that too many would be seen."""

    def __init__(self, folder: Path, *, speed: float = 0.2) -> None:
        self.proxy = TcpProxy(lambda: self.group.redis_port)
        store = {"type": "sqlite", "folder": str(folder / "store")}
        super().__init__(folder, store, speed=speed, with_envoy=True)

    def _make_stack(self) -> LocalStack:
        config: dict[str, Any] = {
            "flow_control": {
                "default_ttl_s": 300.0,
                "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": SLOTS},
                "eviction": {"enabled": True},
            },
            "requests": {"priority": {"objectives": {"interactive": 10, "batch": -1}}},
            "server": {"drain_delay_s": 4.0, "drain_timeout_s": 30.0},
            "replicas": {"lease_s": LEASE_S, "leader_lease_s": 0.5},
        }
        return LocalStack(
            config,
            emulators=[],
            endpoints=[f"{HOST}:{self.engine_port}"],
            envoy=EnvoySettings(listen_host=HOST, listen_port=self._envoy_port, admin_port=0),
            directory=self._folder / "stack",
            replicas=REPLICAS,
            redis_urls={0: f"redis://{HOST}:{self.proxy.port}/0"},
        )

    @property
    def group(self) -> LocalStack:
        assert self.stack is not None
        return self.stack

    @contextlib.contextmanager
    def running(self) -> Any:
        try:
            with super().running():
                yield self
        finally:
            self.proxy.close()

    async def states(self) -> list[dict[str, Any] | None]:
        """Every replica's own view; None where it does not answer."""
        return await replica_states(self.group)

    async def leader(self) -> int:
        """Index of the replica that allocates."""
        found: list[int] = []

        async def is_known() -> bool:
            states = await self.states()
            found[:] = [i for i, state in enumerate(states) if state and state["replica"]["is_leader"]]
            return len(found) == 1

        await until(is_known)
        return found[0]

    async def held_by(self, index: int) -> int:
        """Requests that this replica decides on now."""
        state = (await self.states())[index]
        assert state is not None
        return sum(band["inflight"] + band["queued"] for band in state["bands"])

    async def until_busy(self, watch: EngineWatch) -> None:
        """The group shares the pool and has filled it."""
        await self.until_credits_are_back(range(REPLICAS), 20.0)

        async def is_full() -> bool:
            return watch.peak >= SLOTS

        await until(is_full)

    async def until_state(self, index: int, *wanted: str, timeout_s: float = 20.0) -> None:
        async def is_there() -> bool:
            state = (await self.states())[index]
            return state is not None and state["replica"]["state"] in wanted

        await until(is_there, timeout_s)

    def kill(self, index: int) -> None:
        """End a replica without warning."""
        child = self.group.child(self.group.extproc_name(index))
        child.signal(signal.SIGKILL)
        child.wait(10)

    async def until_credits_are_back(self, members: Sequence[int], timeout_s: float) -> None:
        """The given replicas hold the capacity together, but for what just moves; none is on its fallback.

        They are asked one after the other while credits move, so one credit of each may be on its way.
        """

        async def are_back() -> bool:
            states = await self.states()
            groups = [state["replica"] if (state := states[index]) else None for index in members]
            if any(group is None or group["state"] != "leased" for group in groups):
                return False
            return sum(group["credits"]["slots"] for group in groups if group) > SLOTS - REPLICAS

        await until(are_back, timeout_s)


class EngineWatch:
    """The engine's own count of requests, as often as it answers.

    `peak` is the most that lasted for `_LASTING_S`: an evicted request is gone for the gateway when its
    stream has ended, for the engine a few milliseconds later, with one replica as with three.
    """

    def __init__(self, engine_url: str) -> None:
        self._url = engine_url
        self.peak = 0
        self._latest: deque[tuple[float, int]] = deque()

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{self._url}/metrics") as answer:
                    text = await answer.text()
                counts = {
                    sample.name: sample.value
                    for family in text_string_to_metric_families(text)
                    for sample in family.samples
                    if sample.name in ("vllm:num_requests_running", "vllm:num_requests_waiting")
                }
                self._take(int(sum(counts.values())), SystemClock().now())
                await asyncio.sleep(0.01)

    def _take(self, count: int, now: float) -> None:
        self._latest.append((now, count))
        while len(self._latest) > 1 and self._latest[1][0] <= now - _LASTING_S:
            self._latest.popleft()
        if self._latest[0][0] <= now - _LASTING_S:
            self.peak = max(self.peak, min(count for _, count in self._latest))


async def replica_states(stack: LocalStack) -> list[dict[str, Any] | None]:
    """What every replica says of itself; None where it does not answer."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0)) as session:
        return list(await asyncio.gather(*(_state(session, url) for url in stack.admin_urls)))


async def _state(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    try:
        async with session.get(f"{url}/debug/state") as answer:
            state: dict[str, Any] = await answer.json()
            return state
    except (aiohttp.ClientError, TimeoutError):
        return None


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 (nobody tells us)
            await asyncio.sleep(0.05)


class InteractiveLoad:
    """Requests of priority 10 at a steady pace; `ends` holds how each ended, once the block is left."""

    def __init__(self, url: str, *, every_s: float = 0.12, tokens: int = 12) -> None:
        self._url = url
        self._every_s = every_s
        self._tokens = tokens
        self.ends: list[StreamEnd] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[InteractiveLoad]:
        client = InferenceClient(self._url, clock=SystemClock(), concurrency=1000)
        async with client, asyncio.TaskGroup() as group:
            pace = group.create_task(self._send(client, group))
            try:
                yield self
            finally:
                pace.cancel()

    async def _send(self, client: InferenceClient, group: asyncio.TaskGroup) -> None:
        number = 0
        while True:
            group.create_task(self._one(client, number))
            number += 1
            await asyncio.sleep(self._every_s)

    async def _one(self, client: InferenceClient, number: int) -> None:
        body = {"model": "emulated", "prompt": f"interactive {number}", "max_tokens": self._tokens}
        body |= {"ignore_eos": True, "stream": True}
        async with client.stream("/v1/completions", body, headers=HEADERS) as answer:
            async for _ in answer:
                pass
            self.ends.append(answer.end)

    def failures(self) -> list[StreamEnd]:
        return [end for end in self.ends if end.kind is not EndKind.FINISHED]
