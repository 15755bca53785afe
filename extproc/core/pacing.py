"""Prefill pacing: sheddable prompts may not crowd the engine's next steps ahead of an interactive one.

Per endpoint at most `budget_tokens` of sheddable prompt tokens are in prefill at a time (always at least
one request), and no sheddable request is sent while an interactive one waits for its first token. That hold
ends `max_hold_s` after it began; then one budget's worth may go before it begins again, so a steady
interactive stream can't starve the batch. An endpoint whose engine has had requests waiting for longer than
`waiting_closes_after_s` takes no sheddable work either.

How it is known what is in prefill is told in `prefills`.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.checks import FieldChecks
from extproc.core.heap import RemovableHeap
from extproc.core.pool import EndpointState
from extproc.core.prefills import EndpointPrefills, Prefill
from extproc.core.types import Request, RequestId

_OBSERVED_HOLDS = 4
"""Where first tokens are seen, a prefill is given up only after so many times the longest hold."""
_NEVER = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillPacingConfig:
    """`budget_tokens` is the engine's `max_num_batched_tokens`; `prefill_tokens_per_s` holds until learnt."""

    enabled: bool = True
    budget_tokens: int = 8192
    hold: bool = True
    max_hold_s: float = 5.0
    sheddable_below: int = 0
    prefill_tokens_per_s: float = 10_000.0
    waiting_closes_after_s: float | None = 1.0

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("budget_tokens", 1, 100_000_000)
        checks.above("max_hold_s", 0, 3600).above("prefill_tokens_per_s", 0, 1e9)
        checks.at_least("sheddable_below", -(2**31), 2**31 - 1)
        checks.above("waiting_closes_after_s", 0, 3600).finish()


class PrefillPacing:
    """Follows prefills from dispatch to first output; told of everything by `Books`."""

    def __init__(self, config: PrefillPacingConfig) -> None:
        self._config = config
        self._endpoints: dict[EndpointState, EndpointPrefills] = {}
        self._prefills: dict[RequestId, Prefill] = {}
        self._timers: RemovableHeap[Prefill] = RemovableHeap()
        self.nothing_due_before = _NEVER
        """No prefill's estimated time is over before; a bound, not the time itself."""
        self._owing: dict[EndpointState, float] = {}
        """Endpoints with owed work, and when it should all be done."""
        self._closed: dict[EndpointState, float] = {}
        """Endpoints that take no sheddable request at all, and until when (infinity: until an event)."""

    def allows(self, endpoint: EndpointState, request: Request, now: float) -> bool:
        """Whether pacing lets this request go to the endpoint now."""
        if not self._paces(request):
            return True
        state = self._endpoints.get(endpoint)
        if state is None:
            return True
        config = self._config
        closes_after_s = config.waiting_closes_after_s
        if state.waiting_since is not None and closes_after_s is not None:
            has_waited_long = now - state.waiting_since >= closes_after_s
            if has_waited_long:
                return False
        if state.hold_since is not None and now < state.hold_since + config.max_hold_s:
            return False
        in_prefill = state.sheddable_tokens + state.backlog_tokens(now)
        if not state.sheddable and in_prefill < 1:
            return True
        return in_prefill + max(0, request.prompt_tokens) <= config.budget_tokens

    def may_allow_any(self, request: Request, endpoints: int, now: float) -> bool:
        """False: none of all the open `endpoints` takes it; a cheap test before asking each."""
        if not self._paces(request) or len(self._closed) < endpoints:
            return True
        return min(self._closed.values()) <= now

    def dispatched(self, request: Request, endpoint: EndpointState, now: float) -> None:
        if not self._config.enabled:
            return
        state = self._endpoints.get(endpoint)
        if state is None:
            state = self._endpoints[endpoint] = EndpointPrefills(self._config.prefill_tokens_per_s)
        prefill = Prefill(request, endpoint, self._paces(request))
        self._prefills[request.id] = prefill
        due = state.start(prefill, now)
        if prefill.is_sheddable:
            self._use_grant(state, prefill.tokens, now)
        elif state.hold_since is None and self._config.hold:
            state.hold_since = now
        if state.is_observed and request.is_streaming:
            due = max(due, now + _OBSERVED_HOLDS * self._config.max_hold_s)
        prefill.timer = self._timers.push((due,), prefill)
        if due < self.nothing_due_before:
            self.nothing_due_before = due
        self._note_closed(endpoint, state, now)

    def output_seen(self, request: Request, endpoint: EndpointState, now: float) -> bool:
        """The first token was seen by us: no estimate is needed on this endpoint."""
        state = self._endpoints.get(endpoint)
        if state is not None:
            state.is_observed = True
        return self.ended(request.id, endpoint, now)

    def ended(self, request_id: RequestId, endpoint: EndpointState, now: float) -> bool:
        """Its prefill is over for certain; True if somebody may go now who couldn't."""
        state = self._endpoints.get(endpoint)
        if state is None:
            return False
        was_owing = state.owed_tokens
        state.forgive(request_id)
        prefill = self._prefills.get(request_id)
        if prefill is not None:
            self._end(prefill, now)
        else:
            self._settle(endpoint, state, now)
        return prefill is not None or state.owed_tokens < was_owing

    def _end(self, prefill: Prefill, now: float) -> None:
        del self._prefills[prefill.request_id]
        if prefill.timer is not None:
            self._timers.remove(prefill.timer)
        state = self._endpoints[prefill.endpoint]
        state.end(prefill)
        if not state.interactive:
            state.hold_since, state.granted_tokens = None, 0
        self._settle(prefill.endpoint, state, now)

    def _settle(self, endpoint: EndpointState, state: EndpointPrefills, now: float) -> None:
        if not state.is_idle or endpoint.is_open:
            self._note_closed(endpoint, state, now)
        else:
            self._forget(endpoint)

    def moved(self, request: Request, before: EndpointState, after: EndpointState, now: float) -> None:
        """A fallback took the request."""
        is_prefilling = request.id in self._prefills
        self.ended(request.id, before, now)
        if is_prefilling:
            self.dispatched(request, after, now)

    def sampled(self, endpoint: EndpointState, now: float) -> None:
        """Learns from the endpoint's newest sample."""
        state, sample = self._endpoints.get(endpoint), endpoint.sample
        if state is None or sample is None or state.has_seen(sample):
            return
        for prefill in state.follow(sample):
            self._end(prefill, now)
        if endpoint in self._endpoints:
            self._note_closed(endpoint, state, now)

    def closed(self, endpoint: EndpointState) -> None:
        """The endpoint takes no more work; what runs there still ends through `ended`."""
        self._closed.pop(endpoint, None)
        self._owing.pop(endpoint, None)
        state = self._endpoints.get(endpoint)
        if state is not None and state.is_idle:
            self._forget(endpoint)

    def expire(self, now: float) -> bool:
        """Ends the prefills whose estimated time is over; True if there were any.

        Needed only from `nothing_due_before` on.
        """
        any_ended = False
        while (entry := self._timers.peek()) is not None and entry.key[0] <= now:
            prefill = entry.item
            assert prefill is not None
            self._endpoints[prefill.endpoint].owe(prefill)
            self._end(prefill, now)
            any_ended = True
        self.nothing_due_before = _NEVER if entry is None else entry.key[0]
        return any_ended

    def next_change(self, now: float) -> float | None:
        """The next estimated end of a prefill, or the end of a hold."""
        entry = self._timers.peek()
        times = [] if entry is None else [entry.key[0]]
        times += [end for end in self._closed.values() if now < end < _NEVER]
        times += [end for end in self._owing.values() if now < end]
        return min(times, default=None)

    def _paces(self, request: Request) -> bool:
        return self._config.enabled and request.priority < self._config.sheddable_below

    def _use_grant(self, state: EndpointPrefills, tokens: int, now: float) -> None:
        """A sheddable prompt goes although the hold has run out: after one budget the hold begins again."""
        if state.hold_since is None:
            return
        state.granted_tokens += max(1, tokens)
        if state.granted_tokens >= self._config.budget_tokens:
            state.hold_since, state.granted_tokens = now, 0

    def _note_closed(self, endpoint: EndpointState, state: EndpointPrefills, now: float) -> None:
        budget = self._config.budget_tokens
        if state.owed_tokens and endpoint.is_open:
            self._owing[endpoint] = state.cleared_at(0)
        else:
            self._owing.pop(endpoint, None)
        until = 0.0
        if state.hold_since is not None:
            until = state.hold_since + self._config.max_hold_s
        if state.sheddable and state.sheddable_tokens >= budget:
            until = _NEVER
        elif state.owed_tokens:
            # The smallest request could go again when so much of the owed work should be done.
            until = max(until, state.cleared_at(max(0, budget - state.sheddable_tokens - 1)))
        if until > now and endpoint.is_open:
            self._closed[endpoint] = until
        else:
            self._closed.pop(endpoint, None)

    def _forget(self, endpoint: EndpointState) -> None:
        del self._endpoints[endpoint]
        self._closed.pop(endpoint, None)
        self._owing.pop(endpoint, None)
