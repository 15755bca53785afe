"""`extproc envoy-config`: prints an Envoy bootstrap with every setting that flow control depends on."""

from __future__ import annotations

import dataclasses
import json

import click
import yaml

from extproc.stack.envoy import EnvoySettings, ProcessingMode, checked, render

DEFAULTS = EnvoySettings()
HEADER = """\
# Envoy bootstrap by `extproc envoy-config`. envoy/envoy.yaml of the repository explains each number.
"""


class HostPort(click.ParamType[tuple[str, int]]):
    """`host:port`, or a bare port on the default host."""

    name = "host:port"

    def __init__(self, default_host: str) -> None:
        self._default_host = default_host

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not host:port", param, ctx)
        return host.strip("[]") or self._default_host, int(port)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@click.command("envoy-config")
@click.option(
    "--listen",
    type=HostPort("0.0.0.0"),
    default="0.0.0.0:8080",
    show_default=True,
    help="Where clients connect.",
)
@click.option(
    "--admin",
    type=HostPort("127.0.0.1"),
    default="127.0.0.1:9901",
    show_default=True,
    help="Envoy's admin port.",
)
@click.option(
    "--extproc",
    "extprocs",
    type=HostPort("127.0.0.1"),
    default=("127.0.0.1:9002",),
    show_default=True,
    multiple=True,
    help="extproc's gRPC port; repeated for several replicas.",
)
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    metavar="HOST:PORT",
    help="A model server, may be repeated: a fixed list instead of any address that extproc names.",
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in ProcessingMode]),
    default=DEFAULTS.mode.value,
    show_default=True,
    help="Which parts of a request Envoy shows to extproc.",
)
@click.option(
    "--message-timeout",
    type=click.FloatRange(0.2, 3600),
    default=DEFAULTS.message_timeout_s,
    show_default=True,
    metavar="SECONDS",
    help="Must exceed the longest wait in the queue.",
)
@click.option(
    "--idle-timeout",
    type=click.FloatRange(0),
    default=DEFAULTS.idle_timeout_s,
    show_default=True,
    metavar="SECONDS",
    help="Longest silence of a request; 0 never cuts.",
)
@click.option(
    "--upstream-idle-timeout",
    type=click.FloatRange(0.1),
    default=DEFAULTS.upstream_idle_timeout_s,
    show_default=True,
    metavar="SECONDS",
    help="Closes unused connections to servers; must be below the servers' own keep-alive (vLLM: 5 s).",
)
@click.option(
    "--buffer-limit",
    type=click.IntRange(1),
    default=DEFAULTS.buffer_limit_bytes,
    show_default=True,
    metavar="BYTES",
    help="Must exceed the largest body.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
def command(
    listen: tuple[str, int],
    admin: tuple[str, int],
    extprocs: tuple[tuple[str, int], ...],
    endpoints: tuple[str, ...],
    mode: str,
    message_timeout: float,
    idle_timeout: float,
    upstream_idle_timeout: float,
    buffer_limit: int,
    as_json: bool,
) -> None:
    """Print an Envoy bootstrap for the given addresses, checked against Envoy's own types.

    Example: extproc envoy-config --listen 127.0.0.1:8080 --extproc 127.0.0.1:9002 > envoy.yaml
    """
    settings = dataclasses.replace(
        DEFAULTS,
        listen_host=listen[0],
        listen_port=listen[1],
        admin_host=admin[0],
        admin_port=admin[1],
        extproc_host=extprocs[0][0],
        extproc_port=extprocs[0][1],
        further_extprocs=tuple(f"{_bracketed(host)}:{port}" for host, port in extprocs[1:]),
        endpoints=endpoints,
        mode=ProcessingMode(mode),
        message_timeout_s=message_timeout,
        idle_timeout_s=idle_timeout,
        upstream_idle_timeout_s=upstream_idle_timeout,
        buffer_limit_bytes=buffer_limit,
    )
    bootstrap = checked(render(settings))
    if as_json:
        click.echo(json.dumps(bootstrap, indent=2))
    else:
        click.echo(HEADER + yaml.safe_dump(bootstrap, sort_keys=False), nl=False)
