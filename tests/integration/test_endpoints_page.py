"""Every example of docs/endpoints.md is loaded and does what the page says of it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli import cli
from extproc.clock import SystemClock
from extproc.config.endpoints import (
    DnsDiscovery,
    EndpointList,
    EndpointsConfig,
    FileDiscovery,
    KubernetesDiscovery,
)
from extproc.config.loader import load_text
from extproc.config.schema import Config, parse_config
from extproc.core.events import EndpointAdded, Event
from extproc.core.picker import Picker, ProfilesPickerConfig, build_picker
from extproc.core.pool import Candidates, EndpointState
from extproc.core.types import Request, RequestId
from extproc.runtime.app import Application
from extproc.runtime.discovery.dns import DnsSource
from extproc.runtime.discovery.files import FileSource
from extproc.runtime.discovery.kubernetes import KubernetesSource
from extproc.runtime.pool_watch import PoolWatch
from extproc.tasks import TaskKeeper
from tests.support.kube_api import kube_api
from tests.support.name_server import name_server
from tests.support.pickers import sample, state
from tests.support.published import running

PAGE = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- example: ([a-z-]+) -->\n```yaml\n(.*?)```", PAGE, re.DOTALL))
TESTED = {
    "static",
    "file",
    "file-content",
    "dns",
    "kubernetes",
    "kubernetes-service",
    "scrape",
    "health",
    "profiles",
    "sticky-session",
    "choices",
}


def config(name: str) -> Config:
    return parse_config(EXAMPLES[name], source=f"docs/endpoints.md, example {name}")


def test_every_block_of_the_page_is_an_example_and_tested_here() -> None:
    assert PAGE.count("```yaml") == len(EXAMPLES)
    assert set(EXAMPLES) == TESTED


async def test_static() -> None:
    posted: list[Event] = []
    keeper = TaskKeeper(lambda name, error: pytest.fail(f"{name}: {error}"))
    endpoints = dataclasses.replace(config("static").endpoints, scrape=EndpointsConfig().scrape)
    watch = PoolWatch(endpoints, clock=SystemClock(), post=posted.append, keeper=keeper, rng=random.Random(1))
    watch.start()
    watch.close()
    await keeper.close()
    added = [event.endpoint for event in posted if isinstance(event, EndpointAdded)]
    assert [endpoint.name for endpoint in added] == ["gpu-a", "gpu-b", "gpu-c"]
    assert added[0].labels == {"gpu": "h200", "zone": "eu-1"}
    assert (added[1].address, added[1].max_requests) == ("[fd00::2]:8000", 64)
    assert added[2].is_draining


async def test_file(tmp_path: Path) -> None:
    (discovery,) = config("file").endpoints.discovery
    assert isinstance(discovery, FileDiscovery)
    path = tmp_path / "endpoints.yaml"
    path.write_text(EXAMPLES["file-content"])
    assert len(load_text(EXAMPLES["file-content"], EndpointList).endpoints) == 2
    source = FileSource(dataclasses.replace(discovery, path=str(path)), SystemClock())
    async with running(source) as published:
        await published.shows("10.0.0.1:8000", "10.0.0.2:8000")


async def test_dns() -> None:
    (discovery,) = config("dns").endpoints.discovery
    assert isinstance(discovery, DnsDiscovery)
    async with name_server() as (server, address):
        server.records[discovery.name, "SRV"] = (5, ["0 0 8000 gpu-a.vllm.example."])
        server.records["gpu-a.vllm.example.", "A"] = (5, ["10.0.0.1"])
        source = DnsSource(dataclasses.replace(discovery, nameservers=(address,)), SystemClock())
        async with running(source) as published:
            await published.shows("10.0.0.1:8000")


@pytest.mark.parametrize("name", ["kubernetes", "kubernetes-service"])
async def test_kubernetes(name: str) -> None:
    (discovery,) = config(name).endpoints.discovery
    assert isinstance(discovery, KubernetesDiscovery)
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1"}
    pool = {"selector": {"matchLabels": {"app": "llama"}}, "targetPorts": [{"number": 8000}]}
    slice_of = {"kubernetes.io/service-name": "vllm"}
    async with kube_api() as (api, url):
        pools = "/apis/inference.networking.k8s.io/v1/namespaces/ml/inferencepools"
        await api.put(pools, {"metadata": {"uid": "p", "name": "llama-70b"}, "spec": pool})
        labels = {"app": "llama"}
        await api.put(
            "/api/v1/namespaces/ml/pods", {"metadata": {"uid": "a", "labels": labels}, "status": ready}
        )
        await api.put(
            "/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices",
            {"metadata": {"uid": "s", "labels": slice_of}, "endpoints": [{"addresses": ["10.0.0.1"]}]},
        )
        source = KubernetesSource(
            dataclasses.replace(discovery, api_server=url), SystemClock(), random.Random(1)
        )
        async with running(source) as published:
            await published.shows("10.0.0.1:8000")


def test_scrape_and_health() -> None:
    scrape = config("scrape").endpoints.scrape
    assert scrape.metric_names().waiting_requests == ("my:queue_length",)
    assert scrape.metric_names().running_requests == ("vllm:num_requests_running",)
    plain = dataclasses.replace(
        scrape, tls=None, authorization_file=None, metrics=EndpointsConfig().scrape.metrics
    )
    assert plain == EndpointsConfig().scrape, "the page shows the defaults"
    assert config("health").endpoints.health == EndpointsConfig().health, "the page shows the defaults"


class Pool:
    """The picker of an example over a few endpoints."""

    def __init__(self, name: str, *states: EndpointState) -> None:
        picker = config(name).flow_control.picker
        assert isinstance(picker, ProfilesPickerConfig)
        self.picker: Picker = build_picker(picker, random.Random(3))
        self.states = states
        for known in states:
            self.picker.endpoint_changed(known)

    def pick(self, limit: int = 100, **attributes: object) -> list[str]:
        request = Request(id=RequestId(1), **attributes)  # type: ignore[arg-type]
        labels = self.picker.required_labels(request)
        fitting = [s for s in self.states if all(s.endpoint.labels.get(k) == v for k, v in labels)]
        whole = len(fitting) == len(self.states)
        candidates = Candidates({s.id: s for s in fitting}, is_whole_pool=whole)
        pick = self.picker.pick(request, candidates, lambda s: s.requests < limit, 0.0)
        assert pick is not None
        pick.endpoint.requests += 1
        self.picker.endpoint_changed(pick.endpoint)
        self.picker.request_dispatched(request, pick.endpoint, 0.0)
        return [s.endpoint.name for s in (pick.endpoint, *pick.fallbacks)]


def test_profiles() -> None:
    fast = [state(name, labels={"gpu": "h200"}) for name in ("fast-1", "fast-2", "fast-3", "fast-4")]
    slow = state("slow", labels={"gpu": "l4"})
    pool = Pool("profiles", *fast, slow)
    prompt = tuple(range(8))
    first = pool.pick(priority=5, prefix_hashes=prompt)
    assert len(first) == 3
    assert "slow" not in first
    again = pool.pick(priority=5, prefix_hashes=prompt)
    assert again[0] == first[0], "its prefix is cached there"
    for known in fast:
        known.sample = sample(known, kv=0.95)
        pool.picker.endpoint_changed(known)
    slow.sample = sample(slow, kv=0.5)
    pool.picker.endpoint_changed(slow)
    counts = Counter(pool.pick(priority=-1)[0] for _ in range(100))
    assert counts["slow"] >= 30, "two random ones are drawn; the emptier cache wins"
    assert len(pool.pick(priority=-1)) == 1


def test_sticky_session() -> None:
    pool = Pool("sticky-session", state("a"), state("b"))
    (home,) = pool.pick(session_id="s")
    assert {pool.pick(session_id="s")[0] for _ in range(5)} == {home}
    assert pool.pick(session_id="s", limit=6) != [home], "full: another one takes it"


def test_choices() -> None:
    light, heavy = state("light"), state("heavy", requests=50)
    pool = Pool("choices", light, heavy)
    assert [pool.pick(model="a")[0] for _ in range(4)] == ["light", "heavy"] * 2
    assert pool.pick(model="anything else") == ["light"]
    for model in "bcd":
        counts = Counter(pool.pick(model=model)[0] for _ in range(40))
        assert counts["light"] > 0
        light.requests, heavy.requests = 0, 50
        for known in (light, heavy):
            pool.picker.endpoint_changed(known)


async def test_the_command_of_the_page() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    program, *arguments = shlex.split(block)
    assert program == "extproc"
    app = Application(parse_config("server: {port: 0}\nadmin: {port: 0}\n"))
    await app.start()
    try:
        url = f"http://127.0.0.1:{app.admin_port}"
        result = await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, "--url", url])
    finally:
        await app.stop()
    assert result.exit_code == 0, result.output
    assert "Priority 5" in result.output or "priority 5" in result.output
    assert "the pool has no open endpoint" in result.output
