"""Endpoint states and samples for tests of pickers."""

from __future__ import annotations

from collections.abc import Iterable

from extproc.core.pool import EndpointState
from extproc.core.types import Endpoint, EndpointId, EndpointSample


def state(name: str, requests: int = 0, **attributes: object) -> EndpointState:
    endpoint = Endpoint(
        id=EndpointId(f"{name}|{name}:8000|1"),
        name=name,
        address=f"{name}:8000",
        **attributes,  # type: ignore[arg-type]
    )
    made = EndpointState(endpoint)
    made.requests = requests
    return made


def sample(
    endpoint: EndpointState,
    *,
    waiting: int | None = None,
    running: int | None = None,
    kv: float | None = None,
    kv_capacity: int | None = None,
    loras: Iterable[str] = (),
    waiting_loras: Iterable[str] = (),
) -> EndpointSample:
    return EndpointSample(
        endpoint_id=endpoint.id,
        sampled_at=0.0,
        waiting_requests=waiting,
        running_requests=running,
        kv_usage_fraction=kv,
        kv_capacity_tokens=kv_capacity,
        running_loras=frozenset(loras),
        waiting_loras=frozenset(waiting_loras),
        max_loras=4,
    )
