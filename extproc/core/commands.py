"""What the shell must do now, in the imperative: the output of `FlowController.handle(event, now)`.

Commands are performed in order, before the next event is handed in.
"""

from __future__ import annotations

import msgspec

from extproc.core.outcomes import Outcome
from extproc.core.types import EndpointId, RequestId


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Send the request to `address`; `fallbacks` are further addresses in order of preference.

    The ledger has booked it already, in the same call.
    """

    request_id: RequestId
    endpoint_id: EndpointId
    address: str
    fallbacks: tuple[str, ...]
    queued_s: float


class Reject(msgspec.Struct, frozen=True, gc=False):
    """Refused at arrival, before it entered a queue. `retry_after_s` is whole seconds, 1 to 60."""

    request_id: RequestId
    outcome: Outcome
    retry_after_s: int | None
    message: str


class Expire(msgspec.Struct, frozen=True, gc=False):
    """Left the queue unserved: TTL, deadline, no endpoints, or shutdown."""

    request_id: RequestId
    outcome: Outcome
    retry_after_s: int | None
    queued_s: float


class Displace(msgspec.Struct, frozen=True, gc=False):
    """Left the queue to make room for a more important request."""

    request_id: RequestId
    retry_after_s: int | None
    queued_s: float


class Revoke(msgspec.Struct, frozen=True, gc=False):
    """End this in-flight request now; its stream's end comes back as `RequestFinished`."""

    request_id: RequestId
    endpoint_id: EndpointId
    retry_after_s: int | None


Command = Dispatch | Reject | Expire | Displace | Revoke
