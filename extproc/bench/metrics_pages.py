"""Metrics pages in the size and shape of a real vLLM's, for measuring what reading them costs.

A vLLM 0.30 page has 46 to 56 KB, most of it histogram buckets. Must not know who reads the pages.
"""

from __future__ import annotations

from collections.abc import Sequence

_LABELS = 'engine="0",model_name="bench"'
_HISTOGRAMS = 26
_BUCKETS = tuple(round(0.001 * 1.7**step, 6) for step in range(22))


def metrics_page(turn: int) -> bytes:
    """Page number `turn`: gauges move, counters grow, so that no two pages in a row are alike."""
    lines: list[str] = []
    _family(
        lines,
        "python_gc_objects_collected_total",
        "counter",
        [(f'generation="{g}"', turn + g) for g in range(3)],
    )
    _family(lines, "process_resident_memory_bytes", "gauge", [("", 3_100_000_000 + 4096 * turn)])
    _family(lines, "process_start_time_seconds", "gauge", [("", 1_790_000_000.5)])
    _family(lines, "vllm:num_requests_running", "gauge", [(_LABELS, turn % 129)])
    _family(lines, "vllm:num_requests_waiting", "gauge", [(_LABELS, turn % 7)])
    reasons = [(f'{_LABELS},reason="{reason}"', turn % 7) for reason in ("capacity", "deferred")]
    _family(lines, "vllm:num_requests_waiting_by_reason", "gauge", reasons)
    _family(lines, "vllm:kv_cache_usage_perc", "gauge", [(_LABELS, (turn % 1000) / 1000)])
    for name in (
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "generation_tokens",
    ):
        _family(lines, f"vllm:{name}_total", "counter", [(_LABELS, 977 * turn)])
    for number in range(_HISTOGRAMS):
        _histogram(lines, f"vllm:bench_phase_{number:02}_seconds", turn)
    cache = (
        'block_size="16",cache_dtype="auto",enable_prefix_caching="True",num_gpu_blocks="27453",engine="0"'
    )
    _family(lines, "vllm:cache_config_info", "gauge", [(cache, 1)])
    return "\n".join([*lines, ""]).encode()


def _family(lines: list[str], name: str, kind: str, series: Sequence[tuple[str, float]]) -> None:
    lines.append(f"# HELP {name} What this family counts, in about as many words as vLLM uses.")
    lines.append(f"# TYPE {name} {kind}")
    lines.extend(
        f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {float(value)}"
        for labels, value in series
    )


def _histogram(lines: list[str], name: str, turn: int) -> None:
    lines.append(f"# HELP {name} Histogram of one phase of a request, in seconds.")
    lines.append(f"# TYPE {name} histogram")
    for place, bound in enumerate(_BUCKETS):
        lines.append(f'{name}_bucket{{{_LABELS},le="{bound}"}} {float(turn * place)}')
    lines.append(f"{name}_count{{{_LABELS}}} {float(turn * len(_BUCKETS))}")
    lines.append(f"{name}_sum{{{_LABELS}}} {turn * 0.731:.6f}")
