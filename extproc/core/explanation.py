"""What would become of a request now, and why: who is no candidate, what the rest score, what holds it back.

Reads only: nothing is booked, no random number is drawn, and no policy learns from the question. Costs a walk
over all endpoints, so it is for people who ask, never for decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from extproc.core.books import Books
from extproc.core.ceiling import Ceiling
from extproc.core.dispatching import Dispatcher
from extproc.core.footprint import Footprint
from extproc.core.picker import Scores
from extproc.core.pool import Candidates, EndpointState, LaneKey, refusal
from extproc.core.types import EndpointId, Request

Verdict = Literal["dispatch", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointExplanation:
    """One endpoint for one request. `removed_by` names the first filter that keeps it out, with its reason;
    None: it takes the request. `scores` are the weighted parts of `total`."""

    endpoint_id: EndpointId
    address: str
    removed_by: str | None
    saturation: Mapping[str, float]
    inflight_requests: int
    total: float | None
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`reason` says in words what the verdict rests on; `may_evict`: some request in flight has a lower
    priority and may be evicted for this one. `tokens` and `kv_tokens` are what it would be booked with."""

    verdict: Verdict
    reason: str
    priority: int
    tokens: int
    kv_tokens: int
    saturation: float
    resources: Mapping[str, float]
    ceilings: Mapping[str, float]
    """Of its priority, by resource."""
    is_below_ceiling: bool
    queued_before: Mapping[int, int]
    """Queued requests of the same and of higher priorities, by priority."""
    may_evict: bool
    profile: str | None
    best: str | None
    """Address of the endpoint with the highest score among those that take it."""
    endpoints: tuple[EndpointExplanation, ...]


@dataclass(frozen=True, slots=True)
class _Question:
    """One request in front of the policies as they are now."""

    dispatcher: Dispatcher
    books: Books
    request: Request
    lane: LaneKey
    candidates: Candidates
    footprint: Footprint
    ceiling: Ceiling
    now: float


def explain(dispatcher: Dispatcher, books: Books, request: Request, now: float) -> Explanation:
    """The decision as it stands at `now`, for a request that is not queued."""
    policies = books.policies
    asked = _ask(dispatcher, books, request, now)
    detector, candidates = policies.detector, asked.candidates
    is_admitted = bool(len(candidates)) and detector.admits(
        candidates, asked.footprint, asked.ceiling, None, now
    )
    scores = policies.picker.explain(request, candidates)
    rows = tuple(_endpoint(asked, state, scores.get(state)) for state in books.pool.states.values())
    takers = [row for row in rows if row.removed_by is None]
    before = _queued_before(asked)
    saturation = detector.saturation(candidates, now)
    reason = _closed(asked) or _queue_or_gate(asked, before, is_admitted, saturation)
    if reason is None and not takers:
        reason = "every candidate is full for it"
    best = max(takers, key=lambda row: row.total or 0.0, default=None)
    return Explanation(
        verdict="dispatch" if reason is None else "wait",
        reason=reason or "the gate is open and an endpoint takes it",
        priority=request.priority,
        tokens=asked.footprint.tokens,
        kv_tokens=asked.footprint.kv_tokens,
        saturation=saturation,
        resources=detector.resources(now),
        ceilings=asked.ceiling._asdict(),
        is_below_ceiling=is_admitted,
        queued_before=before,
        may_evict=dispatcher.revocations.config.enabled and _has_victim(asked),
        profile=policies.picker.profile_name(request),
        best=None if best is None else best.address,
        endpoints=rows,
    )


def _ask(dispatcher: Dispatcher, books: Books, request: Request, now: float) -> _Question:
    lane, policies = books.pool.lane_key(request), books.policies
    return _Question(
        dispatcher,
        books,
        request,
        lane,
        candidates=books.pool.candidates(lane),
        footprint=policies.estimator.footprint(request),
        ceiling=policies.ceilings.shown(request.priority, now),
        now=now,
    )


def _endpoint(asked: _Question, state: EndpointState, scores: Scores | None) -> EndpointExplanation:
    detector = asked.books.policies.detector
    return EndpointExplanation(
        endpoint_id=state.id,
        address=state.address,
        removed_by=_removed_by(asked, state),
        saturation=detector.endpoint_resources(state, asked.now) if state.is_open else {},
        inflight_requests=state.requests,
        total=None if scores is None else scores.total,
        scores={} if scores is None else scores.parts,
    )


def _removed_by(asked: _Question, state: EndpointState) -> str | None:
    """The filters in the order in which the controller applies them."""
    policies, now = asked.books.policies, asked.now
    if not state.is_healthy:
        return "health: ejected"
    if state.endpoint.is_draining:
        return "draining: takes no new work"
    refused = refusal(state, asked.lane)
    if refused is not None:
        return refused
    if state.is_probing and state.requests:
        return "health: its one probe is under way"
    if not policies.detector.fits(state, asked.footprint, asked.ceiling, None, now):
        loads = policies.detector.endpoint_resources(state, now).items()
        amounts = [f"{name} {value:.2f}" for name, value in loads]
        if state.leased_slots is not None:
            amounts.append(f"of {state.leased_slots} slots leased to this replica")
        return f"detector: full for it ({', '.join(amounts)})"
    if not policies.pacing.allows(state, asked.request, now):
        return "pacing: enough sheddable prompt tokens are being computed there"
    return None


def _queued_before(asked: _Question) -> dict[int, int]:
    """Queues that a request of this priority stands behind because they wait for the same endpoints."""
    queues, pool, priority = asked.dispatcher.queues, asked.books.pool, asked.request.priority
    before = {}
    for other in queues.active_priorities():
        band = queues.bands[other]
        if other < priority or (other > priority and band.config.borrow):
            continue
        if any(_overlap(pool.candidates(lane), asked.candidates) for lane in band.lanes()):
            before[other] = len(band)
    return before


def _has_victim(asked: _Question) -> bool:
    victims = asked.books.policies.victims.victims(asked.request.priority)
    return any(victim.endpoint in asked.candidates for victim in victims)


def _overlap(one: Candidates, other: Candidates) -> bool:
    return any(state in other for state in one)


def _closed(asked: _Question) -> str | None:
    """What keeps the request from all endpoints, whatever their load."""
    if not asked.books.pool.open:
        return "the pool has no open endpoint"
    if not len(asked.candidates):
        return "the filters leave no endpoint for it"
    if asked.dispatcher.is_sheddable_held and asked.request.priority < 0:
        return "sheddable requests are held back on this replica"
    return None


def _queue_or_gate(
    asked: _Question, before: Mapping[int, int], is_admitted: bool, saturation: float
) -> str | None:
    if before:
        waiting = ", ".join(f"{count} of priority {priority}" for priority, count in before.items())
        return f"queued requests go first: {waiting}"
    if is_admitted:
        return None
    ceiling = asked.ceiling
    limit = f"{ceiling.requests:.3g} (requests), {ceiling.tokens:.3g} (tokens)"
    return f"saturation {saturation:.3g} leaves no room below the ceiling {limit} of its priority"
