"""Background tasks: kept alive, named, and never silent about their end."""

from __future__ import annotations

import asyncio
import gc

from extproc.tasks import TaskKeeper


async def test_field_bug_127_tasks_outlive_the_collector_and_tell_their_errors() -> None:
    failures: list[tuple[str, str]] = []
    keeper = TaskKeeper(lambda name, error: failures.append((name, str(error))))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.get_running_loop().create_future() if ticks > 3 else await asyncio.sleep(0)
            ticks += 1

    async def fail() -> None:
        raise RuntimeError("gone wrong")

    keeper.spawn(tick(), name="tick")
    keeper.spawn(fail(), name="fail")
    for _ in range(20):
        gc.collect()
        await asyncio.sleep(0)
    assert ticks > 3
    assert failures == [("fail", "gone wrong")]
    assert len(keeper) == 1
    await keeper.close()
    assert len(keeper) == 0
    assert failures == [("fail", "gone wrong")], "a cancelled task is no failure"
