"""From an outcome of the core, or a fault of the request, to the HTTP answer the client gets.

One table; the same cause has the same status and drop reason wherever it happens. Bodies follow OpenAI's
error shape. The messages say what to do and never repeat what the client sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from extproc.core.outcomes import Outcome
from extproc.exchange.names import DROP_REASON

MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Refusal:
    """A finished HTTP answer. `reason` is the low-cardinality cause, for logs, metrics and Envoy's access
    log.
    """

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


_OUTCOMES: dict[Outcome, tuple[int, str, str]] = {
    Outcome.REJECTED_CAPACITY: (429, "rejected-saturated", "the queue is full; retry later"),
    Outcome.DISPLACED: (429, "rejected-saturated", "displaced from the queue by a more important request"),
    Outcome.REJECTED_NO_ENDPOINTS: (503, "rejected-no-endpoints", "no model server is available"),
    Outcome.EXPIRED_NO_ENDPOINTS: (503, "rejected-no-endpoints", "no model server became available in time"),
    Outcome.REJECTED_SHUTTING_DOWN: (503, "rejected-shutting-down", "this gateway is shutting down"),
    Outcome.EXPIRED_TTL: (429, "rejected-ttl-expired", "waited in the queue for its whole time to live"),
    Outcome.EXPIRED_DEADLINE: (504, "rejected-deadline", "the request's deadline passed in the queue"),
    Outcome.CANCELLED: (503, "rejected-context-cancelled", "the client left"),
}

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "internal_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


def refuse_outcome(outcome: Outcome, retry_after_s: int | None) -> Refusal:
    """The answer to a request that the core refused or let expire."""
    status, reason, message = _OUTCOMES[outcome]
    return _dropped(status, reason, message, retry_after_s)


def refuse_eviction(retry_after_s: int | None) -> Refusal:
    """The answer to an evicted request; once a response has begun, Envoy resets the stream instead."""
    return _dropped(
        429, "evicted", "evicted in favour of a more important request; retry later", retry_after_s
    )


def refuse_malformed(message: str, field: str = "") -> Refusal:
    return _refuse(400, "bad-request", message, field)


def refuse_oversize(limit_bytes: int) -> Refusal:
    return _refuse(413, "body-too-large", f"the body is larger than {limit_bytes} bytes", "")


def refuse_too_many_headers(limit: int) -> Refusal:
    return _refuse(431, "too-many-headers", f"the request has more than {limit} headers", "")


def refuse_unknown_path() -> Refusal:
    return _refuse(404, "unknown-path", "this path is not served here", "")


def refuse_overload(retry_after_s: int) -> Refusal:
    """More streams are open than this server accepts."""
    return _dropped(429, "rejected-saturated", "too many requests are open; retry later", retry_after_s)


def refuse_internal() -> Refusal:
    return _refuse(500, "internal", "the gateway failed to process the request", "")


@lru_cache(maxsize=1024)
def _dropped(status: int, reason: str, message: str, retry_after_s: int | None) -> Refusal:
    after_s = min(max(retry_after_s or MIN_RETRY_AFTER_S, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
    headers = (
        ("content-type", "application/json"),
        (DROP_REASON, reason),
        *((("retry-after", str(after_s)),) if status in (429, 503) else ()),
    )
    return Refusal(status, reason, headers, _error_body(status, reason, message, ""))


def _refuse(status: int, reason: str, message: str, field: str) -> Refusal:
    headers = (("content-type", "application/json"),)
    return Refusal(status, reason, headers, _error_body(status, reason, message, field))


def _error_body(status: int, reason: str, message: str, field: str) -> bytes:
    error = {
        "message": message,
        "type": _TYPES[status],
        "param": field or None,
        "code": reason.replace("-", "_"),
    }
    return msgspec.json.encode({"error": error})
