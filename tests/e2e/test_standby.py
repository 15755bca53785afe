"""A warm standby through the real Envoy: the active one is killed or leaves, the other serves on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from extproc.client.answers import EndKind
from extproc.stack.ledger import read_metrics
from extproc.stack.local import LocalStack
from tests.support.replica_rig import InteractiveLoad, replica_states, until

CONFIG: dict[str, Any] = {
    "flow_control": {
        "default_ttl_s": 60.0,
        "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": 16},
    },
    "requests": {"priority": {"objectives": {"interactive": 10}}},
    "server": {"drain_delay_s": 1.0, "drain_timeout_s": 20.0},
    "replicas": {"mode": "standby", "lease_s": 1.5},
}


async def active_one(stack: LocalStack) -> int:
    """Index of the only one that serves."""
    found: list[int] = []

    async def is_one() -> bool:
        states = await replica_states(stack)
        found[:] = [i for i, state in enumerate(states) if state and state["replica"]["state"] == "active"]
        return len(found) == 1

    await until(is_one)
    return found[0]


def arrived(stack: LocalStack, index: int) -> float:
    return read_metrics(stack.admin_urls[index]).get("extproc_requests_arrived_total", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_the_standby_takes_over(tmp_path: Path, end: signal.Signals) -> None:
    server = ["--speed", "0.5"]
    with LocalStack(CONFIG, emulators=[server], replicas=2, directory=tmp_path / "stack") as stack:
        first = await active_one(stack)
        other = 1 - first
        load = InteractiveLoad(stack.url)
        async with load.running():
            await until(lambda: _has_answers(load, 20))
            assert arrived(stack, other) == 0, "only the active one is sent requests"
            before = len(load.ends)
            child = stack.child(stack.extproc_name(first))
            child.signal(end)
            assert await asyncio.to_thread(child.wait, 30) is not None
            assert await active_one(stack) == other
            await until(lambda: _has_answers(load, before + 40))
        failures = load.failures()
        assert arrived(stack, other) > 5
        if end is signal.SIGTERM:
            assert not failures
        assert len(failures) <= 16 + 3
        assert all(failure.kind is not EndKind.REFUSED for failure in load.ends[-20:])


async def _has_answers(load: InteractiveLoad, count: int) -> bool:
    return len(load.ends) >= count
