"""The limits that thousands of open streams need, in the shipped Envoy files and in the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from extproc.config.server import ServerConfig
from extproc.runtime import service
from extproc.stack.envoy import EnvoySettings, render

SHIPPED = Path(__file__).parents[3] / "envoy" / "envoy.yaml"


def _check(bootstrap: dict[str, Any]) -> None:
    (cluster,) = [c for c in bootstrap["static_resources"]["clusters"] if c["name"] == "extproc"]
    (options,) = cluster["typed_extension_protocol_options"].values()
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    assert http2["max_concurrent_streams"] == 500, "one lost connection costs 500 streams, not all"
    assert http2["max_outbound_control_frames"] >= 100_000, "the default of 1,000 ends the connection"
    for each in bootstrap["static_resources"]["clusters"]:
        (limits,) = each["circuit_breakers"]["thresholds"]
        for name in ("max_connections", "max_pending_requests", "max_requests"):
            assert limits[name] >= ServerConfig().max_streams, f"{each['name']}: {name}"


def test_the_shipped_file_and_the_rendered_one_carry_them() -> None:
    _check(yaml.safe_load(SHIPPED.read_text()))
    _check(render(EnvoySettings()))


async def test_the_server_accepts_bursts(monkeypatch: Any) -> None:
    options: dict[str, object] = {}

    class Server:
        def add_generic_rpc_handlers(self, handlers: object) -> None: ...

    def server(*, options: Any, found: dict[str, object] = options) -> Server:
        found.update(options)
        return Server()

    monkeypatch.setattr(service.grpc.aio, "server", server)
    service.build_server(ServerConfig(), 1 << 20, [])
    for name in ("max_pending_requests", "max_pending_requests_hard_limit"):
        assert options[f"grpc.server.{name}"] == service.PENDING_CALLS >= 100_000
    assert options["grpc.http2.max_ping_strikes"] == 0
    assert int(str(options["grpc.max_receive_message_length"])) > 1 << 20
