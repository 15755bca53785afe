"""What happened, in the past tense: the input of `FlowController.handle(event, now)`.

Every event is total: an unknown or repeated id is ignored by the controller, never an error.
"""

from __future__ import annotations

import msgspec

from extproc.core.outcomes import EndReason
from extproc.core.types import Endpoint, EndpointId, EndpointSample, Request, RequestId, Usage


class RequestArrived(msgspec.Struct, frozen=True, gc=False):
    request: Request


class RequestCancelled(msgspec.Struct, frozen=True, gc=False):
    """The client left. Queued: leaves the queue. In flight: the same as `RequestFinished` by CLIENT_GONE."""

    request_id: RequestId


class ResponseStarted(msgspec.Struct, frozen=True, gc=False):
    """Response headers were seen (for a streaming vLLM: about 3 ms after the request, before any token)."""

    request_id: RequestId
    endpoint_address: str | None = None
    """Who served it, when Envoy told us; a fallback moves the booking there."""
    status: int | None = None
    """The HTTP status, for the endpoint's health; flow control itself doesn't look at it."""
    is_unreachable: bool = False
    """The proxy answered, since it could not connect to the endpoint; for its health, too."""


class OutputObserved(msgspec.Struct, frozen=True, gc=False):
    """Output was seen (only where the response body passes through us): the first one is the first token."""

    request_id: RequestId
    output_tokens: int


class RequestFinished(msgspec.Struct, frozen=True, gc=False):
    """The stream of a dispatched request has ended, however; also confirms its revocation."""

    request_id: RequestId
    reason: EndReason = EndReason.COMPLETED
    usage: Usage | None = None


class EndpointAdded(msgspec.Struct, frozen=True, gc=False):
    """A new endpoint, or changed attributes of a known id."""

    endpoint: Endpoint


class EndpointRemoved(msgspec.Struct, frozen=True, gc=False):
    endpoint_id: EndpointId


class EndpointSampled(msgspec.Struct, frozen=True, gc=False):
    sample: EndpointSample


class EndpointHealthChanged(msgspec.Struct, frozen=True, gc=False):
    """`is_healthy` False: takes no new work until True again (ejection, failed probes).

    `is_probing` (with `is_healthy` True): takes one request at a time, to find out whether it works again.
    """

    endpoint_id: EndpointId
    is_healthy: bool
    is_probing: bool = False


class CapacityLeased(msgspec.Struct, frozen=True, gc=False):
    """This replica may use at most so much of an endpoint (replicas share a pool); None: all of it."""

    endpoint_id: EndpointId
    slots: int | None
    kv_tokens: int | None


class CapacitiesLeased(msgspec.Struct, frozen=True, gc=False):
    """Several leases at once: one dispatch pass after all of them."""

    leases: tuple[CapacityLeased, ...]


class ReclaimRequested(msgspec.Struct, frozen=True, gc=False):
    """Another replica needs capacity of this endpoint for `priority`: evict strictly lower work for it."""

    endpoint_id: EndpointId
    priority: int
    slots: int
    kv_tokens: int


class SheddableHeld(msgspec.Struct, frozen=True, gc=False):
    """While `is_held`, requests of negative priority stay queued (a replica that is cut off may ask so)."""

    is_held: bool


class DrainStarted(msgspec.Struct, frozen=True, gc=False):
    """No new requests from now on (they are rejected as shutting down).

    `reject_queued` True answers the queued at once; False lets them be dispatched or expire.
    """

    reject_queued: bool


class TimerFired(msgspec.Struct, frozen=True, gc=False):
    """`next_wakeup()` was reached; carries nothing, the controller looks at `now`."""


Event = (
    RequestArrived
    | RequestCancelled
    | ResponseStarted
    | OutputObserved
    | RequestFinished
    | EndpointAdded
    | EndpointRemoved
    | EndpointSampled
    | EndpointHealthChanged
    | CapacityLeased
    | CapacitiesLeased
    | ReclaimRequested
    | SheddableHeld
    | DrainStarted
    | TimerFired
)
