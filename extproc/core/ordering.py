"""The order of requests within one flow: policies are a sort key, lowest first; they know no queue.

| policy | key | without its attribute |
|---|---|---|
| fcfs | arrival | - |
| edf | deadline, else arrival + TTL | last |
| slo-deadline | arrival + TTFT target | last |

A target that is missed gives no advantage any more: the request is then sorted by its arrival behind those
that can still make theirs, so that nothing hopeless jumps the queue. (A missed *deadline* expires the
request instead where the band says so.) Absurd targets, zero or below, never give one.
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

    def missed_at(self, request: Request, arrived_at: float) -> float | None:
        """When its target is missed and it is to be sorted anew by `missed_key`; None: never."""
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


def missed_key(arrived_at: float) -> Key:
    """Behind all that can still meet their targets, by arrival."""
    return (_LAST, arrived_at)


OrderingConfig = FcfsOrderingConfig | EdfOrderingConfig | SloDeadlineOrderingConfig


class FcfsOrdering:
    def sort_key(self, request: Request, ttl_s: float | None, arrived_at: float) -> Key:
        return (arrived_at,)

    def missed_at(self, request: Request, arrived_at: float) -> float | None:
        return None


class EdfOrdering:
    def sort_key(self, request: Request, ttl_s: float | None, arrived_at: float) -> Key:
        deadline = request.deadline_s
        if deadline is None:
            deadline = _LAST if ttl_s is None else arrived_at + ttl_s
        elif not deadline > arrived_at:
            deadline = _LAST
        return (deadline, arrived_at)

    def missed_at(self, request: Request, arrived_at: float) -> float | None:
        return request.deadline_s


class SloDeadlineOrdering:
    def sort_key(self, request: Request, ttl_s: float | None, arrived_at: float) -> Key:
        target = request.ttft_target_s
        due = _LAST if target is None or not target > 0 else arrived_at + target
        return (due, arrived_at)

    def missed_at(self, request: Request, arrived_at: float) -> float | None:
        target = request.ttft_target_s
        return None if target is None or not target > 0 else arrived_at + target


def build_ordering(config: OrderingConfig) -> OrderingPolicy:
    match config:
        case FcfsOrderingConfig():
            return FcfsOrdering()
        case EdfOrderingConfig():
            return EdfOrdering()
        case SloDeadlineOrderingConfig():
            return SloDeadlineOrdering()
