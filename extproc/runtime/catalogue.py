"""The metric catalogue: every series the processor exports, as data.

It is the one source of names, labels, help texts and buckets: `telemetry` builds its collectors from it and
docs/metrics.md is printed from it (`render_markdown`). It must not know how a value is obtained.

Rules: prefix `extproc_`; base units (seconds, bytes, tokens, ratios from 0 to 1); a label is either one of
our own closed sets (outcome, reason, resource) or a bounded one (priority, endpoint, model, fairness id: see
`labels.LabelCap`); never a request id, a key, or text of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.runtime.metric_spec import Kind, Metric
from extproc.runtime.metrics_of_requests import REQUESTS, TOKENS
from extproc.runtime.metrics_of_state import CAPACITY, ENDPOINTS, EVICTION, PROCESS, QUEUES, REPLICAS

__all__ = ["SECTIONS", "Kind", "Metric", "all_metrics", "render_markdown"]

SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Requests", REQUESTS),
    ("Tokens", TOKENS),
    ("Queues", QUEUES),
    ("Capacity and ceilings", CAPACITY),
    ("Eviction", EVICTION),
    ("Endpoints", ENDPOINTS),
    ("The process", PROCESS),
    ("Replicas", REPLICAS),
)


def all_metrics() -> Iterator[Metric]:
    """Every metric, in the order of the docs."""
    for _, metrics in SECTIONS:
        yield from metrics


def render_markdown() -> str:
    """The tables of docs/metrics.md, one section each."""
    parts: list[str] = []
    for title, metrics in SECTIONS:
        parts.append(f"## {title}\n")
        parts.append("| name | type | unit | labels | what it is | moves when |")
        parts.append("|---|---|---|---|---|---|")
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
            parts.append(
                f"| `{metric.name}` | {metric.kind.value} | {metric.unit or '–'} | {labels} "
                f"| {metric.help} | {metric.moves} |"
            )
        parts.append("")
    return "\n".join(parts)
