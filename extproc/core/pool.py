"""The endpoints of the pool: their state, who is open for work, and which may serve a given request.

It must not know queues, ceilings or detectors. An endpoint is *open* while it is listed, healthy and not
draining; only open endpoints count as capacity. In-flight requests keep pointing at the `EndpointState`
they were booked on, also after it has left the pool, so the books always balance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple
from weakref import WeakValueDictionary

from extproc.core.footprint import Footprint
from extproc.core.types import Endpoint, EndpointId, EndpointSample, Request


class EndpointState:
    """What is known of one endpoint now. Written by `Pool` and the in-flight ledger, read by policies.

    `requests`, `tokens`, `kv_tokens`, `prompt_tokens` and the sum of `dispatch_times` are booked by the
    ledger; `revoked_*` is the part of them held by
    victims whose streams haven't ended yet; `leased_*` caps the capacity when replicas share the pool.
    `is_probing`: one request at a time finds out whether it works again.
    """

    __slots__ = (
        "__weakref__",
        "dispatch_times",
        "endpoint",
        "is_healthy",
        "is_listed",
        "is_probing",
        "kv_tokens",
        "last_dispatch_at",
        "leased_kv_tokens",
        "leased_slots",
        "prompt_tokens",
        "requests",
        "revoked_kv_tokens",
        "revoked_requests",
        "revoked_tokens",
        "sample",
        "tokens",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.sample: EndpointSample | None = None
        self.is_healthy = True
        self.is_listed = True
        self.is_probing = False
        self.requests = 0
        self.tokens = 0
        self.kv_tokens = 0
        self.prompt_tokens = 0
        self.dispatch_times = 0.0
        self.revoked_requests = 0
        self.revoked_tokens = 0
        self.revoked_kv_tokens = 0
        self.leased_slots: int | None = None
        self.leased_kv_tokens: int | None = None
        self.last_dispatch_at = float("-inf")

    @property
    def id(self) -> EndpointId:
        return self.endpoint.id

    @property
    def address(self) -> str:
        return self.endpoint.address

    @property
    def is_open(self) -> bool:
        return self.is_listed and self.is_healthy and not self.endpoint.is_draining

    @property
    def revoked(self) -> Footprint:
        return Footprint(self.revoked_requests, self.revoked_tokens, self.revoked_kv_tokens)

    def __repr__(self) -> str:
        return f"EndpointState({self.endpoint.id}, requests={self.requests}, kv_tokens={self.kv_tokens})"


Labels = tuple[tuple[str, str], ...]
"""Labels that an endpoint must have, sorted by name."""

NO_LABELS: Labels = ()


class LaneKey(NamedTuple):
    """What restricts the endpoints of a request; requests with one key share their candidates."""

    subset: frozenset[str] | None
    model: str
    lora: str | None
    labels: Labels = NO_LABELS


ANY_ENDPOINT = LaneKey(None, "", None)


class Candidates:
    """The open endpoints that may serve a lane; `is_whole_pool` lets policies use their pool-wide indexes."""

    __slots__ = ("endpoints", "is_whole_pool")

    def __init__(self, endpoints: dict[EndpointId, EndpointState], *, is_whole_pool: bool) -> None:
        self.endpoints = endpoints
        self.is_whole_pool = is_whole_pool

    def __len__(self) -> int:
        return len(self.endpoints)

    def __iter__(self) -> Iterator[EndpointState]:
        return iter(self.endpoints.values())

    def __contains__(self, state: EndpointState) -> bool:
        return self.endpoints.get(state.id) is state


class Pool:
    """Membership and candidate sets. `generation` grows whenever any candidate set may have changed."""

    def __init__(self, *, is_leased: bool = False) -> None:
        self._is_leased = is_leased
        self.states: dict[EndpointId, EndpointState] = {}
        self.open: dict[EndpointId, EndpointState] = {}
        self.generation = 0
        self.models: frozenset[str] = frozenset()
        """Every model that some open endpoint has reported; a model outside it restricts nothing."""
        self.required_labels: Callable[[Request], Labels] = lambda _request: NO_LABELS
        """What the picker's profiles demand; set by the controller."""
        self._by_address: dict[str, EndpointState] = {}
        self._departed: WeakValueDictionary[EndpointId, EndpointState] = WeakValueDictionary()
        """Removed, but held by requests in flight: the same server that comes back keeps their load."""
        self._candidates: dict[LaneKey, Candidates] = {}
        self._candidates_generation = -1

    def put(self, endpoint: Endpoint) -> EndpointState:
        """A new endpoint, or new attributes of a known one."""
        state = self.states.get(endpoint.id)
        if state is None:
            state = self._departed.pop(endpoint.id, None) or EndpointState(endpoint)
            if self._is_leased:
                state.leased_slots = state.leased_kv_tokens = 0
            state.endpoint, state.is_listed = endpoint, True
            state.is_healthy, state.is_probing = True, False
            self.states[endpoint.id] = state
        else:
            if self._by_address.get(state.address) is state:
                del self._by_address[state.address]
            state.endpoint = endpoint
        self._by_address[endpoint.address] = state
        self._refresh(state)
        return state

    def remove(self, endpoint_id: EndpointId) -> EndpointState | None:
        state = self.states.pop(endpoint_id, None)
        if state is not None:
            state.is_listed = False
            self._departed[endpoint_id] = state
            if self._by_address.get(state.address) is state:
                del self._by_address[state.address]
            self._refresh(state)
        return state

    def set_health(
        self, endpoint_id: EndpointId, is_healthy: bool, is_probing: bool = False
    ) -> EndpointState | None:
        """None when nothing changed."""
        state = self.states.get(endpoint_id)
        if state is None or (state.is_healthy, state.is_probing) == (is_healthy, is_probing):
            return None
        state.is_healthy, state.is_probing = is_healthy, is_probing
        self._refresh(state)
        return state

    def set_sample(self, sample: EndpointSample) -> EndpointState | None:
        """Keeps the newest measurement; None when the endpoint is unknown or the sample is older."""
        state = self.states.get(sample.endpoint_id)
        if state is None or (state.sample is not None and sample.sampled_at < state.sample.sampled_at):
            return None
        before, state.sample = state.sample, sample
        if _residency(before) != _residency(sample):
            self._refresh(state)
        return state

    def at_address(self, address: str) -> EndpointState | None:
        return self._by_address.get(address)

    def lane_key(self, request: Request) -> LaneKey:
        """The request's restrictions; a model that no endpoint reports is left for the engine to refuse."""
        model = request.model if request.model in self.models else ""
        labels = self.required_labels(request)
        if not model and request.endpoint_subset is None and request.lora is None and not labels:
            return ANY_ENDPOINT
        return LaneKey(request.endpoint_subset, model, request.lora, labels)

    def candidates(self, key: LaneKey) -> Candidates:
        if self._candidates_generation != self.generation:
            self._candidates.clear()
            self._candidates_generation = self.generation
        found = self._candidates.get(key)
        if found is None:
            chosen = {i: state for i, state in self.open.items() if refusal(state, key) is None}
            found = Candidates(chosen, is_whole_pool=len(chosen) == len(self.open))
            self._candidates[key] = found
        return found

    def _refresh(self, state: EndpointState) -> None:
        self.generation += 1
        if state.is_open:
            self.open[state.id] = state
        elif self.open.get(state.id) is state:
            del self.open[state.id]
        reported: set[str] = set()
        for other in self.open.values():
            if other.sample is not None and other.sample.models is not None:
                reported |= other.sample.models
        self.models = frozenset(reported)


def _residency(sample: EndpointSample | None) -> tuple[object, ...]:
    if sample is None:
        return (None, None, None, None)
    return (sample.models, sample.running_loras, sample.waiting_loras, sample.max_loras)


def refusal(state: EndpointState, key: LaneKey) -> str | None:
    """Why the endpoint can't serve the lane, as `filter: reason`; None: it can."""
    if key.subset is not None and state.address not in key.subset:
        return "subset: not among the addresses that the request allows"
    own = state.endpoint.labels
    for name, value in key.labels:
        if own.get(name) != value:
            return f"labels: {name} is not {value}"
    sample = state.sample
    if sample is None:
        return None
    if key.model and sample.models is not None and key.model not in sample.models:
        return "model: not served there"
    if key.lora is None or sample.max_loras is None:
        return None
    loaded = (sample.running_loras or frozenset()) | (sample.waiting_loras or frozenset())
    if key.lora in loaded or len(loaded) < sample.max_loras:
        return None
    return "lora: not loaded there, and no room for it"
