"""Writes what is derived: plain manifests from the Helm chart, and a plain Envoy from our own bootstrap.

Run after changing the chart: `python deploy/render.py`. A test fails when the files are older than the chart.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

from extproc.stack.envoy import EnvoySettings, render

HERE = Path(__file__).parent
CHART = HERE / "helm" / "extproc"
PLAIN_VALUES: dict[str, Any] = {"adminToken": {"existingSecret": "extproc-admin"}}
HEADER = """\
# Plain manifests, made from the chart in deploy/helm/extproc by deploy/render.py. First make the admin token:
#   kubectl create secret generic extproc-admin --from-literal=token="$(openssl rand -hex 20)"
"""
ENVOY_HEADER = """\
# Envoy without any gateway controller, in front of the Service `extproc`. Made by deploy/render.py;
# envoy/envoy.yaml explains each number of the bootstrap.
"""
COMPOSE_HEADER = """\
# Envoy inside docker-compose.yml. Made by deploy/render.py; envoy/envoy.yaml explains each number.
# The admin port is open inside the compose network, for Prometheus; it is not published.
"""


def plain_manifests(values_file: str | None = None) -> str:
    """The chart in one file, with its default values or with those of an example beside it."""
    values = {} if values_file is None else yaml.safe_load((HERE / "helm" / values_file).read_text())
    with Chart.load(CHART) as chart:
        rendered = chart.render(values={**values, **PLAIN_VALUES}, name="extproc")
    parts = [rendered[name].strip() for name in sorted(rendered) if not name.endswith("NOTES.txt")]
    return HEADER + "---\n" + "\n---\n".join(part for part in parts if part) + "\n"


def plain_envoy() -> str:
    """A Deployment of Envoy with its bootstrap in a ConfigMap."""
    settings = EnvoySettings(extproc_host="extproc.default.svc.cluster.local", admin_host="127.0.0.1")
    bootstrap = yaml.safe_dump(render(settings), sort_keys=False, width=100)
    labels = {"app.kubernetes.io/name": "envoy", "app.kubernetes.io/part-of": "extproc"}
    documents = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "envoy", "labels": labels},
            "data": {"envoy.yaml": bootstrap},
        },
        _envoy_deployment(labels),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "envoy", "labels": labels},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        },
    ]
    return ENVOY_HEADER + "---\n" + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)


def _envoy_deployment(labels: dict[str, str]) -> dict[str, Any]:
    container = {
        "name": "envoy",
        "image": "docker.io/envoyproxy/envoy:distroless-v1.40.0",
        "args": ["-c", "/etc/envoy/envoy.yaml", "--drain-time-s", "120"],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy", "readOnly": True}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 130,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "envoy"}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "envoy", "labels": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and never refers back to an earlier node."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def compose_envoy() -> str:
    """The bootstrap for docker-compose.yml, where names are those of services."""
    settings = EnvoySettings(extproc_host="extproc", admin_host="0.0.0.0")
    bootstrap = yaml.dump(render(settings), Dumper=_Dumper, sort_keys=False, width=110)
    return COMPOSE_HEADER + bootstrap


OUTPUTS = {
    HERE / "compose" / "envoy.yaml": compose_envoy,
    HERE / "kubernetes" / "extproc.yaml": plain_manifests,
    HERE / "kubernetes" / "extproc-leased.yaml": partial(plain_manifests, "values-leased.yaml"),
    HERE / "kubernetes" / "extproc-standby.yaml": partial(plain_manifests, "values-standby.yaml"),
    HERE / "gateway" / "plain-envoy.yaml": plain_envoy,
}


def main() -> None:
    for path, make in OUTPUTS.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(make(), encoding="utf-8")
        print(f"wrote {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
