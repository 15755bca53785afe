"""`extproc emulate`: one emulated vLLM server on a port."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
from collections.abc import Mapping

import click
import uvloop
from aiohttp import web

from extproc.clock import SystemClock
from extproc.sim.emulator.app import EmulatorApp
from extproc.sim.emulator.faults import FaultPlan, parse_fault
from extproc.sim.emulator.loop import EngineLoop
from extproc.sim.emulator.request import ServedModel
from extproc.sim.files import load_engine
from extproc.sim.server_config import EngineConfig, SchedulingPolicy
from extproc.sim.server_model import ServerModel
from extproc.tasks import TaskKeeper

_LIMITS = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "num_gpu_blocks": "kv_blocks",
    "block_size": "block_tokens",
    "max_model_len": "max_model_len",
    "scheduling_policy": "scheduling",
    "prefix_caching": "has_prefix_cache",
}
"""vLLM's option names and ours."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="Port; 0 takes a free one.")
@click.option("--model", default="emulated", show_default=True, help="Served model name.")
@click.option("--hardware", help="Hardware file, or the name of a shipped one, for step costs and limits.")
@click.option("--max-num-seqs", type=int, help="Sequences that run at once.")
@click.option("--max-num-batched-tokens", type=int, help="Tokens of one engine step.")
@click.option("--num-gpu-blocks", type=int, help="KV cache blocks.")
@click.option("--block-size", type=int, help="Tokens in a KV cache block.")
@click.option("--max-model-len", type=int, help="Most tokens of prompt and output of one request.")
@click.option(
    "--scheduling-policy",
    type=click.Choice(["fcfs", "priority"]),
    help="Order of the waiting queue; priority: lower goes first.",
)
@click.option("--prefix-caching/--no-prefix-caching", default=None, help="Reuse cached prompt blocks.")
@click.option("--speed", default=1.0, show_default=True, help="Modelled seconds that pass in a real one.")
@click.option(
    "--front-end-delay",
    "front_end_s",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Modelled seconds in the API server before the engine sees a request.",
)
@click.option(
    "--keep-alive",
    "keep_alive_s",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Real seconds after which an unused connection is closed.",
)
@click.option(
    "--mean-output-tokens", default=512, show_default=True, help="Where nothing else ends an answer."
)
@click.option("--temperature", default=0.0, show_default=True, help="Of requests that give none.")
@click.option(
    "--parse-output",
    is_flag=True,
    help="Split chat answers into reasoning, content and tool calls, as vLLM's parsers do.",
)
@click.option("--fault", "faults", multiple=True, help="A fault from the start; see docs/simulator.md.")
@click.option("--seed", default=0, show_default=True, help="Seed of response ids and unseeded sampling.")
def emulate(
    host: str,
    port: int,
    model: str,
    hardware: str | None,
    speed: float,
    front_end_s: float,
    keep_alive_s: float,
    mean_output_tokens: int,
    temperature: float,
    parse_output: bool,
    faults: tuple[str, ...],
    seed: int,
    **limits: int | str | bool | None,
) -> None:
    """Serve an emulated vLLM: its routes, shapes, metrics and scheduling, with made-up tokens.

    The limits default to those of the hardware file, else to 128 sequences and 267,472 tokens of KV cache.

    Example: extproc emulate --port 8000 --hardware h200-qwen2.5-1.5b --max-num-seqs 32
    """
    if not speed > 0:
        raise click.BadParameter("must be above 0", param_hint="--speed")
    config = engine_config(hardware, limits)
    served = ServedModel(
        name=model,
        max_model_len=config.max_model_len,
        default_temperature=temperature,
        eos_one_in=mean_output_tokens,
        parses_output=parse_output,
    )
    plan = FaultPlan()
    for text in faults:
        plan.add(parse_fault(text))
    uvloop.run(_serve(host, port, config, served, plan, speed, seed, keep_alive_s, front_end_s))


def engine_config(hardware: str | None, limits: Mapping[str, int | str | bool | None]) -> EngineConfig:
    """The hardware's engine (or the default one) with the given limits.

    A model length that was not asked for shrinks to what the KV cache holds, as with vLLM's `auto`.
    """
    engine = load_engine(hardware) if hardware is not None else EngineConfig()
    given: dict[str, object] = {_LIMITS[name]: value for name, value in limits.items() if value is not None}
    if "scheduling" in given:
        given["scheduling"] = SchedulingPolicy(given["scheduling"])
    if "max_model_len" not in given:
        smallest = dataclasses.replace(engine, **{**given, "max_model_len": 2})  # type: ignore[arg-type]
        given["max_model_len"] = min(engine.max_model_len, smallest.usable_kv_tokens)
    return dataclasses.replace(engine, **given)  # type: ignore[arg-type]


async def _serve(
    host: str,
    port: int,
    config: EngineConfig,
    served: ServedModel,
    faults: FaultPlan,
    speed: float,
    seed: int,
    keep_alive_s: float,
    front_end_s: float,
) -> None:
    clock = SystemClock()
    stop = asyncio.Event()
    failures: list[BaseException] = []

    def on_failure(name: str, error: BaseException) -> None:
        failures.append(error)
        stop.set()

    engine = EngineLoop(ServerModel(config, max_stretch_steps=1), clock, speed=speed)
    app = EmulatorApp(engine, served, clock, random.Random(seed), faults, front_end_s / speed)
    runner = web.AppRunner(
        app.build(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=keep_alive_s,
    )
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        reason = os.strerror(error.errno or 0)
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {reason}; choose another --port"
        ) from error
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    keeper = TaskKeeper(on_failure)
    keeper.spawn(engine.run(), name="engine")
    click.echo(f"listening on http://{host}:{runner.addresses[0][1]}")
    try:
        await stop.wait()
    finally:
        await keeper.close()
        await runner.cleanup()
    if failures:
        raise failures[0]
