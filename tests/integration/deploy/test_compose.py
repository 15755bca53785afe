"""The compose file: by its schema, and each of its commands and files outside of containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec.models import ComposeSpecification

from extproc.config.envoy_limits import EnvoyNeeds, check_envoy
from extproc.config.schema import load_config
from extproc.config.yaml_source import parse_yaml
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.stack.local import envoy_binary
from tests.support.compose import ROOT, compose, container_options, mounts, on_host, services, start_order
from tests.support.waiting import wait_for

ALL = services("gpu", "cpu")
OURS = [name for name, service in ALL.items() if service["image"].startswith("extproc:")]
UNSHARE = shutil.which("unshare")


def can_unshare() -> bool:
    if UNSHARE is None:
        return False
    return subprocess.run([UNSHARE, "-n", "true"], capture_output=True, check=False).returncode == 0


def test_the_file_follows_the_compose_schema() -> None:
    data = compose()
    data.pop("x-extproc")
    ComposeSpecification.model_validate(data)


@pytest.mark.parametrize("name", ALL)
def test_images_are_pinned_to_a_version(name: str) -> None:
    tag = ALL[name]["image"].rpartition(":")[2]
    assert re.search(r"\d+\.\d+", tag), tag


@pytest.mark.parametrize("name", ALL)
def test_mounted_files_exist_and_are_read_only(name: str) -> None:
    volumes = compose()["volumes"]
    for mount in mounts(ALL[name]):
        if mount.is_file_of_ours:
            assert (ROOT / mount.source).exists(), mount.source
            assert mount.is_read_only
        else:
            assert mount.source in volumes


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_published_beyond_this_machine(name: str) -> None:
    for port in ALL[name].get("ports", ()):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", services())
def test_services_have_health_checks_no_rights_and_a_restart_policy(name: str) -> None:
    service = ALL[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    for needed, how in service.get("depends_on", {}).items():
        assert how["condition"] == "service_healthy"
        assert "healthcheck" in ALL[needed]


@pytest.mark.parametrize("name", ["emulator", "vllm-gpu", "vllm-cpu"])
def test_field_bug_082_the_gate_counts_as_many_slots_as_the_servers_have(name: str) -> None:
    """With fewer in the server, requests would wait inside it and the gate would never close."""
    detector = load_config(ROOT / "deploy/compose/extproc/extproc.yaml").flow_control.detector
    assert isinstance(detector, ConcurrencyDetectorConfig)
    command = ALL[name]["command"]
    assert command[command.index("--max-num-seqs") + 1] == str(detector.max_concurrency)


def test_the_model_cache_belongs_to_who_writes_it() -> None:
    """A new volume takes the owner of the image's folder; without one it is root's."""
    text = (ROOT / "deploy/Dockerfile.vllm-cpu").read_text()
    (mount,) = mounts(ALL["vllm-cpu"])
    folder = re.search(r"HF_HOME=(\S+)", text)
    assert folder is not None
    assert f"mkdir {folder[1]} && chown vllm:vllm {folder[1]}" in text
    others = {one.source for name in ALL if name != "vllm-cpu" for one in mounts(ALL[name])}
    assert mount.source not in others


def test_the_start_order_has_no_circle() -> None:
    order = start_order(services())
    assert order.index("extproc") < order.index("envoy") < order.index("batch")
    assert order.index("prometheus") < order.index("grafana")


def test_the_grace_period_outlasts_the_drain() -> None:
    config = load_config(ROOT / "deploy/compose/extproc/extproc.yaml")
    grace_s = float(ALL["extproc"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > config.server.drain_delay_s + config.server.drain_timeout_s


def test_envoys_limits_fit_the_configuration_beside_it() -> None:
    config = load_config(ROOT / "deploy/compose/extproc/extproc.yaml")
    longest_s = max(band.ttl_s or 0 for band in config.flow_control.bands)
    needs = EnvoyNeeds(
        longest_wait_s=longest_s,
        largest_body_bytes=config.requests.limits.max_body_bytes,
        concurrent_requests=20_000,
    )
    text = (ROOT / "deploy/compose/envoy.yaml").read_text()
    assert check_envoy(parse_yaml(text), needs) == []


def test_envoy_accepts_its_file() -> None:
    file = on_host(ALL["envoy"], "/etc/envoy/envoy.yaml")
    done = subprocess.run(
        [envoy_binary(), "--mode", "validate", "-c", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_prometheus_accepts_its_file(tmp_path: Path) -> None:
    service = ALL["prometheus"]
    text = Path(on_host(service, "/etc/prometheus/prometheus.yaml")).read_text()
    for path in re.findall(r"/(?:etc|run)/[\w./-]+", text):
        text = text.replace(path, on_host(service, path))
    file = tmp_path / "prometheus.yaml"
    file.write_text(text)
    done = subprocess.run(
        ["promtool", "check", "config", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    targets = [job["static_configs"][0]["targets"][0] for job in yaml.safe_load(text)["scrape_configs"]]
    assert {target.split(":")[0] for target in targets} <= set(ALL)


def test_grafana_finds_its_dashboard_and_its_source() -> None:
    service = ALL["grafana"]
    provider = yaml.safe_load(
        Path(on_host(service, "/etc/grafana/provisioning/dashboards/extproc.yaml")).read_text()
    )
    folder = provider["providers"][0]["options"]["path"]
    home = service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(folder)
    assert Path(on_host(service, home)).exists()
    source = yaml.safe_load(
        Path(on_host(service, "/etc/grafana/provisioning/datasources/prometheus.yaml")).read_text()
    )
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_names_in_the_configurations_are_services() -> None:
    config = load_config(ROOT / "deploy/compose/extproc/extproc.yaml")
    aliases = {
        alias
        for one in ALL.values()
        for alias in one.get("networks", {}).get("default", {}).get("aliases", ())
    }
    assert {source.name for source in config.endpoints.discovery} <= set(ALL) | aliases
    batch = yaml.safe_load((ROOT / "deploy/compose/extproc/batch.yaml").read_text())
    assert batch["gateway"]["urls"] == ["http://envoy:8080"]
    assert batch["store"]["url"].startswith("redis://redis:")


@pytest.mark.parametrize("name", ["emulator", "extproc"])
@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a network namespace")
def test_the_command_and_its_health_check_run_outside_a_container(name: str) -> None:
    """In a network namespace of its own, with the very ports and files of the compose file."""
    service = ALL[name]
    config = Path(on_host(service, "/etc/extproc/extproc.yaml"))
    token = on_host(ALL["extproc"], "/run/secrets/admin-token")
    command = [on_host(service, argument) for argument in service["command"]]
    if name == "extproc":  # the secret's place is only there in the container
        copy = Path(os.environ.get("TMPDIR", "/tmp")) / f"extproc-{uuid.uuid4().hex}.yaml"
        copy.write_text(config.read_text().replace("/run/secrets/admin-token", token))
        command[-1] = str(copy)
    check = [sys.executable, *service["healthcheck"]["test"][2:]]
    script = 'ip link set lo up; "$0" -m extproc "$@" & echo $! >&3; wait'
    assert UNSHARE is not None
    read, write = os.pipe()
    process = subprocess.Popen(
        [UNSHARE, "-n", "bash", "-c", script.replace("&3", f"&{write}"), sys.executable, *command],
        pass_fds=[write],
        cwd=ROOT,
    )
    try:
        os.close(write)
        with os.fdopen(read) as pipe:
            inner = int(pipe.readline())
        enter = ["nsenter", "-t", str(inner), "-n"]
        wait_for(
            lambda: subprocess.run([*enter, *check], capture_output=True, check=False).returncode == 0,
            timeout_s=30,
            poll_s=0.2,
        )
    finally:
        process.kill()
        os.kill(inner, 9)
        process.wait()
        if name == "extproc":
            copy.unlink()


@pytest.mark.parametrize("file", ["deploy/Dockerfile", "deploy/Dockerfile.vllm-cpu"])
def test_images_run_without_root_from_pinned_bases(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    for line in lines:
        if line.startswith("FROM"):
            assert re.search(r":\d+\.\d+\.\d+", line), line
    users = [line for line in lines if line.startswith("USER")]
    assert users
    assert users[-1] == "USER 65532:65532"
    assert any(line.startswith("HEALTHCHECK") for line in lines)


def test_the_image_copies_what_is_there_and_installs_extras_that_exist() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    allowed = (ROOT / ".dockerignore").read_text().split()
    for sources in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            name = source.removeprefix("./")
            assert (ROOT / name).exists()
            assert f"!{name}" in allowed
    extras = set(re.findall(r"\[([\w,]+)\]", text)[0].split(","))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras <= set(project["optional-dependencies"])


@pytest.mark.parametrize("name", services())
def test_a_docker_engine_would_take_the_service(name: str) -> None:
    """The arguments for the engine pass the client library's own checks."""
    from docker.models.containers import _create_container_args  # type: ignore[import-untyped]

    options = container_options(name, ALL[name], "net", "test")
    _create_container_args({**options, "version": "1.50"})


@pytest.mark.docker
def test_the_stack_in_containers_serves_the_demo_load() -> None:
    """Builds the image, starts every default service in order, and sends requests through Envoy."""
    import docker  # type: ignore[import-untyped]

    client = docker.from_env()
    project = f"extproc-{uuid.uuid4().hex[:8]}"
    client.images.build(path=str(ROOT), dockerfile="deploy/Dockerfile", tag="extproc:0.1.0")
    network = client.networks.create(project)
    started: list[Any] = []
    try:
        for name in start_order(services()):
            options = container_options(name, ALL[name], project, project)
            options["network"] = None
            container = client.containers.create(**{k: v for k, v in options.items() if k != "detach"})
            started.append(container)
            network.connect(container, aliases=[name])
            container.start()
            wait_for(lambda one=container: _is_healthy(one), timeout_s=120, poll_s=0.5)  # type: ignore[misc]
        for _ in range(20):
            assert _ask() == 200
    finally:
        for container in reversed(started):
            container.remove(force=True, v=True)
        network.remove()


def _is_healthy(container: Any) -> bool:
    container.reload()
    return bool(container.attrs["State"].get("Health", {}).get("Status") == "healthy")


def _ask() -> int:
    body = b'{"model": "emulated", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}'
    request = urllib.request.Request(
        "http://127.0.0.1:8080/v1/chat/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(answer.status)
