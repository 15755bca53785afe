"""How a request can leave the core: a closed, low-cardinality set; HTTP knows of it only in `exchange`."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """The one final answer to "what became of it at the gateway"; the value is the metric label."""

    __hash__ = object.__hash__  # members are compared by identity; Enum's own hash runs Python code

    DISPATCHED = "dispatched"
    REJECTED_CAPACITY = "rejected-capacity"
    """A queue limit was hit."""
    REJECTED_NO_ENDPOINTS = "rejected-no-endpoints"
    """A queue limit was hit, or waiting is not allowed, while the pool has no endpoint."""
    REJECTED_SHUTTING_DOWN = "rejected-shutting-down"
    DISPLACED = "displaced"
    """Left the queue to make room for a more important one."""
    EXPIRED_TTL = "expired-ttl"
    EXPIRED_NO_ENDPOINTS = "expired-no-endpoints"
    EXPIRED_DEADLINE = "expired-deadline"
    CANCELLED = "cancelled"
    """The client left while it was queued."""


class EndReason(Enum):
    """How the in-flight life of a dispatched request ended; the value is the metric label."""

    __hash__ = object.__hash__

    COMPLETED = "completed"
    FAILED = "failed"
    """The upstream answered with an error or broke the stream."""
    CLIENT_GONE = "client-gone"
    EVICTED = "evicted"
