"""Writes the Grafana dashboard: panels as rows of a table here, the verbose JSON made from it.

Run after a change: `python deploy/grafana/build.py`. A test compares the file with this, and runs every query
against a Prometheus that has scraped a loaded stack.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "extproc.json"
RATE = "[$__rate_interval]"
WHERE = 'job=~"$job"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph; `queries` maps legends to PromQL."""

    title: str
    unit: str
    queries: dict[str, str]
    description: str
    width: int = 8


def quantile(share: float, metric: str, by: str = "priority") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{WHERE}}}{RATE})))"


def per_second(metric: str, by: str, where: str = "") -> str:
    matchers = f"{WHERE}, {where}" if where else WHERE
    return f"sum by ({by}) (rate({metric}{{{matchers}}}{RATE}))"


def gauge(metric: str, by: str, how: str = "sum") -> str:
    return f"{how} by ({by}) ({metric}{{{WHERE}}})"


SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Is it working?": (
        Panel(
            "Saturation and ceilings",
            "percentunit",
            {
                "saturation": f"max(extproc_saturation_ratio{{{WHERE}}})",
                "ceiling {{priority}}": gauge("extproc_ceiling_ratio", "priority", "min"),
            },
            "A band dispatches while saturation is below its ceiling.",
            12,
        ),
        Panel(
            "Queued requests by band",
            "short",
            {"{{priority}}": gauge("extproc_queue_requests", "priority")},
            "What waits in front of the pool.",
            12,
        ),
        Panel(
            "Final answers a second",
            "reqps",
            {"{{outcome}}": per_second("extproc_requests_total", "outcome")},
            "All but dispatched and cancelled are losses.",
        ),
        Panel(
            "Time in the queue, p50 and p99",
            "s",
            {
                "{{priority}} p50": quantile(0.5, "extproc_queue_wait_seconds"),
                "{{priority}} p99": quantile(0.99, "extproc_queue_wait_seconds"),
            },
            "Until the final answer.",
        ),
        Panel(
            "Time to first token, p95",
            "s",
            {"{{priority}}": quantile(0.95, "extproc_ttft_seconds")},
            "On observed responses (all of a slow pool, a sample of a busy one).",
        ),
    ),
    "Bands": (
        Panel(
            "Requests in flight by band",
            "short",
            {"{{priority}}": gauge("extproc_inflight_requests", "priority")},
            "Dispatched and not ended.",
        ),
        Panel(
            "Oldest queued request",
            "s",
            {"{{priority}}": gauge("extproc_queue_oldest_seconds", "priority", "max")},
            "Near the TTL: the band is starving.",
        ),
        Panel(
            "Wait of a request that comes now",
            "s",
            {"{{priority}}": gauge("extproc_wait_estimate_seconds", "priority", "max")},
            "Queued over the observed drain rate.",
        ),
        Panel(
            "Arrivals and dispatches a second",
            "reqps",
            {
                "{{priority}} arrived": per_second("extproc_requests_arrived_total", "priority"),
                "{{priority}} dispatched": per_second(
                    "extproc_requests_total", "priority", 'outcome="dispatched"'
                ),
            },
            "The gap between the two is what the queue grows by.",
        ),
        Panel(
            "Time per output token, p95",
            "s",
            {"{{priority}}": quantile(0.95, "extproc_tpot_seconds")},
            "On observed responses.",
        ),
        Panel(
            "Queued by tenant",
            "short",
            {"{{fairness_id}}": f"topk(10, sum by (fairness_id) (extproc_flow_queue_requests{{{WHERE}}}))"},
            "The ten longest flows.",
        ),
    ),
    "Capacity": (
        Panel(
            "Saturation by endpoint",
            "percentunit",
            {
                "{{endpoint}} {{resource}}": gauge(
                    "extproc_endpoint_saturation_ratio", "endpoint, resource", "max"
                )
            },
            "Usage over capacity, as flow control counts it.",
        ),
        Panel(
            "Running and waiting inside the engines",
            "short",
            {
                "{{endpoint}} running": gauge("extproc_endpoint_running_requests", "endpoint"),
                "{{endpoint}} waiting": gauge("extproc_endpoint_waiting_requests", "endpoint"),
            },
            "Waiting above 0 for long: the limits let in more than the engine can run.",
        ),
        Panel(
            "KV cache usage",
            "percentunit",
            {"{{endpoint}}": gauge("extproc_endpoint_kv_usage_ratio", "endpoint", "max")},
            "As the engines report.",
        ),
        Panel(
            "Endpoints by state",
            "short",
            {"{{state}}": gauge("extproc_endpoints", "state", "max")},
            "Only ready ones count as capacity.",
        ),
        Panel(
            "Held back from each band",
            "percentunit",
            {"{{priority}} {{resource}}": gauge("extproc_reserve_ratio", "priority, resource", "max")},
            "1 - ceiling, by resource.",
        ),
        Panel(
            "Age of engine metrics",
            "s",
            {"{{endpoint}}": gauge("extproc_endpoint_sample_age_seconds", "endpoint", "max")},
            "Old metrics make a measured detector blind.",
        ),
    ),
    "Evictions": (
        Panel(
            "Evictions a second, by the victim's band",
            "reqps",
            {"{{priority}}": per_second("extproc_revocations_issued_total", "priority")},
            "In-flight requests that made room.",
        ),
        Panel(
            "Revocation to the end of the stream, p99",
            "s",
            {"p99": quantile(0.99, "extproc_revocation_confirmation_seconds", by="")},
            "Above a second: Envoy's delayed_close_timeout or a slow engine.",
        ),
        Panel(
            "Tokens redone a second",
            "short",
            {"{{kind}}": per_second("extproc_redone_tokens_total", "kind")},
            "The price of evictions; `output` is 0 for clients that resume.",
        ),
    ),
    "Tokens": (
        Panel(
            "Prompt tokens, p50 and p95",
            "short",
            {
                "{{priority}} p50": quantile(0.5, "extproc_prompt_tokens"),
                "{{priority}} p95": quantile(0.95, "extproc_prompt_tokens"),
            },
            "As counted at arrival.",
        ),
        Panel(
            "Output tokens, p50 and p95",
            "short",
            {
                "{{priority}} p50": quantile(0.5, "extproc_output_tokens"),
                "{{priority}} p95": quantile(0.95, "extproc_output_tokens"),
            },
            "Where usage was seen.",
        ),
        Panel(
            "Estimated over true output, p10, p50, p90",
            "short",
            {
                f"p{int(share * 100)}": quantile(share, "extproc_output_estimate_ratio", by="")
                for share in (0.1, 0.5, 0.9)
            },
            "1 is exact; far above 1 wastes capacity, below 1 overbooks it.",
        ),
    ),
    "The processor": (
        Panel(
            "Event loop lag and decision time, p99",
            "s",
            {
                "lag": quantile(0.99, "extproc_event_loop_lag_seconds", by=""),
                "decision": quantile(0.99, "extproc_decision_seconds", by=""),
            },
            "Lag above 100 ms: too little CPU.",
        ),
        Panel(
            "Open ext_proc streams",
            "short",
            {"streams": f"sum(extproc_streams_inflight{{{WHERE}}})"},
            "One per queued or running request.",
        ),
        Panel(
            "Streams ended a second",
            "reqps",
            {"{{end}}": per_second("extproc_streams_total", "end")},
            "How requests left.",
        ),
        Panel(
            "Configuration reloads",
            "short",
            {"{{result}}": f"sum by (result) (extproc_config_reloads_total{{{WHERE}}})"},
            "Refused: the old one stays in force.",
        ),
        Panel(
            "Bad requests and failed scrapes a second",
            "reqps",
            {
                "{{kind}}": per_second("extproc_bad_requests_total", "kind"),
                "scrape of {{endpoint}}": per_second("extproc_scrape_errors_total", "endpoint"),
            },
            "Faults of clients, and of engines' metrics ports.",
        ),
        Panel(
            "Error answers of model servers a second",
            "reqps",
            {"{{status_class}}": per_second("extproc_upstream_errors_total", "status_class")},
            "Passed on to the clients.",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, section in SECTIONS.items():
        panels.append(_row(title, len(panels) + 1, top))
        top, left = top + 1, 0
        for panel in section:
            if left + panel.width > 24:
                top, left = top + 8, 0
            panels.append(_graph(panel, len(panels) + 1, left, top))
            left += panel.width
        top += 8
    return {
        "uid": "extproc",
        "title": "extproc",
        "tags": ["extproc", "vllm"],
        "editable": True,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_datasource(), _job()]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _row(title: str, number: int, top: int) -> dict[str, Any]:
    grid = {"h": 1, "w": 24, "x": 0, "y": top}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}


def _graph(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": source}
        for index, (legend, expression) in enumerate(panel.queries.items())
    ]
    custom = {"lineWidth": 2, "fillOpacity": 6, "showPoints": "never"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {"h": 8, "w": panel.width, "x": left, "y": top},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _job() -> dict[str, Any]:
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(extproc_build_info, job)",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
