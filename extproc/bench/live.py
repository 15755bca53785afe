"""One cell of a suite in real time: on a local stack of real sockets, or against a URL.

The local stack is Envoy, `extproc serve` with the arm's flow control, and one emulator per endpoint;
`speed` is modelled seconds per real second, and all recorded times are modelled ones. Against a URL the
gateway there is the arm: only the load is driven, and the arm's name says what the user runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import uvloop

from extproc.bench.load import LoadGenerator, LoadResult
from extproc.bench.load_options import LoadOptions
from extproc.bench.outcome import RunOutcome
from extproc.bench.prompts import PromptFactory, PromptStyle
from extproc.bench.store import fingerprint
from extproc.bench.suite import Arm, Cell, Suite
from extproc.bench.target import Target
from extproc.bench.virtual import arm_classes, engine_config
from extproc.clock import SystemClock
from extproc.config.loader import dump
from extproc.errors import ConfigError, Problem
from extproc.sim.server_config import EngineConfig
from extproc.stack.local import LocalStack
from extproc.workload.traffic import TrafficClass

LOCAL_MODEL = "emulated"


def run_local(suite: Suite, cell: Cell, seed: int, *, speed: float) -> RunOutcome:
    """Start the arm's stack, drive the cell's load through Envoy, stop it. Raises StackError, ConfigError."""
    arm = suite.arm(cell.arm)
    classes = _classes(suite, cell)
    with _stack(suite, arm, classes, speed) as stack:
        target = Target(url=stack.url, model=LOCAL_MODEL)
        result = _drive(target, classes, suite, cell, seed, speed=speed)
        stack.check()
    return _outcome(cell, seed, result)


def run_against(suite: Suite, cell: Cell, seed: int, target: Target) -> RunOutcome:
    """Drive the cell's load against a gateway that runs already, at real speed."""
    classes = _classes(suite, cell)
    return _outcome(cell, seed, _drive(target, classes, suite, cell, seed, speed=1.0))


def _classes(suite: Suite, cell: Cell) -> tuple[TrafficClass, ...]:
    return arm_classes(suite.load(cell.load).traffic(cell.setting), suite.arm(cell.arm))


def _stack(suite: Suite, arm: Arm, classes: tuple[TrafficClass, ...], speed: float) -> LocalStack:
    if arm.exempts_from is not None:
        message = "is a yardstick of the simulator: no real server exempts requests from its limits"
        raise ConfigError([Problem("arms", f"{arm.name} {message}; name other arms")])
    config = None
    if arm.flow_control is not None:
        config = {
            "flow_control": dump(arm.flow_control),
            "requests": {"priority": {"objectives": _objectives(classes)}},
        }
    emulator = _emulator(engine_config(suite, arm), suite, speed)
    return LocalStack(config, emulators=[emulator] * (arm.endpoints or suite.endpoints))


def _emulator(engine: EngineConfig, suite: Suite, speed: float) -> list[str]:
    cache = "--prefix-caching" if engine.has_prefix_cache else "--no-prefix-caching"
    return [
        "--hardware", suite.hardware,
        "--model", LOCAL_MODEL,
        "--max-num-seqs", str(engine.max_num_seqs),
        "--max-num-batched-tokens", str(engine.max_num_batched_tokens),
        "--num-gpu-blocks", str(engine.kv_blocks),
        "--speed", str(speed),
        "--front-end-delay", str(suite.latencies.front_end_s),
        cache,
    ]  # fmt: skip


def _objectives(classes: tuple[TrafficClass, ...]) -> Mapping[str, int]:
    """One objective per class, so that its priority reaches the gateway the way the field sends it."""
    return {each.name: each.priority for each in classes}


def _drive(
    target: Target,
    classes: tuple[TrafficClass, ...],
    suite: Suite,
    cell: Cell,
    seed: int,
    *,
    speed: float,
) -> LoadResult:
    clock = SystemClock()
    options = LoadOptions(
        base_url=target.url,
        speedup=speed,
        horizon_s=suite.load(cell.load).horizon_s,
        stall_timeout_s=None,
        resume_delay_s=suite.latencies.resubmit_s,
        objectives={each.name: each.name for each in classes},
    )
    salt = fingerprint(cell, seed, clock.wall_time())  # vLLM refuses salts with @ or a slash
    prompts = PromptFactory(
        model=target.model,
        style=PromptStyle.TOKEN_IDS,
        seed=seed,
        run_salt=salt,
        token_ids=target.token_ids,
    )
    load = LoadGenerator(options, prompts, clock, classes=classes, seed=seed)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load.run())


def _outcome(cell: Cell, seed: int, result: LoadResult) -> RunOutcome:
    return RunOutcome(
        cell=cell,
        seed=seed,
        records=result.records,
        duration_s=result.duration_s,
        invalid=result.invalid,
    )
