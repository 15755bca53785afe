"""The metric catalogue: every series the processor exports, as data.

It is the one source of names, labels, help texts and buckets: `telemetry` builds its collectors from it and
docs/metrics.md is printed from it (`render_markdown`). It must not know how a value is obtained.

Rules: prefix `extproc_`; base units (seconds, bytes, tokens, ratios from 0 to 1); a label is either one of
our own closed sets (outcome, reason, resource) or a bounded one (priority, endpoint, model, fairness id: see
`labels.LabelCap`); never a request id, a key, or text of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: `moves` says which event changes it, in the words of the docs."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    moves: str
    buckets: tuple[float, ...] = ()
    is_read: bool = False
    """Taken from its owner at each scrape, as gauges always are, instead of being counted here."""


WAIT_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120)
DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
TOKEN_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2)
SHORT_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
TOKEN_BUCKETS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 1048576)
BYTE_BUCKETS = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)


def _counter(
    name: str, unit: str, labels: tuple[str, ...], help_text: str, moves: str, *, is_read: bool = False
) -> Metric:
    return Metric(f"extproc_{name}_total", Kind.COUNTER, unit, labels, help_text, moves, is_read=is_read)


def _gauge(name: str, unit: str, labels: tuple[str, ...], help_text: str, moves: str) -> Metric:
    return Metric(f"extproc_{name}", Kind.GAUGE, unit, labels, help_text, moves, is_read=True)


def _histogram(
    name: str, unit: str, labels: tuple[str, ...], help_text: str, moves: str, buckets: tuple[float, ...]
) -> Metric:
    return Metric(f"extproc_{name}", Kind.HISTOGRAM, unit, labels, help_text, moves, buckets)


REQUESTS = (
    _counter(
        "requests_arrived",
        "requests",
        ("priority",),
        "Requests handed to flow control.",
        "a request's body is complete and parsed",
    ),
    _counter(
        "requests",
        "requests",
        ("priority", "outcome"),
        "Final answers of flow control.",
        "a request is dispatched, refused, displaced, expired, or its client left the queue",
    ),
    _counter(
        "requests_finished",
        "requests",
        ("priority", "reason"),
        "Dispatched requests that ended, by how they ended.",
        "the stream of a dispatched request ends",
    ),
    _counter(
        "model_requests",
        "requests",
        ("model",),
        "Dispatched requests by model; models beyond the cap count as `__other__`.",
        "a request is dispatched",
    ),
    _counter(
        "bypassed_requests",
        "requests",
        ("reason",),
        "Requests routed without queueing.",
        "a request has no body, or its path is not a model call",
    ),
    _counter(
        "bad_requests",
        "requests",
        ("kind",),
        "Requests answered with an error of the client.",
        "a body cannot be parsed, is too large, or names something that is not allowed",
    ),
    _counter(
        "ignored_headers",
        "headers",
        ("header",),
        "Request headers with a value that could not be read.",
        "a priority, deadline, TTL or target header does not parse",
    ),
    _counter(
        "request_notes",
        "requests",
        ("kind",),
        "Requests decided on less than was wanted: `count-fallback` (the exact token count failed, so the "
        "estimate stood), `decided-without-body` (Envoy's body mode shows the body only after the decision).",
        "a request is handed to flow control",
    ),
    _counter(
        "upstream_errors",
        "requests",
        ("status_class",),
        "Error statuses of model servers.",
        "response headers with a status of 400 or more arrive",
    ),
    _histogram(
        "queue_wait_seconds",
        "seconds",
        ("priority", "outcome"),
        "Time in the queue until the final answer.",
        "as `extproc_requests_total`",
        WAIT_BUCKETS_S,
    ),
    _histogram(
        "request_duration_seconds",
        "seconds",
        ("priority",),
        "Arrival to the end of the response.",
        "the stream of a dispatched request ends",
        DURATION_BUCKETS_S,
    ),
    _histogram(
        "response_headers_seconds",
        "seconds",
        ("priority",),
        "Dispatch to response headers. For a streaming vLLM this is not the first token.",
        "response headers arrive",
        LATENCY_BUCKETS_S,
    ),
    _histogram(
        "ttft_seconds",
        "seconds",
        ("priority",),
        "Arrival to first output token, on sampled or streamed responses.",
        "the first output of an observed response arrives",
        LATENCY_BUCKETS_S,
    ),
    _histogram(
        "itl_seconds",
        "seconds",
        ("priority",),
        "Gap between successive output chunks, on observed responses.",
        "a further output chunk of an observed response arrives",
        TOKEN_GAP_BUCKETS_S,
    ),
    _histogram(
        "tpot_seconds",
        "seconds",
        ("priority",),
        "(end - first token) / (output tokens - 1), on observed responses.",
        "an observed response of two or more tokens ends",
        TOKEN_GAP_BUCKETS_S,
    ),
    _histogram(
        "request_body_bytes",
        "bytes",
        (),
        "Request body size.",
        "a request's body is complete",
        BYTE_BUCKETS,
    ),
    _counter(
        "deadline_missed",
        "requests",
        ("priority",),
        "Requests dropped at their own deadline, in the queue.",
        "a request expires with outcome `expired-deadline`",
    ),
    _counter(
        "ttft_target",
        "requests",
        ("priority", "result"),
        "Observed responses against their TTFT target.",
        "the first output of an observed response with a target arrives; result is `met` or `missed`",
    ),
)

TOKENS = (
    _histogram(
        "prompt_tokens",
        "tokens",
        ("priority",),
        "Prompt tokens as counted at arrival.",
        "a request is handed to flow control",
        TOKEN_BUCKETS,
    ),
    _histogram(
        "output_tokens",
        "tokens",
        ("priority",),
        "Output tokens from the usage block, or counted from an observed response.",
        "a response whose usage was seen ends",
        TOKEN_BUCKETS,
    ),
    _histogram(
        "cached_tokens",
        "tokens",
        ("priority",),
        "Prompt tokens that the engine took from its prefix cache.",
        "a response whose usage was seen ends",
        TOKEN_BUCKETS,
    ),
    _histogram(
        "output_estimate_ratio",
        "ratio",
        ("priority",),
        "Estimated over observed output tokens: 1 is exact, above 1 is an over-estimate.",
        "a response whose usage was seen ends",
        RATIO_BUCKETS,
    ),
    _counter(
        "redone_tokens",
        "tokens",
        ("priority", "kind"),
        "Work thrown away by evictions: `prompt` to be prefilled again, `output` generated so far "
        "(only `prompt` is repeated when the client resumes).",
        "an in-flight request is evicted",
    ),
)

QUEUES = (
    _gauge("queue_requests", "requests", ("priority",), "Queued requests of a band.", "arrival, exit"),
    _gauge("queue_bytes", "bytes", ("priority",), "Body bytes held by a band's queue.", "arrival, exit"),
    _gauge("queue_tokens", "tokens", ("priority",), "Expected tokens of a band's queue.", "arrival, exit"),
    _gauge(
        "queue_limit_requests", "requests", ("priority",), "Configured limit of the band.", "configuration"
    ),
    _gauge(
        "queue_oldest_seconds", "seconds", ("priority",), "Age of the oldest queued request.", "every scrape"
    ),
    _gauge(
        "flow_queue_requests",
        "requests",
        ("priority", "fairness_id"),
        "Queued requests of a flow; fairness ids beyond the cap are summed as `__other__`.",
        "arrival, exit; the series goes with its flow",
    ),
    _gauge("flows", "flows", (), "Flows known at present.", "first request of a flow, collection"),
    _gauge(
        "wait_estimate_seconds",
        "seconds",
        ("priority",),
        "Expected wait of a request that arrives now: queued / observed drain rate.",
        "every scrape",
    ),
    _gauge(
        "drain_requests_per_second",
        "requests per second",
        ("priority",),
        "Observed dispatch rate of a band while it had a queue.",
        "every scrape",
    ),
)

CAPACITY = (
    _gauge("saturation_ratio", "ratio", (), "What the detector reports: 1 is full.", "every scrape"),
    _gauge(
        "resource_saturation_ratio",
        "ratio",
        ("resource",),
        "Pool usage over capacity, by the resources that the detector knows (`requests`, `tokens`, "
        "`slots`, `kv`, `queue`).",
        "every scrape",
    ),
    _gauge(
        "ceiling_ratio",
        "ratio",
        ("priority",),
        "Saturation at which a band stops dispatching; the lowest over the resources.",
        "configuration, and online with adaptive holdback",
    ),
    _gauge(
        "reserve_ratio",
        "ratio",
        ("priority", "resource"),
        "Share of a resource (`requests`, `tokens`) held back from a band: 1 - its ceiling.",
        "as the ceiling",
    ),
    _gauge(
        "inflight_requests",
        "requests",
        ("priority", "endpoint"),
        "Dispatched and not ended; endpoint `departed`: on those that have left the pool.",
        "dispatch, end of stream",
    ),
    _gauge(
        "inflight_tokens",
        "tokens",
        ("priority", "endpoint"),
        "Expected tokens of requests in flight.",
        "dispatch, end of stream",
    ),
    _gauge(
        "promised_requests",
        "requests",
        (),
        "Requests in flight on the promise of capacity whose victims have not ended yet.",
        "an eviction dispatches its successor, the victim ends",
    ),
)

EVICTION = (
    _gauge(
        "revocations_outstanding",
        "requests",
        (),
        "Revocations whose victims' streams have not ended yet.",
        "revocation, its confirmation",
    ),
    _counter(
        "revocations_issued",
        "requests",
        ("priority",),
        "In-flight requests that were told to end, by the victim's priority.",
        "an eviction is decided",
    ),
    _counter(
        "revocations",
        "requests",
        ("outcome",),
        "Revocations by what became of them.",
        "the victim's stream ends (`confirmed`) or 10 s pass without it (`timed-out`)",
        is_read=True,
    ),
    _histogram(
        "revocation_confirmation_seconds",
        "seconds",
        (),
        "Revocation to the end of the victim's stream.",
        "a revocation is confirmed",
        WAIT_BUCKETS_S,
    ),
)

ENDPOINTS = (
    _gauge(
        "endpoints",
        "endpoints",
        ("state",),
        "Known endpoints: `ready`, `draining`, `probing`, `unhealthy`.",
        "discovery, health",
    ),
    _gauge(
        "endpoint_saturation_ratio",
        "ratio",
        ("endpoint", "resource"),
        "Usage over capacity of one endpoint.",
        "every scrape",
    ),
    _gauge(
        "endpoint_running_requests",
        "requests",
        ("endpoint",),
        "Running, as the engine reports.",
        "engine scrape",
    ),
    _gauge(
        "endpoint_waiting_requests",
        "requests",
        ("endpoint",),
        "Waiting inside the engine, as it reports.",
        "engine scrape",
    ),
    _gauge(
        "endpoint_kv_usage_ratio",
        "ratio",
        ("endpoint",),
        "KV cache usage, as the engine reports.",
        "engine scrape",
    ),
    _gauge(
        "stale_endpoints",
        "endpoints",
        (),
        "Open endpoints whose metrics are missing or too old for the detector.",
        "every scrape",
    ),
    _gauge(
        "endpoint_sample_age_seconds",
        "seconds",
        ("endpoint",),
        "Age of the newest engine metrics.",
        "every scrape",
    ),
    _gauge(
        "discovery_up",
        "boolean",
        ("source",),
        "1 while a source of endpoints can be read; 0: its last good list is in force.",
        "discovery",
    ),
    _counter(
        "scrape_errors",
        "scrapes",
        ("endpoint",),
        "Engine metrics that could not be read.",
        "a scrape fails or times out",
        is_read=True,
    ),
)

PROCESS = (
    _gauge("streams_inflight", "streams", (), "Open ext_proc streams.", "stream start, end"),
    _counter(
        "streams",
        "streams",
        ("end",),
        "Ended ext_proc streams: `complete`, `client-gone`, `left-in-queue`, `protocol-error`, `internal`, "
        "`refused`.",
        "a stream ends; `left-in-queue` means that it was cancelled before our answer, by a client that left "
        "or by Envoy's message_timeout (its own stat `ext_proc.message_timeouts` tells which)",
    ),
    _counter(
        "ignored_events",
        "events",
        (),
        "Events that named an unknown or already ended request or endpoint.",
        "an event comes late or twice",
        is_read=True,
    ),
    _histogram(
        "decision_seconds",
        "seconds",
        ("event",),
        "Time of one call into the policy core, by kind of event.",
        "an event is handled",
        SHORT_BUCKETS_S,
    ),
    _histogram(
        "event_loop_lag_seconds",
        "seconds",
        (),
        "How late the event loop runs a timer.",
        "four times a second",
        SHORT_BUCKETS_S,
    ),
    _counter(
        "task_failures",
        "tasks",
        ("task",),
        "Background tasks that ended with an error.",
        "a background task fails",
    ),
    _counter(
        "config_reloads",
        "reloads",
        ("result",),
        "Reloads: `applied`, `refused` (problems), `unchanged`.",
        "SIGHUP or a change of the file",
    ),
    _gauge("config_generation", "", (), "Counts applied configurations, from 1.", "a reload is applied"),
    _gauge("draining", "", (), "1 while shutting down, else 0.", "SIGTERM"),
    _counter(
        "observe_only",
        "requests",
        ("priority", "action"),
        "Observe-only mode: `would-hold` counts arrivals that would have waited.",
        "a decision is not enforced because of `mode: observe`",
        is_read=True,
    ),
    _gauge("build_info", "", ("version",), "Always 1; carries the version.", "start"),
)

REPLICAS = (
    _gauge(
        "replica_state",
        "",
        ("state",),
        "1 for the state that this replica is in: `starting`, `leased`, `cut-off`, `fallback`, or, with a "
        "standby, `active` or `standby`.",
        "a grant arrives, a lease ends, the store fails or answers again",
    ),
    _gauge("replica_leader", "", (), "1 while this replica allocates for its group.", "the leader changes"),
    _gauge("replica_members", "replicas", (), "Replicas that share the pool.", "a replica joins or leaves"),
    _gauge("replica_lease_seconds", "seconds", (), "How long the credits are still valid.", "a report"),
    _gauge(
        "replica_credits",
        "requests or tokens",
        ("endpoint", "resource"),
        "What this replica may use of an endpoint, of `requests` and KV `tokens`.",
        "credits move between replicas",
    ),
    _gauge(
        "replica_capacity",
        "requests or tokens",
        ("endpoint", "resource"),
        "The whole capacity of an endpoint that the replicas share.",
        "an endpoint's capacity changes",
    ),
    _counter(
        "replica_grants", "grants", (), "Grants taken (standby: terms served).", "a grant", is_read=True
    ),
    _counter(
        "replica_reclaims",
        "reclaims",
        (),
        "Requests of the group to evict for another replica's more important work.",
        "a more important request finds no credits anywhere",
        is_read=True,
    ),
    _counter(
        "replica_allocation_rounds",
        "rounds",
        (),
        "Allocations computed while leading.",
        "a period passes, or a replica starts to wait",
        is_read=True,
    ),
    _counter("replica_store_calls", "calls", (), "Calls to Redis or Kubernetes.", "a period", is_read=True),
    _counter(
        "replica_store_errors",
        "calls",
        (),
        "Calls that failed or came too late.",
        "Redis or Kubernetes can't be reached, refuses, or is slow",
        is_read=True,
    ),
)

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
