"""The order of requests within one flow: policies are a sort key, lowest first; they know no queue.

| policy | key | without its attribute |
|---|---|---|
| fcfs | arrival | - |
| edf | deadline, else arrival + TTL | last |
| slo-deadline | arrival + TTFT target | last |

A target that is already missed (or absurdly small) gives no advantage: such a request is sorted by its
arrival like the others that have none, so that it can't jump the queue for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from extproc.core.heap import Key
from extproc.core.types import Request

_LAST = float("inf")


class OrderingPolicy(Protocol):
    def sort_key(self, request: Request, ttl_s: float | None, arrived_at: float) -> Key:
        """Where the request stands within its flow; ties keep the order of arrival."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FcfsOrderingConfig:
    """First come, first served."""

    type: Literal["fcfs"] = "fcfs"


@dataclass(frozen=True, kw_only=True, slots=True)
class EdfOrderingConfig:
    """Earliest deadline first; the deadline is the request's own, else arrival + TTL."""

    type: Literal["edf"] = "edf"


@dataclass(frozen=True, kw_only=True, slots=True)
class SloDeadlineOrderingConfig:
    """Earliest arrival + TTFT target first."""

    type: Literal["slo-deadline"] = "slo-deadline"


OrderingConfig = FcfsOrderingConfig | EdfOrderingConfig | SloDeadlineOrderingConfig


class FcfsOrdering:
    def sort_key(self, request: Request, ttl_s: float | None, arrived_at: float) -> Key:
        return (arrived_at,)


class EdfOrdering:
    def sort_key(self, request: Request, ttl_s: float | None, arrived_at: float) -> Key:
        deadline = request.deadline_s
        if deadline is None:
            deadline = _LAST if ttl_s is None else arrived_at + ttl_s
        elif deadline <= arrived_at:
            deadline = _LAST
        return (deadline, arrived_at)


class SloDeadlineOrdering:
    def sort_key(self, request: Request, ttl_s: float | None, arrived_at: float) -> Key:
        target = request.ttft_target_s
        due = _LAST if target is None or target <= 0 else arrived_at + target
        return (due, arrived_at)


def build_ordering(config: OrderingConfig) -> OrderingPolicy:
    match config:
        case FcfsOrderingConfig():
            return FcfsOrdering()
        case EdfOrderingConfig():
            return EdfOrdering()
        case SloDeadlineOrderingConfig():
            return SloDeadlineOrdering()
