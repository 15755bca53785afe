"""One priority band: its queued requests, by lane and by flow, and which of them goes next.

It must not know endpoints' load, ceilings or time limits. A *lane* holds the requests that share their
candidate endpoints, so that a request whose own endpoints are full doesn't hold up the others; within a
lane every flow (fairness id) has its own queue. Most bands have one lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from extproc.core.checks import FieldChecks
from extproc.core.fairness import (
    FairnessConfig,
    FairnessPolicy,
    GlobalStrictFairnessConfig,
    build_fairness,
)
from extproc.core.footprint import NO_FOOTPRINT, Footprint, FootprintEstimator
from extproc.core.heap import Entry, Key, RemovableHeap
from extproc.core.ordering import FcfsOrderingConfig, OrderingConfig, build_ordering, missed_key
from extproc.core.pool import LaneKey
from extproc.core.types import FairnessId, Request, RequestId


@dataclass(frozen=True, kw_only=True, slots=True)
class BandConfig:
    """Limits and policies of one band; also the template of bands that appear by use.

    `max_requests: 0` queues nothing: what can't go at once is refused. `ttl_s` None takes the default.
    `missed_deadlines` says whether a request expires at its own deadline (`drop`) or is only sorted behind
    the others (`demote`). `borrow` lets lower bands pass while this band's head is gated.
    """

    priority: int = 0
    max_requests: int = 5000
    max_bytes: int = 1_000_000_000
    max_requests_per_flow: int | None = None
    ttl_s: float | None = None
    ordering: OrderingConfig = field(default_factory=FcfsOrderingConfig)
    fairness: FairnessConfig = field(default_factory=GlobalStrictFairnessConfig)
    missed_deadlines: Literal["drop", "demote"] = "drop"
    borrow: bool = False

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("priority", -(2**31), 2**31 - 1)
        checks.at_least("max_requests", 0, 10_000_000).at_least("max_bytes", 0)
        checks.at_least("max_requests_per_flow", 1, 10_000_000).above("ttl_s", 0, 7 * 86_400).finish()


class QueuedRequest:
    """One request in a queue. `ttl_s` is its effective TTL; `timers` are where it waits to expire."""

    __slots__ = (
        "arrived_at",
        "entry",
        "estimate_version",
        "footprint",
        "lane",
        "request",
        "serial",
        "timers",
        "ttl_s",
    )

    def __init__(
        self, request: Request, lane: LaneKey, footprint: Footprint, ttl_s: float | None, now: float
    ) -> None:
        self.request = request
        self.lane = lane
        self.footprint = footprint
        self.ttl_s = ttl_s
        self.arrived_at = now
        self.estimate_version = -1
        self.serial = 0
        """Order of arrival within the band, which settles every tie."""
        self.entry: Entry[QueuedRequest] | None = None
        self.timers: list[tuple[RemovableHeap[QueuedRequest], Entry[QueuedRequest]]] = []


class _Lane:
    """Flows of one lane: each with its queue, ranked by the fairness policy."""

    __slots__ = ("flows", "queues", "ranked")

    def __init__(self) -> None:
        self.queues: dict[FairnessId, RemovableHeap[QueuedRequest]] = {}
        self.flows: dict[FairnessId, Entry[FairnessId]] = {}
        self.ranked: RemovableHeap[FairnessId] = RemovableHeap()

    def head(self) -> QueuedRequest | None:
        """What the lane would send next."""
        flow = self.ranked.peek_item()
        return None if flow is None else self.queues[flow].peek_item()


class Band:
    """The queue of one priority; all sizes are kept as running sums."""

    def __init__(self, priority: int, config: BandConfig) -> None:
        self.priority = priority
        self.config = config
        self.queued_bytes = 0
        self._serial = 0
        self.queued_footprint = NO_FOOTPRINT
        self._ordering = build_ordering(config.ordering)
        self._fairness: FairnessPolicy = build_fairness(config.fairness)
        self._items: dict[RequestId, QueuedRequest] = {}
        self._lanes: dict[LaneKey, _Lane] = {}
        self._lone_flow: tuple[_Lane, FairnessId] | None = None
        self._flow_sizes: dict[FairnessId, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[QueuedRequest]:
        """Queued requests in order of arrival."""
        return iter(self._items.values())

    @property
    def flows(self) -> int:
        """Flows that have something queued."""
        return len(self._flow_sizes)

    def flow_size(self, fairness_id: FairnessId) -> int:
        return self._flow_sizes.get(fairness_id, 0)

    def flow_sizes(self) -> dict[FairnessId, int]:
        """Queued requests of every flow that has any; a copy."""
        return dict(self._flow_sizes)

    def lanes(self) -> Iterator[LaneKey]:
        """Lanes that have something queued, in no order."""
        return iter(self._lanes)

    def push(self, item: QueuedRequest) -> None:
        request = item.request
        flow = request.fairness_id
        self._serial += 1
        item.serial = self._serial
        self._items[request.id] = item
        self.queued_bytes += request.size_bytes
        self.queued_footprint = self.queued_footprint.plus(item.footprint)
        size = self._flow_sizes.get(flow, 0)
        self._flow_sizes[flow] = size + 1
        if size == 0:
            self._fairness.activated(flow)
        lane = self._lanes.get(item.lane)
        if lane is None:
            lane = self._lanes[item.lane] = _Lane()
        queue = lane.queues.get(flow)
        if queue is None:
            queue = lane.queues[flow] = RemovableHeap()
            self._rank_lone_flow()
        key = self._ordering.sort_key(request, item.ttl_s, item.arrived_at)
        item.entry = queue.push((*key, item.serial), item)
        if queue.peek() is item.entry:
            self._rank(lane, flow)

    def reestimate(self, item: QueuedRequest, estimator: FootprintEstimator) -> None:
        """Brings a queued request's footprint up to what is known now."""
        if item.estimate_version == estimator.version:
            return
        item.estimate_version = estimator.version
        old, item.footprint = item.footprint, estimator.footprint(item.request)
        self.queued_footprint = self.queued_footprint.plus(item.footprint).minus(old)

    def missed_at(self, item: QueuedRequest) -> float | None:
        """When the ordering gives the request up as late; None: never."""
        return self._ordering.missed_at(item.request, item.arrived_at)

    def demote(self, item: QueuedRequest) -> None:
        """Its target is missed: it is sorted behind those that can still meet theirs."""
        lane, flow = self._lanes[item.lane], item.request.fairness_id
        queue = lane.queues[flow]
        assert item.entry is not None
        queue.remove(item.entry)
        item.entry = queue.push((*missed_key(item.arrived_at), item.serial), item)
        self._rank(lane, flow)

    def newest_first(self) -> Iterator[QueuedRequest]:
        """Queued requests, latest arrival first."""
        return reversed(self._items.values())

    def head(self, lanes: AbstractSet[LaneKey] = frozenset()) -> QueuedRequest | None:
        """What goes next when the given lanes are closed."""
        if not lanes and len(self._lanes) == 1:
            return next(iter(self._lanes.values())).head()
        best: Key | None = None
        found: QueuedRequest | None = None
        for key, lane in self._lanes.items():
            if key in lanes:
                continue
            top = lane.ranked.peek()
            if top is None or top.item is None:
                continue
            if best is None or top.key < best:
                best, found = top.key, lane.head()
        return found

    def is_lane_head(self, item: QueuedRequest) -> bool:
        """Whether the request is what its lane would send next."""
        lane = self._lanes.get(item.lane)
        return lane is not None and lane.head() is item

    def serve(self, item: QueuedRequest) -> None:
        """Takes the request out as dispatched: its flow has had its turn."""
        self._take(item, cost_tokens=item.footprint.kv_tokens)

    def remove(self, item: QueuedRequest) -> None:
        """Takes the request out unserved."""
        # `popitem` keeps the end of the dict free of holes, so that `newest_first` stays O(1) to start.
        last_id, last = self._items.popitem()
        self._items[last_id] = last
        self._take(item, cost_tokens=None)

    def _take(self, item: QueuedRequest, cost_tokens: int | None) -> None:
        request = item.request
        flow = request.fairness_id
        del self._items[request.id]
        self.queued_bytes -= request.size_bytes
        self.queued_footprint = self.queued_footprint.minus(item.footprint)
        lane = self._lanes[item.lane]
        queue = lane.queues[flow]
        assert item.entry is not None
        was_head = queue.peek() is item.entry
        queue.remove(item.entry)
        if cost_tokens is not None:
            self._fairness.served(flow, cost_tokens)
        size = self._flow_sizes[flow] - 1
        if size:
            self._flow_sizes[flow] = size
        else:
            del self._flow_sizes[flow]
            self._fairness.deactivated(flow)
        if not queue:
            del lane.queues[flow]
            lane.ranked.remove(lane.flows.pop(flow))
            if not lane.queues:
                del self._lanes[item.lane]
        if size and cost_tokens is not None:
            self._rank_everywhere(flow)
        elif queue and was_head:
            self._rank(lane, flow)

    def _rank_everywhere(self, flow: FairnessId) -> None:
        for lane in self._lanes.values():
            if flow in lane.queues:
                self._rank(lane, flow)

    def _rank_lone_flow(self) -> None:
        """A flow that was alone has company now, so its rank matters."""
        if self._lone_flow is not None:
            lane, flow = self._lone_flow
            self._lone_flow = None
            if flow in lane.queues:
                self._rank(lane, flow)

    def _rank(self, lane: _Lane, flow: FairnessId) -> None:
        old = lane.flows.get(flow)
        if old is not None:
            if len(lane.queues) == 1 and len(self._lanes) == 1:
                self._lone_flow = lane, flow  # nobody to be compared with: ranked when somebody comes
                return
            lane.ranked.remove(old)
        head = lane.queues[flow].peek()
        assert head is not None
        rank = (*self._fairness.rank(flow, head.key), head.key[-1])
        lane.flows[flow] = lane.ranked.push(rank, flow)
