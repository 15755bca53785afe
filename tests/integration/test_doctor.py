"""`extproc doctor` finds what is wrong and says what to do; each check is made to fail once."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from extproc.cli import cli
from extproc.cli.doctor_checks import Level, local_findings
from extproc.config.schema import Config
from extproc.errors import ConfigError

METRICS = b'vllm:num_requests_running{engine="0"} 0\n'


@contextmanager
def model_server(*, metrics: bytes = METRICS, skew_s: float = 0.0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics if self.path == "/metrics" else b'{"data": []}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:

            return formatdate(time.time() + skew_s, usegmt=True)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def doctor(directory: Path, config: dict[str, Any], *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    file = directory / "extproc.yaml"
    file.write_text(yaml.safe_dump({"server": {"port": 0}, "admin": {"port": 0}, **config}))
    result = CliRunner().invoke(cli, ["doctor", "--config", str(file), "--json", *arguments])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, {one["subject"]: one for one in json.loads(result.stdout)}


def pool(address: str) -> dict[str, Any]:
    entry = {"name": "gpu", "address": address}
    return {"endpoints": {"discovery": [{"type": "static", "endpoints": [entry]}]}}


def test_a_healthy_machine_and_pool_pass(tmp_path: Path) -> None:
    with model_server() as address:
        code, found = doctor(tmp_path, pool(address), "--envoy", "envoy/envoy.yaml")
    assert code == 0
    assert {one["level"] for one in found.values()} == {"ok"}
    assert {"endpoint gpu", "metrics of gpu", "Envoy", "Envoy's limits", "gRPC port"} <= set(found)


def test_a_server_that_is_not_there_is_a_failure_with_advice(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, pool("127.0.0.1:9"))
    assert code == 1
    assert found["endpoint gpu"]["level"] == "fail"
    assert "curl http://127.0.0.1:9/v1/models" in found["endpoint gpu"]["advice"]
    code, found = doctor(tmp_path, pool("127.0.0.1:9"), "--offline")
    assert code == 0
    assert "endpoint gpu" not in found


def test_foreign_metrics_and_a_wrong_clock_are_warnings(tmp_path: Path) -> None:
    with model_server(metrics=b"other 1\n", skew_s=-60) as address:
        code, found = doctor(tmp_path, pool(address))
    assert code == 0
    assert found["metrics of gpu"]["level"] == "warn"
    assert found["clock"]["level"] == "warn"
    assert re.search(r"\+(59|60|61)\.", found["clock"]["message"])


def test_a_taken_port_is_a_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, found = doctor(tmp_path, {"admin": {"port": port}, **pool("127.0.0.1:9")}, "--offline")
    assert code == 1
    assert found["admin port"]["level"] == "fail"
    assert "admin.port" in found["admin port"]["advice"]


def test_unusable_files_are_failures(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    config = {"admin": {"port": 0, "token_file": str(tmp_path / "empty")}, **pool("127.0.0.1:9")}
    _, found = doctor(tmp_path, config, "--offline")
    assert found["admin.token_file"]["level"] == "fail"
    config["admin"]["token_file"] = str(tmp_path / "missing")
    _, found = doctor(tmp_path, config, "--offline")
    assert "No such file" in found["admin.token_file"]["message"]


def test_an_envoy_with_its_defaults_is_a_failure(tmp_path: Path) -> None:
    bootstrap = yaml.safe_load(Path("envoy/envoy.yaml").read_text())
    manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    for filter_ in manager["typed_config"]["http_filters"]:
        filter_["typed_config"].pop("message_timeout", None)
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump(bootstrap))
    code, found = doctor(tmp_path, pool("127.0.0.1:9"), "--offline", "--envoy", str(file))
    assert code == 1
    assert "message_timeout" in found["Envoy's limits"]["message"]


def test_too_few_files_and_no_envoy_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    monkeypatch.setenv("EXTPROC_ENVOY", "/nowhere/envoy")
    found = {finding.subject: finding for finding in local_findings(Config(), None)}
    assert found["open files"].level is Level.WARN
    assert "ulimit -n" in found["open files"].advice
    assert found["Envoy"].level is Level.WARN
    assert "extproc[envoy]" in found["Envoy"].advice


def test_a_refused_configuration_is_told_with_its_problems(tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text("flow_contro: {}\n")

    result = CliRunner().invoke(cli, ["doctor", "--config", str(file)])
    assert isinstance(result.exception, ConfigError)
    assert "flow_control" in str(result.exception)
