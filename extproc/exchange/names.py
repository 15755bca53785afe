"""Header and metadata names on the wire: the field's spelling, mapped to our words nowhere else.

Where two names are listed, the first is the current one and wins, even when its value is empty.
"""

from __future__ import annotations

DESTINATION = "x-gateway-destination-endpoint"
"""Request header and `envoy.lb` metadata key: `ip:port[,ip:port]`, who shall serve the request."""

DESTINATION_SERVED = "x-gateway-destination-endpoint-served"
"""Who did serve it, where the proxy tells (`envoy.lb` metadata of the response phase)."""

DESTINATION_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"

DROP_REASON = "x-llm-d-request-dropped-reason"

OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
TTFT_TARGET_MS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
MODEL_REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")

PRIORITY = "x-priority"
DEADLINE_MS = "x-request-deadline-ms"
"""Epoch milliseconds."""
TTL_MS = "x-request-ttl-ms"
RESUMABLE = "x-request-resumable"
"""`true`: the client keeps what it has received and continues from there after an eviction."""
EXPECTED_OUTPUT_TOKENS = "x-expected-output-tokens"
SESSION_ID = ("x-session-id", "x-session-token")

ENGINE_PRIORITY = "x-vllm-priority"
"""Overrides the body's priority inside the engine: never accepted from a client."""

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"

HINT_HEADERS = frozenset(
    {
        PRIORITY,
        DEADLINE_MS,
        TTL_MS,
        RESUMABLE,
        EXPECTED_OUTPUT_TOKENS,
        *OBJECTIVE,
        *FAIRNESS_ID,
        *TTFT_TARGET_MS,
        *MODEL_REWRITE,
        *SESSION_ID,
    }
)
"""What a client may tell flow control; most requests carry none of them."""

READ_REQUEST_HEADERS = HINT_HEADERS | {
    ":method",
    ":path",
    "upgrade",
    "content-type",
    "content-encoding",
    "content-length",
    REQUEST_ID,
    TRACEPARENT,
}
"""The only request headers that are decoded; all others stay bytes and are never looked at."""

UNREACHABLE = "x-extproc-unreachable"
"""On Envoy's own answer when it could not connect to the server: so that a dead server is told from one that
answers 503. Set by the shipped Envoy files."""

READ_RESPONSE_HEADERS = frozenset({":status", "content-type", "content-encoding", UNREACHABLE})

STRIPPED_REQUEST_HEADERS = (ENGINE_PRIORITY,)
"""Removed before the request goes on. The destination header is overwritten, or removed where none is set."""
