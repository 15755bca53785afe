"""The engine model against a real vLLM's scheduler, step by step: recorded, and live where vLLM is installed.

Both are given the same requests before the same steps. After every step they must agree on who runs and who
waits, on the KV blocks in use, on every request's output so far, and on preemptions.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from extproc.sim.emulator.answer import TokenContent
from extproc.sim.sequence import Sequence
from extproc.sim.server_config import EngineConfig, SchedulingPolicy
from extproc.sim.server_model import ServerModel
from tests.support.real_vllm import vllm_python

SCRIPT = Path(__file__).with_name("trajectory_script.py")

RECORDED = Path(__file__).with_name("recorded_vllm_0.30.json")


def tokens(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 319) for _ in range(count)]


def request(number: int, step: int, prompt: int, output: int, **extra: int) -> dict[str, Any]:
    return {"id": number, "at_step": step, "prompt": tokens(number, prompt), "output": output, **extra}


LIMITS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "num_gpu_blocks_override": 24,
}

PLANS: dict[str, dict[str, Any]] = {
    "slots and chunked prefill": {
        "engine": LIMITS,
        "requests": [
            request(number, min(number, 1), 30 + 97 * number, 10 + 7 * number) for number in range(9)
        ],
        "steps": 200,
    },
    "KV runs out": {
        "engine": {
            **LIMITS,
            "max_num_seqs": 16,
            "enable_prefix_caching": False,
            "num_gpu_blocks_override": 12,
        },
        "requests": [request(number, min(number, 1), 200 + 13 * number, 130) for number in range(6)],
        "steps": 420,
    },
    "KV runs out with a prefix cache": {
        "engine": {**LIMITS, "max_num_seqs": 16, "num_gpu_blocks_override": 12},
        "requests": [request(number, min(number, 1), 200 + 13 * number, 130) for number in range(6)],
        "steps": 420,
    },
    "priorities": {
        "engine": {**LIMITS, "max_num_seqs": 2, "scheduling_policy": "priority"},
        "requests": [
            request(number, min(number, 1), 40, 12, priority=priority)
            for number, priority in enumerate((0, 5, 0, -5, 1, -1))
        ],
        "steps": 60,
    },
    "aborts of running and waiting requests": {
        "engine": LIMITS,
        "requests": [
            request(0, 0, 100, 60, abort_at_step=20),
            request(1, 1, 300, 60, abort_at_step=2),
            request(2, 1, 50, 60),
            request(3, 1, 50, 60, abort_at_step=30),
            request(4, 1, 50, 60),
            request(5, 1, 50, 60, abort_at_step=5),
            request(6, 1, 50, 40),
        ],
        "steps": 140,
    },
    "shared prefixes": {
        "engine": LIMITS,
        "requests": [
            {**request(number, step, 0, 15), "prompt": tokens(99, 400) + tokens(number, 60)}
            for number, step in enumerate((0, 4, 5, 40, 41, 42))
        ],
        "steps": 120,
    },
}


def record() -> dict[str, Any]:
    """The real engine's trajectories of all plans, from one process."""
    finished = subprocess.run(
        [str(vllm_python()), str(SCRIPT)],
        input=json.dumps(PLANS),
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    lines = [line for line in finished.stdout.splitlines() if line.startswith("TRAJECTORIES ")]
    assert lines, finished.stderr[-3000:]
    answer = json.loads(lines[0].removeprefix("TRAJECTORIES "))
    assert isinstance(answer, dict)
    return answer


def modelled(plan: dict[str, Any], block_tokens: int) -> list[list[int]]:
    """The same plan through the server model, one step at a time."""
    engine = plan["engine"]
    model = ServerModel(
        EngineConfig(
            max_num_seqs=engine["max_num_seqs"],
            max_num_batched_tokens=engine["max_num_batched_tokens"],
            max_model_len=engine["max_model_len"],
            kv_blocks=engine["num_gpu_blocks_override"],
            block_tokens=block_tokens,
            has_prefix_cache=engine.get("enable_prefix_caching", True),
            scheduling=SchedulingPolicy(engine.get("scheduling_policy", "fcfs")),
        ),
        max_stretch_steps=1,
    )
    sequences: dict[int, Sequence] = {}
    ids: dict[int, list[int]] = {}
    trajectory = []

    def submit(at_step: int, now: float) -> None:
        for each in plan["requests"]:
            if each["at_step"] == at_step and each["id"] not in sequences:
                ids[each["id"]] = list(each["prompt"])
                sequences[each["id"]] = Sequence(
                    each["id"],
                    prompt_tokens=len(each["prompt"]),
                    output_limit=each["output"],
                    content=TokenContent(ids[each["id"]], ""),
                    priority=each.get("priority", 0),
                )
                model.submit(sequences[each["id"]], now)

    submit(0, 0.0)
    for step in range(plan["steps"]):
        now = float(step)
        for each in plan["requests"]:
            if each.get("abort_at_step") == step:
                model.stop(sequences[each["id"]])
        submit(step, now)
        model.begin_stretch(now)
        if model.wakes_at is not None:
            submit(step + 1, now)  # while a step runs: they are there when the next one begins
            model.finish_stretch()
            for sequence in model.emitters:
                # Token contents of the output matter to the prefix cache only, and each differs.
                ids[sequence.id].append(1000 * sequence.id + len(ids[sequence.id]))
        trajectory.append(
            [
                model.running,
                model.waiting
                - sum(each["at_step"] > step and each["id"] in sequences for each in plan["requests"]),
                model.kv.used_blocks,
                *(
                    model.generated_tokens(sequences[each["id"]], now) if each["id"] in sequences else 0
                    for each in plan["requests"]
                ),
            ]
        )
    return trajectory


def compare(name: str, answer: dict[str, Any]) -> None:
    """Everything must be equal but the blocks, which may differ by one for each running request."""
    steps = modelled(PLANS[name], answer["block_tokens"])
    for number, (ours, theirs) in enumerate(zip(steps, answer["steps"], strict=True)):
        where = f"{name}, step {number}: running, waiting, blocks, outputs"
        assert ours[:2] + ours[3:] == theirs[:2] + theirs[3:], where
        assert abs(ours[2] - theirs[2]) <= theirs[0], where


@pytest.mark.parametrize("name", PLANS)
def test_the_model_schedules_step_by_step_as_a_recorded_vllm_did(name: str) -> None:
    compare(name, json.loads(RECORDED.read_text("utf-8"))[name])


@pytest.mark.vllm
@pytest.mark.timeout(400)
def test_the_model_schedules_step_by_step_as_the_installed_vllm_does() -> None:
    """With EXTPROC_RECORD set, writes the recording that the default suite compares with."""
    answers = record()
    if os.environ.get("EXTPROC_RECORD"):
        rows = [f'"{name}": {json.dumps(answer, separators=(",", ":"))}' for name, answer in answers.items()]
        RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
    for name, answer in answers.items():
        compare(name, answer)
