"""The flow control of one replica as whoever exchanges credits for it sees it: figures out, credits in.

Must not know how credits travel. Leases go to the controller as events, in the order in which they must
be felt: what is asked back first, then the new limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from extproc.core.controller import FlowController
from extproc.core.credits import UNLIMITED, Credits, Reclaim, ReplicaDemand
from extproc.core.events import CapacitiesLeased, CapacityLeased, Event, ReclaimRequested, SheddableHeld
from extproc.core.urgency import Need

NOTHING = Credits(0, 0)


class LeasedController:
    """Joins one `FlowController` with its part in the group.

    Measurements older than `fresh_s` say nothing about who still runs.
    """

    def __init__(
        self,
        controller: FlowController,
        post: Callable[[Event], None],
        now: Callable[[], float],
        *,
        fresh_s: float,
    ) -> None:
        self._controller = controller
        self._post = post
        self._now = now
        self._fresh_s = fresh_s
        self._holds_sheddable = False

    def capacity(self) -> Mapping[str, Credits]:
        return self._controller.replica_capacity()

    def demand(self) -> ReplicaDemand:
        return self._controller.replica_demand()

    def measured(self) -> Mapping[str, int]:
        horizon = self._now() - self._fresh_s
        return {
            address: sample.running_requests + (sample.waiting_requests or 0)
            for _, address, sample in self._controller.endpoint_samples()
            if sample is not None and sample.running_requests is not None and sample.sampled_at >= horizon
        }

    def need(self) -> Need:
        return self._controller.highest_need()

    def lease(self, credits: Mapping[str, Credits], *, hold_sheddable: bool) -> None:
        """From now on use at most so much; addresses that are left out have nothing."""
        addresses = {endpoint_id: address for endpoint_id, address, _ in self._controller.endpoint_samples()}
        changed = []
        for held in self._controller.leases():
            mine = credits.get(addresses[held.endpoint_id], NOTHING)
            wanted = CapacityLeased(held.endpoint_id, _limit(mine.slots), _limit(mine.tokens))
            if wanted != held:
                changed.append(wanted)
        if changed:
            self._post(CapacitiesLeased(tuple(changed)))
        if hold_sheddable != self._holds_sheddable:
            self._holds_sheddable = hold_sheddable
            self._post(SheddableHeld(hold_sheddable))

    def reclaim(self, reclaims: Sequence[Reclaim]) -> None:
        ids = {address: endpoint_id for endpoint_id, address, _ in self._controller.endpoint_samples()}
        for reclaim in reclaims:
            endpoint_id = ids.get(reclaim.address)
            if endpoint_id is not None:
                self._post(ReclaimRequested(endpoint_id, reclaim.priority, reclaim.slots, reclaim.tokens))


def _limit(amount: int) -> int | None:
    """A part of an unlimited amount is unlimited, whatever the number of replicas."""
    return None if amount >= UNLIMITED // 1024 else amount
