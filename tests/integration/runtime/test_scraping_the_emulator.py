"""The scraper, the pool watch and the controller against the emulated vLLM's own metrics page."""

from __future__ import annotations

import asyncio
import random

import aiohttp

from extproc.clock import SystemClock
from extproc.config.endpoints import EndpointEntry, EndpointsConfig, ScrapeConfig, StaticDiscovery
from extproc.core.events import EndpointSampled, Event
from extproc.core.types import EndpointSample
from extproc.runtime.pool_watch import PoolWatch
from extproc.tasks import TaskKeeper
from tests.support.emulated import emulated
from tests.support.published import wait_for

SCRAPE = ScrapeConfig(
    min_interval_s=0.02,
    busy_interval_s=0.02,
    max_interval_s=0.05,
    max_duty_fraction=1.0,
    models_interval_s=0.05,
)


async def test_what_the_engine_reports_arrives_and_moves_with_its_load() -> None:
    posted: list[Event] = []
    keeper = TaskKeeper(lambda _name, error: posted.clear())
    async with emulated(step_s=0.005, kv_blocks=1001) as engine, aiohttp.ClientSession() as client:
        address = engine.url.removeprefix("http://")
        entry = EndpointEntry(name="emulated", address=address)
        config = EndpointsConfig(discovery=(StaticDiscovery(endpoints=(entry,)),), scrape=SCRAPE)
        watch = PoolWatch(
            config, clock=SystemClock(), post=posted.append, keeper=keeper, rng=random.Random(1)
        )
        watch.start()

        def last() -> EndpointSample:
            samples = [event.sample for event in posted if isinstance(event, EndpointSampled)]
            return samples[-1] if samples else EndpointSample(endpoint_id=entry.name, sampled_at=0.0)  # type: ignore[arg-type]

        await wait_for(lambda: last().models is not None)
        idle = last()
        assert (idle.running_requests, idle.waiting_requests, idle.max_model_len) == (0, 0, 2048)
        assert idle.kv_capacity_tokens == 1000 * (idle.kv_block_tokens or 0)
        body = {"model": "tiny", "prompt": [1] * 200, "max_tokens": 200, "ignore_eos": True}
        requests = [
            asyncio.get_running_loop().create_task(client.post(f"{engine.url}/v1/completions", json=body))
            for _ in range(3)
        ]
        await wait_for(lambda: last().running_requests == 3)
        assert (last().kv_usage_fraction or 0.0) > 0.0
        for request in requests:
            (await request).release()
        await wait_for(lambda: last().running_requests == 0)
        assert (last().prompt_tokens_total or 0) >= 600
        assert watch.endpoints()[0].scrape is not None
        watch.close()
    await keeper.close()
