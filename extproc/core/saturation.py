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

from extproc.core.ceiling import Ceiling
from extproc.core.footprint import Footprint
from extproc.core.inflight import InflightRequest
from extproc.core.pool import Candidates, EndpointState


class SaturationDetector(Protocol):
    """`is_measured` True: freed capacity shows only in a later sample of the endpoint."""

    is_measured: bool
    counts_kv: bool
    """Whether its token capacity is in KV tokens of footprints (else in `tokens`)."""

    def endpoint_changed(self, endpoint: EndpointState, now: float) -> None:
        """An open endpoint appeared, or its load, capacity or lease changed."""
        ...

    def endpoint_sampled(self, endpoint: EndpointState, now: float) -> None:
        """The endpoint has a new sample; `endpoint_changed` follows."""
        ...

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        """The endpoint is no longer open; unknown ones are ignored."""
        ...

    def request_ended(self, entry: InflightRequest, output_tokens: int | None, now: float) -> None:
        """A completed request's true output length, where it is known; `endpoint_changed` follows."""
        ...

    def saturation(self, candidates: Candidates, now: float) -> float: ...

    def resources(self, now: float) -> Mapping[str, float]:
        """Saturation of the pool by resource: `requests` and `tokens`, as far as they are known."""
        ...

    def endpoint_resources(self, endpoint: EndpointState, now: float) -> Mapping[str, float]:
        """Saturation of one open endpoint by resource."""
        ...

    def capacity(self, now: float) -> Footprint | None:
        """What all open endpoints hold together; None when the detector doesn't know capacities."""
        ...

    def whole_capacity(self, endpoint: EndpointState) -> Footprint | None:
        """One endpoint's capacity before leases, `UNLIMITED` where a resource isn't limited.

        None: the detector knows no capacity, so the pool can't be shared by leases.
        """
        ...

    def stale_endpoints(self, now: float) -> int:
        """Open endpoints whose measurements are missing or too old to be used."""
        ...

    def admits(
        self,
        candidates: Candidates,
        footprint: Footprint,
        ceiling: Ceiling,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        """False: no candidate takes this request. True: ask `fits`."""
        ...

    def fits(
        self,
        endpoint: EndpointState,
        footprint: Footprint,
        ceiling: Ceiling,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        """Whether this open endpoint takes the request under the ceiling."""
        ...

    def holds_all(
        self, candidates: Candidates, need: Footprint, ceiling: Ceiling, freed: Footprint, now: float
    ) -> bool:
        """Whether all of `need` fits in the candidates together once promises and `freed` are kept."""
        ...

    def next_change(self, now: float) -> float | None:
        """When saturation may fall by the passing of time alone; None: never."""
        ...
