"""The chart and the plain manifests: valid for Kubernetes, hardened, and the same thing twice."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmValuesError, lint

from extproc.config.checks import envoy_needs, risks
from extproc.config.envoy_limits import check_envoy
from extproc.config.schema import parse_config
from extproc.config.yaml_source import parse_yaml
from extproc.runtime.catalogue import all_metrics

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "extproc"
VERSIONS = ("1.29", "1.37")
EVERYTHING = {
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "modelServerAutoscaling": {"enabled": True},
    "networkPolicy": {"redisPort": 6379, "proxyPodSelector": {"matchLabels": {"app": "envoy"}}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "image": {"repository": "registry.example/extproc", "digest": "sha256:" + "a" * 64},
}
NOTHING = {
    "rbac": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "adminToken": {"existingSecret": "mine"},
}


def rendered(values: dict[str, Any], name: str = "extproc") -> list[dict[str, Any]]:
    with Chart.load(CHART) as chart:
        texts = chart.render(values=values, name=name)
    return [
        document
        for path, text in texts.items()
        if not path.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
        if document
    ]


def plain(path: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all((ROOT / path).read_text()) if document]


def is_builtin(document: dict[str, Any]) -> bool:
    group = document["apiVersion"].rpartition("/")[0]
    return "." not in group or (group.endswith(".k8s.io") and not group.startswith(("inference", "gateway")))


def pods(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if document["kind"] == "Deployment":
            yield document["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{}, EVERYTHING, NOTHING], ids=["defaults", "everything", "nothing"])
def test_what_the_chart_renders_is_valid_for_kubernetes(version: str, values: dict[str, Any]) -> None:
    documents = rendered(values, name="a-release-with-a-name-of-the-longest-length-that-")
    for document in documents:
        if is_builtin(document):
            kubernetes_validate.validate(document, version, strict=True)
        assert len(document["metadata"]["name"]) <= 63
    kinds = {document["kind"] for document in documents}
    assert {"Deployment", "Service", "ConfigMap", "ServiceAccount"} <= kinds
    assert ("PodMonitor" in kinds) == (values is EVERYTHING)
    assert ("Role" in kinds) == (values is not NOTHING)


def test_helm_lint_finds_nothing_wrong() -> None:
    report = lint(str(CHART))
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"replicas": 0},
        {"image": {"digest": "sha256:short"}},
        {"podMonitor": {"enable": True}},
        {"ports": {"grpc": 70000}},
    ],
)
def test_misspelt_or_impossible_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HelmValuesError):
        rendered(values)


def test_the_derived_files_are_what_the_chart_and_the_bootstrap_make() -> None:
    outputs = runpy.run_path(str(ROOT / "deploy" / "render.py"))["OUTPUTS"]
    for path, make in outputs.items():
        assert path.read_text() == make(), f"run `python deploy/render.py` ({path.name} is old)"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "path",
    [
        "deploy/kubernetes/extproc.yaml",
        "deploy/kubernetes/extproc-leased.yaml",
        "deploy/kubernetes/extproc-standby.yaml",
        "deploy/gateway/plain-envoy.yaml",
    ],
)
def test_the_plain_manifests_are_valid(path: str, version: str) -> None:
    documents = plain(path)
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("path", ["deploy/kubernetes/extproc.yaml", "deploy/gateway/plain-envoy.yaml"])
def test_pods_run_without_rights_and_with_limits(path: str) -> None:
    for pod in pods(plain(path)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["terminationGracePeriodSeconds"] > 120
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert "readinessProbe" in container
            name, _, tag = container["image"].rpartition(":")
            assert name
            assert tag not in ("", "latest")


def test_the_role_can_only_read_besides_its_lease() -> None:
    (role,) = [one for one in plain("deploy/kubernetes/extproc.yaml") if one["kind"] == "Role"]
    for rule in role["rules"]:
        writing = set(rule["verbs"]) - {"get", "list", "watch"}
        assert not writing or rule["resources"] == ["leases"]
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_probes_use_paths_that_need_no_token_and_ports_that_exist() -> None:
    (pod,) = pods(plain("deploy/kubernetes/extproc.yaml"))
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in ("/healthz", "/readyz")
        assert container[probe]["httpGet"]["port"] in ports
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/extproc", "/var/run/secrets/extproc"} <= mounts
    assert not any("subPath" in mount for mount in container["volumeMounts"])


def test_the_configuration_in_the_chart_loads_and_fits_the_pod_and_the_gateways() -> None:
    documents = plain("deploy/kubernetes/extproc.yaml")
    (config_map,) = [one for one in documents if one["kind"] == "ConfigMap"]
    config = parse_config(config_map["data"]["extproc.yaml"])
    assert list(risks(config)) == []
    (pod,) = pods(documents)
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": config.server.port, "admin": config.admin.port}
    server = config.server
    assert pod["terminationGracePeriodSeconds"] > server.drain_delay_s + server.drain_timeout_s
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert config.admin.token_file is not None
    assert any(config.admin.token_file.startswith(mount) for mount in mounts)
    bootstrap = yaml.safe_load(plain("deploy/gateway/plain-envoy.yaml")[0]["data"]["envoy.yaml"])
    needs = replace(
        envoy_needs(config), longest_wait_s=max(band.ttl_s or 0 for band in config.flow_control.bands)
    )
    assert check_envoy(parse_yaml(yaml.safe_dump(bootstrap)), needs) == []


def test_the_rules_of_the_chart_are_those_that_promtool_checks() -> None:
    (rules,) = [one for one in rendered(EVERYTHING) if one["kind"] == "PrometheusRule"]
    expected = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())
    assert rules["spec"] == expected


def test_keda_scales_on_metrics_of_the_catalogue() -> None:
    (scaled,) = plain("deploy/kubernetes/keda.yaml")
    assert scaled["spec"]["minReplicaCount"] == 0
    known = {metric.name for metric in all_metrics()}
    for trigger in scaled["spec"]["triggers"]:
        names = set(re.findall(r"extproc_[a-z_]+", trigger["metadata"]["query"]))
        assert names
        assert names <= known


def test_the_autoscaler_scales_on_metrics_of_the_catalogue() -> None:
    (autoscaler,) = [one for one in rendered(EVERYTHING) if one["kind"] == "HorizontalPodAutoscaler"]
    names = {metric["external"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]}
    assert names <= {metric.name for metric in all_metrics()}
    adapter = yaml.safe_load((ROOT / "deploy" / "prometheus" / "adapter.yaml").read_text())
    assert names == {rule["name"]["as"] for rule in adapter["externalRules"]}


@pytest.mark.parametrize("mode", ["leased", "standby"])
def test_the_values_for_several_replicas_make_a_group(mode: str) -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / f"values-{mode}.yaml").read_text())
    documents = {document["kind"]: document for document in rendered(values)}
    text = documents["ConfigMap"]["data"]["extproc.yaml"]
    config = parse_config(text, source=mode)
    assert config.replicas.mode == mode
    assert documents["Deployment"]["spec"]["replicas"] > 1
    assert documents["Service"]["spec"]["clusterIP"] == "None"
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    password_file = config.replicas.password_file
    assert password_file is None or str(Path(password_file).parent) in mounts
    assert config.server.drain_delay_s + config.server.drain_timeout_s < pod["terminationGracePeriodSeconds"]
    if mode == "standby":
        assert any("leases" in rule["resources"] for rule in documents["Role"]["rules"])
        assert documents["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == "100%"
