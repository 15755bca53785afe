"""The emulator's /metrics: the names and label sets of vLLM 0.30, read from the model at each scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from extproc.sim.emulator.loop import EngineLoop

_LATENCY_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_GAP_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Cumulative buckets over seconds."""

    __slots__ = ("_bounds", "_buckets", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._buckets = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._buckets[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def lines(self, name: str, labels: str) -> list[str]:
        lines = [f"# TYPE {name} histogram"]
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._buckets, strict=True):
            total += count
            le = "+Inf" if bound == float("inf") else repr(bound)
            lines.append(f'{name}_bucket{{{labels},le="{le}"}} {float(total)}')
        return [*lines, f"{name}_count{{{labels}}} {float(total)}", f"{name}_sum{{{labels}}} {self._sum}"]


class EmulatorMetrics:
    """Counts what the model does not; `exposition` writes everything."""

    def __init__(self, model_name: str, loop: EngineLoop, started_at: float) -> None:
        """`started_at`: wall time of the start; scrapers tell a restarted server by it."""
        self._loop = loop
        self._started_at = started_at
        self._labels = f'engine="0",model_name="{model_name}"'
        self.finished: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.ttft = Histogram(_LATENCY_BOUNDS_S)
        self.gaps = Histogram(_GAP_BOUNDS_S)
        self.end_to_end = Histogram(_LATENCY_BOUNDS_S)

    def exposition(self) -> str:
        """Prometheus text format."""
        model, labels = self._loop.model, self._labels
        lines = [
            *self._one("gauge", "vllm:num_requests_running", model.running),
            *self._one("gauge", "vllm:num_requests_waiting", model.waiting),
            *self._by(
                "gauge",
                "vllm:num_requests_waiting_by_reason",
                "reason",
                {"capacity": model.waiting, "deferred": 0},
            ),
            *self._one("gauge", "vllm:kv_cache_usage_perc", model.kv.usage_fraction),
            *self._one("counter", "vllm:num_preemptions", model.preemptions),
            *self._one("counter", "vllm:prefix_cache_queries", model.kv.queried_tokens),
            *self._one("counter", "vllm:prefix_cache_hits", model.kv.hit_tokens),
            *self._one("counter", "vllm:prompt_tokens", self.prompt_tokens),
            *self._one("counter", "vllm:generation_tokens", model.output_tokens),
            *self._by(
                "counter",
                "vllm:prompt_tokens_by_source",
                "source",
                {
                    "local_compute": self.prompt_tokens - self.cached_tokens,
                    "local_cache_hit": self.cached_tokens,
                    "external_kv_transfer": 0,
                },
            ),
            *self._by(
                "counter",
                "vllm:request_success",
                "finished_reason",
                {reason: self.finished[reason] for reason in FINISH_REASONS},
            ),
            *self.ttft.lines("vllm:time_to_first_token_seconds", labels),
            *self.gaps.lines("vllm:inter_token_latency_seconds", labels),
            *self.end_to_end.lines("vllm:e2e_request_latency_seconds", labels),
            *self._config_info(),
        ]
        return "\n".join([*lines, *self._own()]) + "\n"

    def _own(self) -> list[str]:
        """What a real vLLM has not got, and its process start."""
        return [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started_at}",
            *self._one("gauge", "emulator:late_seconds", self._loop.late_s),
            *self._one("counter", "emulator:late_steps", self._loop.late_steps),
            *self._one("counter", "emulator:resyncs", self._loop.resyncs),
        ]

    def _one(self, kind: str, name: str, value: float) -> list[str]:
        """A gauge or counter with the common labels; counters end in `_total` on the page."""
        suffix = "_total" if kind == "counter" else ""
        return [f"# TYPE {name} {kind}", f"{name}{suffix}{{{self._labels}}} {float(value)}"]

    def _by(self, kind: str, name: str, label: str, values: Mapping[str, float]) -> list[str]:
        """One line for each value of one more label; labels in alphabetical order, as vLLM prints them."""
        suffix = "_total" if kind == "counter" else ""
        lines = [f"# TYPE {name} {kind}"]
        for key, value in values.items():
            parts = sorted([*self._labels.split(","), f'{label}="{key}"'])
            lines.append(f"{name}{suffix}{{{','.join(parts)}}} {float(value)}")
        return lines

    def _config_info(self) -> list[str]:
        config = self._loop.model.config
        values = {
            "block_size": config.block_tokens,
            "cache_dtype": "auto",
            "enable_prefix_caching": config.has_prefix_cache,
            "engine": 0,
            "kv_cache_max_concurrency": config.kv_blocks * config.block_tokens / config.max_model_len,
            "kv_cache_size_tokens": config.kv_blocks * config.block_tokens,
            "num_gpu_blocks": config.kv_blocks,
            "num_gpu_blocks_override": "None",
        }
        labels = ",".join(f'{name}="{value}"' for name, value in values.items())
        return ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{labels}}} 1.0"]
