"""What one metrics page of a model server says, and under which names each kind of engine says it.

Knows names and units only; how the text is read is `extproc.formats.prometheus`, when it is fetched is the
scraper's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from extproc.errors import ConfigError, Problem


class Signal(Enum):
    """One thing that we want to know of an engine."""

    RUNNING_REQUESTS = "running_requests"
    WAITING_REQUESTS = "waiting_requests"
    KV_USAGE_FRACTION = "kv_usage_fraction"
    PREEMPTIONS_TOTAL = "preemptions_total"
    PROMPT_TOKENS_TOTAL = "prompt_tokens_total"
    CACHE_CONFIG = "cache_config"
    LORA_INFO = "lora_info"
    PROCESS_START = "process_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """The series to read, as printed on the page; an empty tuple means that the engine does not report it.

    Several names are alternatives (a series renamed between versions), all of them are read. The two label
    names belong to the `cache_config` series. `reserved_blocks` is what the engine keeps for itself of the
    blocks that it reports: vLLM never hands out its null block, so one block less is usable.
    """

    running_requests: tuple[str, ...] = ("vllm:num_requests_running",)
    waiting_requests: tuple[str, ...] = ("vllm:num_requests_waiting",)
    kv_usage_fraction: tuple[str, ...] = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    preemptions_total: tuple[str, ...] = ("vllm:num_preemptions_total",)
    prompt_tokens_total: tuple[str, ...] = ("vllm:prompt_tokens_total",)
    cache_config: tuple[str, ...] = ("vllm:cache_config_info",)
    lora_info: tuple[str, ...] = ("vllm:lora_requests_info",)
    process_start: tuple[str, ...] = ("process_start_time_seconds",)
    block_tokens_label: str = "block_size"
    blocks_label: str = "num_gpu_blocks"
    reserved_blocks: int = 1

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        problems = []
        for signal in Signal:
            for name in self.of(signal):
                if not name or any(character.isspace() or character in '{}"#' for character in name):
                    problems.append(Problem(f"names.{signal.value}", f"{name!r} is no metric name"))
                elif name in seen:
                    problems.append(Problem(f"names.{signal.value}", f"{name} is also {seen[name]}"))
                seen[name] = signal.value
        if self.reserved_blocks < 0:
            problems.append(Problem("names.reserved_blocks", "must not be negative"))
        if problems:
            raise ConfigError(problems)

    def of(self, signal: Signal) -> tuple[str, ...]:
        """The names under which the engine prints `signal`."""
        names: tuple[str, ...] = getattr(self, signal.value)
        return names


VLLM_NAMES = MetricNames()

SGLANG_NAMES = MetricNames(
    running_requests=("sglang:num_running_reqs",),
    waiting_requests=("sglang:num_queue_reqs",),
    kv_usage_fraction=("sglang:token_usage",),
    preemptions_total=("sglang:num_retracted_requests_total",),
    prompt_tokens_total=("sglang:prompt_tokens_total",),
    cache_config=("sglang:cache_config_info",),
    lora_info=(),
    block_tokens_label="page_size",
    blocks_label="num_pages",
    reserved_blocks=0,
)

PRESETS: dict[str, MetricNames] = {"vllm": VLLM_NAMES, "sglang": SGLANG_NAMES}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMerge:
    """How the engines of one data-parallel server become one endpoint.

    `requests` joins running and waiting counts: "sum" when the server spreads requests over all its engines,
    "max" when one busy engine is what the next request meets. `kv_usage` joins the usage fractions. The
    capacity in tokens is always the sum, counters are always summed.
    """

    requests: Literal["sum", "max"] = "sum"
    kv_usage: Literal["max", "mean"] = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """The wanted figures of one page; None: not on the page.

    `kv_capacity_tokens` is what requests can use: (blocks - reserved) x block size, over all engines.
    `process_started_at` is seconds since the epoch, as the server says. `malformed_lines` counts wanted
    series whose line could not be read; each of those was left out.
    """

    engines: int = 0
    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_usage_fraction: float | None = None
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int | None = None
    preemptions_total: int | None = None
    prompt_tokens_total: int | None = None
    running_loras: frozenset[str] | None = None
    waiting_loras: frozenset[str] | None = None
    max_loras: int | None = None
    process_started_at: float | None = None
    malformed_lines: int = 0

    @property
    def is_empty(self) -> bool:
        """True when nothing of an engine was on the page: another server answers there."""
        return (
            self.running_requests is None and self.waiting_requests is None and self.kv_usage_fraction is None
        )
