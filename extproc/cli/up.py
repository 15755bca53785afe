"""`extproc up`: Envoy, extproc and emulated servers on this machine, to be tried by hand."""

from __future__ import annotations

import asyncio
import math
import signal
from pathlib import Path
from typing import Any

import click

from extproc.cli.demo_arms import ARMS, OBJECTIVES, SERVER_SPEED
from extproc.cli.up_replicas import show_replicas
from extproc.clock import SystemClock
from extproc.config.loader import dump
from extproc.config.schema import load_config
from extproc.stack.envoy import EnvoySettings
from extproc.stack.local import HOST, LocalStack

TRY_IT = """\
Envoy:     {url}
admin:     {admin}/ui  (also /metrics, /debug/state)
logs:      {logs}

Try it:
  curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\
    -H 'x-llm-d-inference-objective: interactive' \\
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

Look at it from another terminal:
  extproc top --url {admin}
  extproc explain --url {admin} --priority -1

Ctrl-C ends everything."""


@click.command("up")
@click.option("--port", default=8080, show_default=True, help="Envoy's port; 0 takes a free one.")
@click.option(
    "--servers", type=click.IntRange(0), default=1, show_default=True, help="Emulated vLLM servers."
)
@click.option("--slots", type=click.IntRange(1), default=32, show_default=True, help="Their --max-num-seqs.")
@click.option("--model", default="emulated", show_default=True, help="The model name that they serve.")
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    metavar="IP:PORT",
    help="A model server that runs already, beside the emulated ones; may be repeated.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="extproc processes; above 1 they share the servers by leased credits, over a redis-server.",
)
@click.option(
    "--load/--no-load",
    "has_load",
    default=None,
    help="Send batch and interactive requests meanwhile.  [default: with several replicas]",
)
@click.option("--seconds", type=click.FloatRange(1), help="End by itself after so long.")
@click.option("--json", "as_json", is_flag=True, help="Print the replicas' state as JSON, twice a second.")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="extproc's configuration without its addresses. Default: eviction and holdback.",
)
def command(
    port: int,
    servers: int,
    slots: int,
    model: str,
    endpoints: tuple[str, ...],
    replicas: int,
    has_load: bool | None,
    seconds: float | None,
    as_json: bool,
    file: Path | None,
) -> None:
    """Start the whole on this machine and stay until Ctrl-C; nothing is left behind.

    With several replicas, or --load, a live table shows which replica holds what.

    Example: extproc up --servers 2 --replicas 3
    """
    if not servers and not endpoints:
        raise click.UsageError("give --servers of at least 1, or an --endpoint")
    sends = replicas > 1 if has_load is None else has_load
    server = ["--max-num-seqs", str(slots), "--model", model]
    if sends:
        server += ["--speed", str(SERVER_SPEED)]
    stack = LocalStack(
        _config(file, slots),
        emulators=[server] * servers,
        endpoints=endpoints,
        replicas=replicas,
        envoy=EnvoySettings(listen_host=HOST, listen_port=port, admin_port=0),
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with stack:
        text = TRY_IT.format(url=stack.url, admin=stack.admin_url, logs=stack.directory, model=model)
        click.echo(text, err=as_json)
        in_all = slots * max(1, servers + len(endpoints))
        try:
            if sends or replicas > 1 or as_json:
                shown = show_replicas(
                    stack, model=model, slots=in_all, has_load=sends, seconds=seconds, as_json=as_json
                )
                asyncio.run(shown)
            else:
                _wait(stack, seconds)
        except KeyboardInterrupt:
            click.echo("stopping", err=as_json)


def _wait(stack: LocalStack, seconds: float | None) -> None:
    clock = SystemClock()
    until = math.inf if seconds is None else clock.now() + seconds
    while clock.now() < until:
        stack.check()
        stack.child("envoy").wait(0.5)


def _config(file: Path | None, slots: int) -> dict[str, Any]:
    if file is not None:
        config = dump(load_config(file))
        for section in ("server", "admin", "endpoints"):
            config.pop(section)
        return config
    flow_control = dict(ARMS[-1].flow_control)
    flow_control["detector"] = {**flow_control["detector"], "max_concurrency": slots}
    return {"flow_control": flow_control, "requests": {"priority": {"objectives": OBJECTIVES}}}
