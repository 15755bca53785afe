"""Runs inside a vLLM environment: steps a real engine through plans and prints what its scheduler did.

Standard input: one JSON object, name to `{engine: {...}, requests: [...], steps: N}`, each request with
`id`, `at_step`, `prompt` (token ids), `output`, optionally `priority` and `abort_at_step`. Output: one line
`TRAJECTORIES {...}` with one list per step: running, waiting, blocks in use, then each request's output
tokens. The model has dummy weights: only scheduling is looked at.
"""

import gc
import json
import os
import sys
import tempfile

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}


def main() -> None:
    plans = json.load(sys.stdin)
    answers = {}
    for name, plan in plans.items():
        answers[name] = trajectory_of(plan)
        gc.collect()
    print("TRAJECTORIES", json.dumps(answers))


def trajectory_of(plan):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(MODEL, file)
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            enforce_eager=True,
            async_scheduling=False,
            **plan["engine"],
        )
    )
    scheduler = engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    names = {}
    trajectory = []
    produced = {request["id"]: 0 for request in plan["requests"]}
    for step in range(plan["steps"]):
        for request in plan["requests"]:
            if request["at_step"] == step:
                params = SamplingParams(
                    max_tokens=request["output"], ignore_eos=True, temperature=0.0, detokenize=False
                )
                name = str(request["id"])
                names[name] = request["id"]
                prompt = {"prompt_token_ids": request["prompt"]}
                engine.add_request(name, prompt, params, priority=request.get("priority", 0))
            if request.get("abort_at_step") == step:
                engine.abort_request([str(request["id"])])
        for output in engine.step():
            produced[names[output.request_id]] = len(output.outputs[0].token_ids)
        trajectory.append(
            [
                len(scheduler.running),
                len(scheduler.waiting) + len(getattr(scheduler, "skipped_waiting", ())),
                pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
                *produced.values(),
            ]
        )
    block_tokens = scheduler.block_size
    engine.engine_core.shutdown()
    return {"block_tokens": block_tokens, "steps": trajectory}


main()
