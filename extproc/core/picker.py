"""Which endpoint a request goes to, among those that may take it; knows neither queues nor ceilings.

The controller tells a picker of every change of an open endpoint and asks once per dispatch; `fits` is the
detector's endpoint filter for this request.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from extproc.core.checks import FieldChecks
from extproc.core.heap import Entry, RemovableHeap
from extproc.core.pool import Candidates, EndpointState
from extproc.core.types import Request


@dataclass(frozen=True, slots=True)
class Pick:
    """The chosen endpoint, and where Envoy may retry, best first."""

    endpoint: EndpointState
    fallbacks: tuple[EndpointState, ...] = ()


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

    def pick(
        self,
        request: Request,
        candidates: Candidates,
        fits: Callable[[EndpointState], bool],
        now: float,
    ) -> Pick | None:
        """One of the candidates that fit, or None if none does."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LeastInflightPickerConfig:
    """Fewest requests in flight; ties at random. `fallbacks` further addresses are named to Envoy."""

    type: Literal["least-inflight"] = "least-inflight"
    fallbacks: int = 0

    def __post_init__(self) -> None:
        FieldChecks(self).at_least("fallbacks", 0, 16).finish()


PickerConfig = LeastInflightPickerConfig


class LeastInflightPicker:
    """Keeps endpoints ordered by their load, so that a pick is O(log n) unless the best ones don't fit."""

    def __init__(self, config: LeastInflightPickerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._order: RemovableHeap[EndpointState] = RemovableHeap()
        self._entries: dict[EndpointState, Entry[EndpointState]] = {}

    def endpoint_changed(self, endpoint: EndpointState) -> None:
        entry = self._entries.get(endpoint)
        if entry is not None:
            if entry.key[0] == endpoint.requests:
                return
            self._order.remove(entry)
        key = (endpoint.requests, self._rng.random())
        self._entries[endpoint] = self._order.push(key, endpoint)

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        entry = self._entries.pop(endpoint, None)
        if entry is not None:
            self._order.remove(entry)

    def request_dispatched(self, request: Request, endpoint: EndpointState, now: float) -> None:
        return

    def pick(
        self,
        request: Request,
        candidates: Candidates,
        fits: Callable[[EndpointState], bool],
        now: float,
    ) -> Pick | None:
        chosen: list[EndpointState] = []
        for endpoint in self._order.ascending():
            if endpoint in candidates and (chosen or fits(endpoint)):
                chosen.append(endpoint)
                if len(chosen) > self._config.fallbacks:
                    break
        return Pick(chosen[0], tuple(chosen[1:])) if chosen else None


def build_picker(config: PickerConfig, rng: random.Random) -> Picker:
    return LeastInflightPicker(config, rng)
