"""`extproc emulate`: one emulated vLLM server on a port."""

from __future__ import annotations

import asyncio
import random
import signal

import click
import uvloop
from aiohttp import web

from extproc.clock import SystemClock
from extproc.sim.emulator.app import EmulatorApp
from extproc.sim.emulator.loop import EngineLoop
from extproc.sim.emulator.request import ServedModel
from extproc.sim.server_config import EngineConfig, SchedulingPolicy
from extproc.sim.server_model import ServerModel
from extproc.tasks import TaskKeeper


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="Port; 0 takes a free one.")
@click.option("--model", default="emulated", show_default=True, help="Served model name.")
@click.option("--max-num-seqs", default=128, show_default=True, help="Sequences that run at once.")
@click.option("--max-num-batched-tokens", default=8192, show_default=True, help="Tokens of one engine step.")
@click.option("--num-gpu-blocks", default=16_717, show_default=True, help="KV cache blocks.")
@click.option("--block-size", default=16, show_default=True, help="Tokens in a KV cache block.")
@click.option("--max-model-len", default=32_768, show_default=True, help="Most tokens of prompt and output.")
@click.option(
    "--scheduling-policy",
    type=click.Choice(["fcfs", "priority"]),
    default="fcfs",
    show_default=True,
    help="Order of the waiting queue; priority: lower goes first.",
)
@click.option("--prefix-caching/--no-prefix-caching", default=True, show_default=True)
@click.option("--speed", default=1.0, show_default=True, help="Modelled seconds that pass in a real one.")
@click.option("--seed", default=0, show_default=True, help="Seed of response ids and unseeded sampling.")
def emulate(
    host: str,
    port: int,
    model: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    num_gpu_blocks: int,
    block_size: int,
    max_model_len: int,
    scheduling_policy: str,
    prefix_caching: bool,
    speed: float,
    seed: int,
) -> None:
    """Serve an emulated vLLM: its routes, shapes, metrics and scheduling, with made-up tokens.

    Example: extproc emulate --port 8000 --max-num-seqs 32
    """
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=num_gpu_blocks,
        block_tokens=block_size,
        max_model_len=min(max_model_len, (num_gpu_blocks - 1) * block_size),
        scheduling=SchedulingPolicy(scheduling_policy),
        has_prefix_cache=prefix_caching,
    )
    served = ServedModel(name=model, max_model_len=config.max_model_len)
    uvloop.run(_serve(host, port, config, served, speed, seed))


async def _serve(
    host: str, port: int, config: EngineConfig, served: ServedModel, speed: float, seed: int
) -> None:
    clock = SystemClock()
    stop = asyncio.Event()
    failures: list[BaseException] = []

    def on_failure(name: str, error: BaseException) -> None:
        failures.append(error)
        stop.set()

    engine = EngineLoop(ServerModel(config, max_stretch_steps=1), clock, speed=speed)
    app = EmulatorApp(engine, served, clock, random.Random(seed))
    runner = web.AppRunner(app.build(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=1024)
    await site.start()
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
