"""A model server that dies without telling anybody, behind the real Envoy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from extproc.config.checks import envoy_needs
from extproc.config.envoy_limits import check_envoy
from extproc.config.yaml_source import parse_yaml
from extproc.runtime.health import HealthState
from tests.support.gateway import Gateway, chat, wait_until

CHAT = "/v1/chat/completions"


def config(**health: Any) -> dict[str, Any]:
    return {
        "flow_control": {
            "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": 4},
            "picker": {
                "type": "profiles",
                "profiles": [{"name": "all", "choice": {"type": "round-robin"}, "max_endpoints": 2}],
            },
        },
        "endpoints": {"health": health},
    }


async def test_field_bug_109_a_dead_pick_is_retried_on_the_fallback_and_then_left_out(tmp_path: Path) -> None:
    settings = config(base_ejection_s=60.0)
    async with (
        Gateway(tmp_path, settings, servers=2, static_pool=True) as gateway,
        gateway.client() as client,
    ):
        dead, alive = gateway.models
        await dead.stop()
        for _ in range(20):
            answer = await client.post(CHAT, json=chat())
            assert answer.status_code == 200
        assert len(alive.seen) == 20
        states = {status.address: status.health for status in gateway.app.watch.endpoints()}
        assert states == {dead.address: HealthState.EJECTED, alive.address: HealthState.HEALTHY}
        retries = await gateway.stats("cluster.models.upstream_rq_retry$")
        assert retries == {"cluster.models.upstream_rq_retry": 3}
        rows = {row.address: row.inflight_requests for row in gateway.app.driver.statistics().endpoints}
        assert rows == {dead.address: 0, alive.address: 0}


async def test_a_dead_only_server_does_not_burn_the_queue(tmp_path: Path) -> None:
    """What is queued waits for it to come back; only what was sent before it was known to be gone is lost."""
    settings = config(base_ejection_s=2.0)
    settings["flow_control"]["detector"]["max_concurrency"] = 1
    async with Gateway(tmp_path, settings) as gateway, gateway.client() as client:
        held = {"x-stub-hold": "true"}
        first = asyncio.create_task(client.post(CHAT, json=chat(), headers=held))
        await wait_until(lambda: gateway.model.active == 1)
        queued = [asyncio.create_task(client.post(CHAT, json=chat())) for _ in range(20)]
        await wait_until(lambda: gateway.app.driver.statistics().queued_requests == 20)
        await gateway.model.stop()
        await wait_until(lambda: sum(task.done() for task in queued) >= 3)
        await asyncio.gather(*(client.get("/v1/models") for _ in range(20)))
        await gateway.model.start()
        answers = [answer.status_code for answer in await asyncio.gather(*queued)]
        await asyncio.gather(first, return_exceptions=True)
    assert sorted(answers) == [200] * 17 + [503] * 3


async def test_fallbacks_and_an_original_dst_cluster_answer_nothing_and_check_says_so_beforehand(
    tmp_path: Path,
) -> None:
    async with (
        Gateway(tmp_path, config(consecutive_failures=0), servers=2) as gateway,
        gateway.client() as client,
    ):
        answer = await client.post(CHAT, json=chat())
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "no healthy upstream")
        assert [len(model.seen) for model in gateway.models] == [0, 0]
        invalid = await gateway.stats("cluster.models.original_dst_host_invalid")
        assert list(invalid.values()) == [1]
        used = parse_yaml((tmp_path / "envoy.json").read_text())
        problems = check_envoy(used, envoy_needs(gateway.app.config))
    assert ["ORIGINAL_DST takes one address" in problem.message for problem in problems] == [True]


async def test_the_load_of_a_retried_request_is_booked_where_it_runs(tmp_path: Path) -> None:
    settings = config(consecutive_failures=0)
    async with (
        Gateway(tmp_path, settings, servers=2, static_pool=True) as gateway,
        gateway.client() as client,
    ):
        dead, alive = gateway.models
        await dead.stop()
        headers = {"x-stub-tokens": "3", "x-stub-hold": "true"}
        async with (
            client.stream("POST", CHAT, json=chat(stream=True), headers=headers) as one,
            client.stream("POST", CHAT, json=chat(stream=True), headers=headers) as two,
        ):
            assert (one.status_code, two.status_code) == (200, 200)

            def loads() -> dict[str, int]:
                rows = gateway.app.driver.statistics().endpoints
                return {row.address: row.inflight_requests for row in rows}

            await wait_until(lambda: loads() == {dead.address: 0, alive.address: 2})
            alive.release()
            for stream in (one, two):
                async for _ in stream.aiter_bytes():
                    pass


async def test_a_poisonous_request_leaves_half_of_the_pool_and_one_good_answer_brings_the_rest_back(
    tmp_path: Path,
) -> None:
    settings = config(base_ejection_s=0.3)
    async with (
        Gateway(tmp_path, settings, servers=2, static_pool=True) as gateway,
        gateway.client() as client,
    ):

        def states() -> list[str]:
            return sorted(status.health.value for status in gateway.app.watch.endpoints())

        for _ in range(10):
            assert (await client.post(CHAT, json=chat(), headers={"x-stub-status": "500"})).status_code == 500
        assert states() == ["ejected", "healthy"]
        await wait_until(lambda: states() == ["healthy", "probing"])
        for _ in range(2):
            assert (await client.post(CHAT, json=chat())).status_code == 200
        assert states() == ["healthy", "healthy"]
