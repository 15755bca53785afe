"""Cheap helper requests skip the queue and go to healthy endpoints in turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from extproc.core.events import EndpointHealthChanged
from tests.support.gateway import Gateway, chat, wait_until

FULL = {
    "flow_control": {"detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": 1}}
}


async def test_field_bug_110_the_model_list_is_not_queued_and_comes_from_each_server_in_turn(
    tmp_path: Path,
) -> None:
    async with Gateway(tmp_path, FULL, servers=2) as gateway, gateway.client() as client:
        held = [
            asyncio.create_task(
                client.post("/v1/chat/completions", json=chat(), headers={"x-stub-hold": "true"})
            )
            for _ in range(2)
        ]
        await wait_until(lambda: [model.active for model in gateway.models] == [1, 1])
        for _ in range(10):
            assert (await client.get("/v1/models")).status_code == 200
        assert [len(model.seen) for model in gateway.models] == [6, 6]
        first = gateway.app.watch.endpoints()[0]
        gateway.app.driver.post(EndpointHealthChanged(first.endpoint_id, False))
        before = len(gateway.models[0].seen)
        for _ in range(4):
            assert (await client.get("/v1/models")).status_code == 200
        assert len(gateway.models[0].seen) == before, "not to one that is left out"
        for model in gateway.models:
            model.release()
        for task in held:
            assert (await task).status_code == 200
