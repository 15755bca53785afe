"""What a picker is asked and told. It knows neither queues nor ceilings.

The controller tells a picker of every change of an open endpoint and asks once per dispatch; `fits` is the
detector's endpoint filter (and whatever else keeps an endpoint closed) for this request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from extproc.core.pool import Candidates, EndpointState, Labels
from extproc.core.types import Request

Fits = Callable[[EndpointState], bool]


class Pick(msgspec.Struct, frozen=True, gc=False):
    """The chosen endpoint, and where Envoy may retry, best first."""

    endpoint: EndpointState
    fallbacks: tuple[EndpointState, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """Why an endpoint ranks where it does: each part already weighted; `total` is their sum."""

    total: float
    parts: Mapping[str, float]


class Picker(Protocol):
    """Endpoint states are read-only here: `requests`, `tokens`, `kv_tokens`, `sample`, `endpoint.labels`."""

    def endpoint_changed(self, endpoint: EndpointState) -> None:
        """An open endpoint appeared, or its load or sample changed."""
        ...

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        """The endpoint is no longer open; unknown ones are ignored."""
        ...

    def request_dispatched(self, request: Request, endpoint: EndpointState, now: float) -> None:
        """The request went there (also when eviction, not this picker, chose the endpoint)."""
        ...

    def required_labels(self, request: Request) -> Labels:
        """Labels that an endpoint must have to be a candidate for the request at all."""
        ...

    def pick(self, request: Request, candidates: Candidates, fits: Fits, now: float) -> Pick | None:
        """One of the candidates that fit, or None if none does."""
        ...

    def profile_name(self, request: Request) -> str | None:
        """Which of several configured ways picks for this request; None where there is only one."""
        ...

    def explain(self, request: Request, candidates: Candidates) -> Mapping[EndpointState, Scores]:
        """The scores of every candidate as they are now; changes nothing."""
        ...
