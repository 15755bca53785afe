"""What every saturation detector offers: how full the pool is, and whether a request may go in.

0 is idle, 1 is full, more is possible; a pool without open endpoints is 1. A decision has two steps: the
gate over all candidate endpoints (`admits`), then one endpoint (`fits`). Detectors are told of every change
of an open endpoint and keep running sums, so that no decision scans the pool.

`promised` asks about the near future: None counts everything in flight; a footprint subtracts what
outstanding revocations will free, and that much more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from extproc.core.footprint import Footprint
from extproc.core.pool import Candidates, EndpointState

TOLERANCE = 1e-9
"""Sums of floats within this of a ceiling have reached it."""


class SaturationDetector(Protocol):
    """`is_measured` True: freed capacity shows only in a later sample of the endpoint."""

    is_measured: bool

    def endpoint_changed(self, endpoint: EndpointState, now: float) -> None:
        """An open endpoint appeared, or its load, capacity, lease or sample changed."""
        ...

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        """The endpoint is no longer open; unknown ones are ignored."""
        ...

    def saturation(self, candidates: Candidates, now: float) -> float: ...

    def resources(self, now: float) -> Mapping[str, float]:
        """Saturation of the pool by resource, for the gauges."""
        ...

    def endpoint_resources(self, endpoint: EndpointState, now: float) -> Mapping[str, float]:
        """Saturation of one open endpoint by resource."""
        ...

    def admits(self, candidates: Candidates, ceiling: float, promised: Footprint | None, now: float) -> bool:
        """Whether the candidates together are below the ceiling."""
        ...

    def fits(
        self,
        endpoint: EndpointState,
        footprint: Footprint,
        ceiling: float,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        """Whether this endpoint takes the request under the ceiling."""
        ...

    def next_change(self, now: float) -> float | None:
        """When saturation may fall by the passing of time alone; None: never."""
        ...
