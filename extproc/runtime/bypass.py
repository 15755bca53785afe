"""Which endpoint serves a request that skips the queue: /v1/models, health, tokenize, upgrades.

Takes them in turn, among those that are healthy and not draining. It follows the pool by the same events as
the controller and touches no ledger: such requests take no sequence slot of an engine.
"""

from __future__ import annotations

from extproc.core.events import EndpointAdded, EndpointHealthChanged, EndpointRemoved, Event
from extproc.core.types import Endpoint, EndpointId


class UnqueuedRoutes:
    """The pool as far as unqueued requests are concerned."""

    def __init__(self) -> None:
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self._unhealthy: set[EndpointId] = set()
        self._turn = 0

    def observe(self, event: Event) -> None:
        """Follow changes of the pool; other events don't matter."""
        match event:
            case EndpointAdded(endpoint):
                self._endpoints[endpoint.id] = endpoint
            case EndpointRemoved(endpoint_id):
                self._endpoints.pop(endpoint_id, None)
                self._unhealthy.discard(endpoint_id)
            case EndpointHealthChanged(endpoint_id, is_healthy):
                if is_healthy:
                    self._unhealthy.discard(endpoint_id)
                else:
                    self._unhealthy.add(endpoint_id)
            case _:
                pass

    def pick(self, subset: frozenset[str] | None) -> str | None:
        """The next address of `subset` (None: of the whole pool); None when there is none."""
        addresses = [
            endpoint.address
            for endpoint_id, endpoint in self._endpoints.items()
            if endpoint_id not in self._unhealthy
            and not endpoint.is_draining
            and (subset is None or endpoint.address in subset)
        ]
        if not addresses:
            return None
        self._turn += 1
        return addresses[self._turn % len(addresses)]
