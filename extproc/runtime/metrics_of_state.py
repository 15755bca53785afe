"""The catalogue's tables of what is: read from the controller, the pool and the process at each scrape."""

from __future__ import annotations

from extproc.runtime.metric_spec import SHORT_BUCKETS_S, WAIT_BUCKETS_S, counter, gauge, histogram

QUEUES = (
    gauge("queue_requests", "requests", ("priority",), "Queued requests of a band.", "arrival, exit"),
    gauge("queue_bytes", "bytes", ("priority",), "Body bytes held by a band's queue.", "arrival, exit"),
    gauge("queue_tokens", "tokens", ("priority",), "Expected tokens of a band's queue.", "arrival, exit"),
    gauge(
        "queue_limit_requests", "requests", ("priority",), "Configured limit of the band.", "configuration"
    ),
    gauge(
        "queue_oldest_seconds", "seconds", ("priority",), "Age of the oldest queued request.", "every scrape"
    ),
    gauge(
        "flow_queue_requests",
        "requests",
        ("priority", "fairness_id"),
        "Queued requests of a flow; fairness ids beyond the cap are summed as `__other__`.",
        "arrival, exit; the series goes with its flow",
    ),
    gauge("flows", "flows", (), "Flows known at present.", "first request of a flow, collection"),
    gauge(
        "wait_estimate_seconds",
        "seconds",
        ("priority",),
        "Expected wait of a request that arrives now: queued / observed drain rate.",
        "every scrape",
    ),
    gauge(
        "drain_requests_per_second",
        "requests per second",
        ("priority",),
        "Observed dispatch rate of a band while it had a queue.",
        "every scrape",
    ),
)

CAPACITY = (
    gauge("saturation_ratio", "ratio", (), "What the detector reports: 1 is full.", "every scrape"),
    gauge(
        "resource_saturation_ratio",
        "ratio",
        ("resource",),
        "Pool usage over capacity, by the resources that the detector knows (`requests`, `tokens`, "
        "`slots`, `kv`, `queue`).",
        "every scrape",
    ),
    gauge(
        "ceiling_ratio",
        "ratio",
        ("priority",),
        "Saturation at which a band stops dispatching; the lowest over the resources.",
        "configuration, and online with adaptive holdback",
    ),
    gauge(
        "reserve_ratio",
        "ratio",
        ("priority", "resource"),
        "Share of a resource (`requests`, `tokens`) held back from a band: 1 - its ceiling.",
        "as the ceiling",
    ),
    gauge(
        "inflight_requests",
        "requests",
        ("priority", "endpoint"),
        "Dispatched and not ended; endpoint `departed`: on those that have left the pool.",
        "dispatch, end of stream",
    ),
    gauge(
        "inflight_tokens",
        "tokens",
        ("priority", "endpoint"),
        "Expected tokens of requests in flight.",
        "dispatch, end of stream",
    ),
    gauge(
        "promised_requests",
        "requests",
        (),
        "Requests in flight on the promise of capacity whose victims have not ended yet.",
        "an eviction dispatches its successor, the victim ends",
    ),
)

EVICTION = (
    gauge(
        "revocations_outstanding",
        "requests",
        (),
        "Revocations whose victims' streams have not ended yet.",
        "revocation, its confirmation",
    ),
    counter(
        "revocations_issued",
        "requests",
        ("priority",),
        "In-flight requests that were told to end, by the victim's priority.",
        "an eviction is decided",
    ),
    counter(
        "revocations",
        "requests",
        ("outcome",),
        "Revocations by what became of them.",
        "the victim's stream ends (`confirmed`) or 10 s pass without it (`timed-out`)",
        is_read=True,
    ),
    histogram(
        "revocation_confirmation_seconds",
        "seconds",
        (),
        "Revocation to the end of the victim's stream.",
        "a revocation is confirmed",
        WAIT_BUCKETS_S,
    ),
)

ENDPOINTS = (
    gauge(
        "endpoints",
        "endpoints",
        ("state",),
        "Known endpoints: `ready`, `draining`, `probing`, `unhealthy`.",
        "discovery, health",
    ),
    gauge(
        "endpoint_saturation_ratio",
        "ratio",
        ("endpoint", "resource"),
        "Usage over capacity of one endpoint.",
        "every scrape",
    ),
    gauge(
        "endpoint_running_requests",
        "requests",
        ("endpoint",),
        "Running, as the engine reports.",
        "engine scrape",
    ),
    gauge(
        "endpoint_waiting_requests",
        "requests",
        ("endpoint",),
        "Waiting inside the engine, as it reports.",
        "engine scrape",
    ),
    gauge(
        "endpoint_kv_usage_ratio",
        "ratio",
        ("endpoint",),
        "KV cache usage, as the engine reports.",
        "engine scrape",
    ),
    gauge(
        "stale_endpoints",
        "endpoints",
        (),
        "Open endpoints whose metrics are missing or too old for the detector.",
        "every scrape",
    ),
    gauge(
        "endpoint_sample_age_seconds",
        "seconds",
        ("endpoint",),
        "Age of the newest engine metrics.",
        "every scrape",
    ),
    gauge(
        "discovery_up",
        "boolean",
        ("source",),
        "1 while a source of endpoints can be read; 0: its last good list is in force.",
        "discovery",
    ),
    counter(
        "scrape_errors",
        "scrapes",
        ("endpoint",),
        "Engine metrics that could not be read.",
        "a scrape fails or times out",
        is_read=True,
    ),
)

PROCESS = (
    gauge("streams_inflight", "streams", (), "Open ext_proc streams.", "stream start, end"),
    counter(
        "streams",
        "streams",
        ("end",),
        "Ended ext_proc streams: `complete`, `client-gone`, `left-in-queue`, `protocol-error`, `internal`, "
        "`refused`.",
        "a stream ends; `left-in-queue` means that it was cancelled before our answer, by a client that left "
        "or by Envoy's message_timeout (its own stat `ext_proc.message_timeouts` tells which)",
    ),
    counter(
        "ignored_events",
        "events",
        (),
        "Events that named an unknown or already ended request or endpoint.",
        "an event comes late or twice",
        is_read=True,
    ),
    histogram(
        "decision_seconds",
        "seconds",
        ("event",),
        "Time of one call into the policy core, by kind of event.",
        "an event is handled",
        SHORT_BUCKETS_S,
    ),
    histogram(
        "event_loop_lag_seconds",
        "seconds",
        (),
        "How late the event loop runs a timer.",
        "four times a second",
        SHORT_BUCKETS_S,
    ),
    counter(
        "task_failures",
        "tasks",
        ("task",),
        "Background tasks that ended with an error.",
        "a background task fails",
    ),
    counter(
        "config_reloads",
        "reloads",
        ("result",),
        "Reloads: `applied`, `refused` (problems), `unchanged`.",
        "SIGHUP or a change of the file",
    ),
    gauge("config_generation", "", (), "Counts applied configurations, from 1.", "a reload is applied"),
    gauge("draining", "", (), "1 while shutting down, else 0.", "SIGTERM"),
    counter(
        "observe_only",
        "requests",
        ("priority", "action"),
        "Mode observe: what enforcing would have done. Every request counts once as `would-pass` (at once), "
        "`would-hold` (queued) or `would-reject` (no room in the queue); of those held, some later as "
        "`would-expire` or `would-displace`. `would-evict`: running requests that would have been ended.",
        "`mode: observe` lets something through; the series exist once it has been in force",
        is_read=True,
    ),
    counter(
        "observe_only_wait_seconds",
        "seconds",
        ("priority",),
        "Mode observe: time that requests would have spent queued, when they would have left the queue; over "
        "`would-hold` it is their mean wait.",
        "a held request would have been sent, refused or displaced, or its client leaves",
        is_read=True,
    ),
    gauge("build_info", "", ("version",), "Always 1; carries the version.", "start"),
)

REPLICAS = (
    gauge(
        "replica_state",
        "",
        ("state",),
        "1 for the state that this replica is in: `starting`, `leased`, `cut-off`, `fallback`, or, with a "
        "standby, `active` or `standby`.",
        "a grant arrives, a lease ends, the store fails or answers again",
    ),
    gauge("replica_leader", "", (), "1 while this replica allocates for its group.", "the leader changes"),
    gauge("replica_members", "replicas", (), "Replicas that share the pool.", "a replica joins or leaves"),
    gauge("replica_lease_seconds", "seconds", (), "How long the credits are still valid.", "a report"),
    gauge(
        "replica_credits",
        "requests or tokens",
        ("endpoint", "resource"),
        "What this replica may use of an endpoint, of `requests` and KV `tokens`.",
        "credits move between replicas",
    ),
    gauge(
        "replica_capacity",
        "requests or tokens",
        ("endpoint", "resource"),
        "The whole capacity of an endpoint that the replicas share.",
        "an endpoint's capacity changes",
    ),
    counter("replica_grants", "grants", (), "Grants taken (standby: terms served).", "a grant", is_read=True),
    counter(
        "replica_reclaims",
        "reclaims",
        (),
        "Requests of the group to evict for another replica's more important work.",
        "a more important request finds no credits anywhere",
        is_read=True,
    ),
    counter(
        "replica_allocation_rounds",
        "rounds",
        (),
        "Allocations computed while leading.",
        "a period passes, or a replica starts to wait",
        is_read=True,
    ),
    counter("replica_store_calls", "calls", (), "Calls to Redis or Kubernetes.", "a period", is_read=True),
    counter(
        "replica_store_errors",
        "calls",
        (),
        "Calls that failed or came too late.",
        "Redis or Kubernetes can't be reached, refuses, or is slow",
        is_read=True,
    ),
)
