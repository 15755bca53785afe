"""Kubernetes discovery against an API server over real HTTP: lists, watches, bookmarks, 410 and cuts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.clock import SystemClock
from extproc.config.endpoints import KubernetesDiscovery
from extproc.errors import ConfigError
from extproc.runtime.discovery.kubernetes import KubernetesSource
from tests.support.kube_api import KubeApi, kube_api
from tests.support.published import running, wait_for

PODS = "/api/v1/namespaces/ml/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ml/inferencepools"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices"


def pool(labels: dict[str, str], *ports: int) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": labels}, "targetPorts": [{"number": port} for port in ports]}
    return {"metadata": {"uid": "pool", "name": "llama"}, "spec": spec}


def pod(name: str, ip: str, *, is_ready: bool = True, uid: str = "", **meta: object) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": uid or f"uid-{name}",
            "name": name,
            "namespace": "ml",
            "labels": {"app": "vllm", "zone": "b"},
            **meta,
        },
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}]},
    }


def source(url: str, **settings: object) -> KubernetesSource:
    values = {"namespace": "ml", "pool": "llama", "api_server": url, "max_backoff_s": 0.1, **settings}
    return KubernetesSource(KubernetesDiscovery(**values), SystemClock(), random.Random(1))  # type: ignore[arg-type]


async def started(api: KubeApi, *pods: dict[str, Any]) -> None:
    await api.put(POOLS, pool({"app": "vllm"}, 8000))
    for item in pods:
        await api.put(PODS, item)


async def until_watching(api: KubeApi, path: str, count: int = 1) -> None:
    await wait_for(lambda: len(api.watches(path)) >= count)


async def test_ready_pods_of_the_pool_are_its_endpoints(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with kube_api() as (api, url):
        await started(api, pod("a", "10.0.0.1"), pod("b", "10.0.0.2", is_ready=False))
        async with running(source(url, token_file=str(token))) as published:
            await published.shows("10.0.0.1:8000")
            entry = published.lists[-1][0]
            assert (entry.name, entry.start, entry.labels["zone"]) == ("ml/a", "uid-a-0", "b")
            await until_watching(api, PODS)
            await api.put(PODS, pod("b", "10.0.0.2"))
            await published.shows("10.0.0.1:8000", "10.0.0.2:8000")
            await api.put(PODS, pod("a", "10.0.0.1", is_ready=False))
            await published.shows("10.0.0.2:8000")
            await api.put(PODS, pod("b", "10.0.0.2", deletionTimestamp="2026-01-01T00:00:00Z"))
            await published.until(lambda: [e.draining for e in published.lists[-1]] == [True])
            await api.delete(PODS, "uid-b")
            await published.shows()
            token.write_text("second\n")  # the kubelet replaces it while the process runs
            await api.cut_watches()
            await wait_for(lambda: api.tokens[-1] == "Bearer second")
    assert api.tokens[0] == "Bearer first"


async def test_a_changed_pool_is_followed_and_every_target_port_is_an_endpoint() -> None:
    async with kube_api() as (api, url):
        await started(api, pod("a", "10.0.0.1"))
        other = pod("x", "10.0.0.9")
        other["metadata"]["labels"] = {"app": "other"}
        await api.put(PODS, other)
        async with running(source(url)) as published:
            await published.shows("10.0.0.1:8000")
            await until_watching(api, POOLS)
            await api.put(POOLS, pool({"app": "other"}, 8000, 8001))
            await published.shows("10.0.0.9:8000", "10.0.0.9:8001")
            assert {entry.name for entry in published.lists[-1]} == {"ml/x:8000", "ml/x:8001"}


async def test_field_bug_068_a_replaced_pod_is_another_endpoint_whatever_order_events_come_in() -> None:
    async with kube_api() as (api, url):
        await started(api, pod("a-0", "10.0.0.1", uid="old"))
        async with running(source(url)) as published:
            await published.shows("10.0.0.1:8000")
            await until_watching(api, PODS)
            await api.put(PODS, pod("a-0", "10.0.0.1", uid="new"))
            await published.until(lambda: len(published.lists[-1]) >= 2)
            await api.delete(PODS, "old")  # late
            await published.until(lambda: len(published.lists[-1]) == 1)
            assert published.lists[-1][0].start == "new-0"


async def test_a_broken_watch_goes_on_where_it_was_without_listing_again() -> None:
    async with kube_api() as (api, url):
        await started(api, pod("a", "10.0.0.1"))
        async with running(source(url)) as published:
            await published.shows("10.0.0.1:8000")
            await until_watching(api, PODS)
            await api.put(PODS, pod("b", "10.0.0.2"))
            await published.shows("10.0.0.1:8000", "10.0.0.2:8000")
            seen = api.version
            await api.cut_watches()
            await until_watching(api, PODS, 2)
            await api.put(PODS, pod("c", "10.0.0.3"))
            await published.shows("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
    assert api.lists(PODS) == 1
    assert api.watches(PODS)[1]["resourceVersion"] == str(seen)


async def test_bookmarks_move_the_version_forward() -> None:
    async with kube_api() as (api, url):
        await started(api, pod("a", "10.0.0.1"))
        async with running(source(url, watch_timeout_s=1.0)) as published:
            await published.shows("10.0.0.1:8000")
            await until_watching(api, PODS)
            await api.bookmark(PODS)
            marked = api.version
            await wait_for(lambda: api.watches(PODS)[-1]["resourceVersion"] == str(marked))
    assert api.lists(PODS) == 1
    assert all(query["allowWatchBookmarks"] == "true" for query in api.watches(PODS))


@pytest.mark.parametrize("is_inside", [False, True])
async def test_a_version_that_is_too_old_means_listing_again(is_inside: bool) -> None:
    async with kube_api() as (api, url):
        api.gone_inside_the_watch = is_inside
        await started(api, pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
        tested = source(url)
        async with running(tested) as published:
            await published.shows("10.0.0.1:8000", "10.0.0.2:8000")
            await until_watching(api, PODS)
            await api.delete(PODS, "uid-a", quietly=True)  # missed while the watch was away
            api.oldest_known = api.version
            await api.cut_watches()
            await published.shows("10.0.0.2:8000")
    assert api.lists(PODS) == 2


async def test_lists_come_in_pages() -> None:
    async with kube_api() as (api, url):
        pods = [pod(f"p{number}", f"10.0.1.{number}") for number in range(1, 8)]
        await started(api, *pods)
        async with running(source(url, list_limit=3)) as published:
            await published.shows(*(f"10.0.1.{number}:8000" for number in range(1, 8)))
    assert api.lists(PODS) == 3


async def test_an_api_server_that_fails_keeps_the_pool_and_is_asked_less_and_less() -> None:
    async with kube_api() as (api, url):
        await started(api, pod("a", "10.0.0.1"))
        tested = source(url, max_backoff_s=30.0)
        async with running(tested) as published:
            await published.shows("10.0.0.1:8000")
            await until_watching(api, PODS)
            api.failing_status = 403
            before = len(api.requests)
            await api.cut_watches()
            await wait_for(lambda: "lacks the role" in str(tested.health.problem))
            await wait_for(lambda: tested.health.problems >= 4)
            assert len(api.requests) - before <= 8
            assert published.addresses == {"10.0.0.1:8000"}


async def test_a_pool_that_does_not_exist_yet_is_an_empty_pool() -> None:
    async with kube_api() as (api, url):
        tested = source(url)
        async with running(tested) as published:
            await published.shows()
            assert tested.health.problem == "there is no such InferencePool"
            await api.put(PODS, pod("a", "10.0.0.1"))
            await until_watching(api, POOLS)
            await api.put(POOLS, pool({"app": "vllm"}, 8000))
            await published.shows("10.0.0.1:8000")


def endpoint_slice(*endpoints: dict[str, Any]) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": "vllm"}
    return {
        "metadata": {"uid": "slice", "name": "vllm-x", "labels": labels},
        "ports": [{"port": 8000}],
        "endpoints": list(endpoints),
    }


def row(ip: str, uid: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [ip], "conditions": conditions, "targetRef": {"name": uid, "uid": uid}, "zone": "z1"}


async def test_a_services_endpoint_slices_without_terminating_ones_that_no_longer_serve() -> None:
    async with kube_api() as (api, url):
        first = endpoint_slice(
            row("10.0.0.1", "a", ready=True),
            row("10.0.0.2", "b", ready=False),
            row("10.0.0.3", "c", ready=False, serving=True, terminating=True),
            row("fd00::4", "d", ready=True),
        )
        await api.put(SLICES, first)
        async with running(source(url, pool=None, service="vllm")) as published:
            await published.shows("10.0.0.1:8000", "10.0.0.3:8000", "[fd00::4]:8000")
            draining = {entry.address for entry in published.lists[-1] if entry.draining}
            assert draining == {"10.0.0.3:8000"}
            assert published.lists[-1][0].labels == {"zone": "z1"}
            await until_watching(api, SLICES)
            await api.put(SLICES, endpoint_slice(row("10.0.0.1", "a2", ready=True)))
            await published.until(lambda: [e.start for e in published.lists[-1]] == ["a2"])


@pytest.mark.parametrize("answer", ["[]", "garbage", '{"items": 5}', '{"items": [5], "metadata": 7}'])
async def test_an_answer_of_another_shape_keeps_the_source_alive(answer: str) -> None:
    async with kube_api() as (api, url):
        await started(api, pod("a", "10.0.0.1"))
        api.canned_answer = answer
        tested = source(url)
        async with running(tested) as published:
            await wait_for(lambda: tested.health.problem is not None)
            api.canned_answer = None
            await published.shows("10.0.0.1:8000")


def test_a_file_that_is_not_there_is_named() -> None:
    config = KubernetesDiscovery(pool="p", namespace="ml", api_server="https://x", ca_file="/nowhere/ca.crt")
    with pytest.raises(ConfigError, match="ca_file: there is no file"):
        KubernetesSource(config, SystemClock(), random.Random(1))


def test_outside_a_cluster_the_api_server_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="give api_server"):
        KubernetesSource(KubernetesDiscovery(pool="llama"), SystemClock(), random.Random(1))


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
async def test_the_shipped_role_allows_every_call_that_discovery_makes(version: str) -> None:
    manifest = Path(__file__).parents[4] / "deploy" / "kubernetes" / "extproc.yaml"
    roles = [item for item in yaml.safe_load_all(manifest.read_text()) if item["kind"] == "Role"]
    allowed = {
        (group, resource, verb)
        for rule in roles[0]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    async with kube_api() as (api, url):
        await api.put(POOLS, pool({"app": "vllm"}, 8000))
        await api.put(POOLS.replace("k8s.io/v1", "x-k8s.io/v1alpha2"), pool({"app": "vllm"}, 8000))
        await api.put(PODS, pod("a", "10.0.0.1"))
        async with running(source(url, pool_version=version)):
            await until_watching(api, PODS)
        async with running(source(url, pool=None, service="vllm")):
            await until_watching(api, SLICES)
        calls = {(path, "watch" if "watch" in query else "list") for path, query in api.requests}
    assert {path.rsplit("/", 1)[1] for path, _ in calls} == {"inferencepools", "pods", "endpointslices"}
    for path, verb in calls:
        parts = path.split("/")
        group = parts[2] if parts[1] == "apis" else ""
        assert (group, parts[-1], verb) in allowed, path
