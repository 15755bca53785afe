"""Prefill pacing: sheddable prompts may not crowd the engine's next steps ahead of an interactive one.

Per endpoint at most `budget_tokens` of sheddable prompt tokens are in prefill at a time (always at least
one request), and no sheddable request is sent while an interactive one waits for its first token. That hold
ends `max_hold_s` after it began; then one budget's worth may go before it begins again, so a steady
interactive stream can't starve the batch. An endpoint whose engine has had requests waiting for longer than
`waiting_closes_after_s` takes no sheddable work either.

The end of a prefill is observed where the body passes through us; else it is estimated, first come first
served at the prefill rate, which is learnt from samples of the engine's prompt token counter; each such
sample also ends the prefills that the counter shows to be done.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.checks import FieldChecks
from extproc.core.heap import Entry, RemovableHeap
from extproc.core.pool import EndpointState
from extproc.core.types import EndpointSample, Request, RequestId

_RATE_WEIGHT = 0.2
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


class _Prefill:
    """One request that hasn't produced its first token yet, as far as is known."""

    __slots__ = ("endpoint", "is_sheddable", "request_id", "timer", "tokens")

    def __init__(self, request: Request, endpoint: EndpointState, is_sheddable: bool) -> None:
        self.request_id = request.id
        self.endpoint = endpoint
        self.is_sheddable = is_sheddable
        self.tokens = max(0, request.prompt_tokens)
        self.timer: Entry[_Prefill] | None = None


class _Endpoint:
    """Prefills of one endpoint in order of dispatch, and how fast it works them off."""

    __slots__ = (
        "busy_until",
        "credit",
        "granted_tokens",
        "hold_since",
        "interactive",
        "is_observed",
        "prefills",
        "rate",
        "sample",
        "sheddable",
        "sheddable_tokens",
        "waiting_since",
        "was_busy",
    )

    def __init__(self, rate: float) -> None:
        self.prefills: dict[RequestId, _Prefill] = {}
        self.interactive = 0
        self.sheddable = 0
        self.sheddable_tokens = 0
        self.hold_since: float | None = None
        self.busy_until = float("-inf")
        self.rate = rate
        self.credit = 0
        self.granted_tokens = 0
        self.is_observed = False
        self.sample: EndpointSample | None = None
        self.was_busy = False
        self.waiting_since: float | None = None


class PrefillPacing:
    """Follows prefills from dispatch to first output; told of everything by `Books`."""

    def __init__(self, config: PrefillPacingConfig) -> None:
        self._config = config
        self._endpoints: dict[EndpointState, _Endpoint] = {}
        self._prefills: dict[RequestId, _Prefill] = {}
        self._timers: RemovableHeap[_Prefill] = RemovableHeap()
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
        if not state.sheddable:
            return True
        return state.sheddable_tokens + max(0, request.prompt_tokens) <= config.budget_tokens

    def may_allow_any(self, request: Request, endpoints: int, now: float) -> bool:
        """False: none of all the open `endpoints` takes it; a cheap test before asking each."""
        if len(self._closed) < endpoints or not self._paces(request):
            return True
        return min(self._closed.values()) <= now

    def dispatched(self, request: Request, endpoint: EndpointState, now: float) -> None:
        if not self._config.enabled:
            return
        state = self._endpoints.get(endpoint)
        if state is None:
            state = self._endpoints[endpoint] = _Endpoint(self._config.prefill_tokens_per_s)
        prefill = _Prefill(request, endpoint, request.priority < self._config.sheddable_below)
        self._prefills[request.id] = prefill
        state.prefills[request.id] = prefill
        if prefill.is_sheddable:
            state.sheddable += 1
            state.sheddable_tokens += prefill.tokens
            self._use_grant(state, prefill.tokens, now)
        else:
            state.interactive += 1
            if state.hold_since is None and self._config.hold:
                state.hold_since = now
        state.busy_until = max(now, state.busy_until) + prefill.tokens / state.rate
        due = state.busy_until
        if state.is_observed and request.is_streaming:
            due = max(due, now + _OBSERVED_HOLDS * self._config.max_hold_s)
        prefill.timer = self._timers.push((due,), prefill)
        self._note_closed(endpoint, state, now)

    def output_seen(self, request_id: RequestId, now: float) -> bool:
        """The first token was seen by us: no estimate is needed on this endpoint."""
        prefill = self._prefills.get(request_id)
        if prefill is None:
            return False
        self._endpoints[prefill.endpoint].is_observed = True
        return self.ended(request_id, now)

    def ended(self, request_id: RequestId, now: float) -> bool:
        """Its prefill is over; True if it was still counted."""
        prefill = self._prefills.pop(request_id, None)
        if prefill is None:
            return False
        if prefill.timer is not None:
            self._timers.remove(prefill.timer)
        state = self._endpoints[prefill.endpoint]
        del state.prefills[request_id]
        if prefill.is_sheddable:
            state.sheddable -= 1
            state.sheddable_tokens -= prefill.tokens
        else:
            state.interactive -= 1
            if not state.interactive:
                state.hold_since, state.granted_tokens = None, 0
        if state.prefills or prefill.endpoint.is_open:
            self._note_closed(prefill.endpoint, state, now)
        else:
            self._forget(prefill.endpoint)
        return True

    def moved(self, request: Request, endpoint: EndpointState, now: float) -> None:
        """A fallback took the request."""
        if self.ended(request.id, now):
            self.dispatched(request, endpoint, now)

    def sampled(self, endpoint: EndpointState, now: float) -> bool:
        """Learns from the endpoint's newest sample; True when prefills turned out to be done."""
        state, sample = self._endpoints.get(endpoint), endpoint.sample
        if state is None or sample is None or sample is state.sample:
            return False
        before, state.sample = state.sample, sample
        was_waiting = state.waiting_since
        if not sample.waiting_requests:
            state.waiting_since = None
        elif state.waiting_since is None:
            state.waiting_since = sample.sampled_at
        is_reopened = was_waiting is not None and state.waiting_since is None
        any_ended = self._follow_counter(state, before, sample, now)
        self._note_closed(endpoint, state, now)
        return any_ended or is_reopened

    def closed(self, endpoint: EndpointState) -> None:
        """The endpoint takes no more work; what runs there still ends through `ended`."""
        self._closed.pop(endpoint, None)
        state = self._endpoints.get(endpoint)
        if state is not None and not state.prefills:
            self._forget(endpoint)

    def expire(self, now: float) -> bool:
        """Ends the prefills whose estimated time is over; True if there were any."""
        any_ended = False
        while (entry := self._timers.peek()) is not None and entry.key[0] <= now:
            prefill = entry.item
            assert prefill is not None
            self._endpoints[prefill.endpoint].credit -= prefill.tokens
            any_ended = self.ended(prefill.request_id, now) or any_ended
        return any_ended

    def next_change(self, now: float) -> float | None:
        """The next estimated end of a prefill, or the end of a hold."""
        entry = self._timers.peek()
        times = [] if entry is None else [entry.key[0]]
        times += [end for end in self._closed.values() if now < end < _NEVER]
        return min(times, default=None)

    def _paces(self, request: Request) -> bool:
        return self._config.enabled and request.priority < self._config.sheddable_below

    def _use_grant(self, state: _Endpoint, tokens: int, now: float) -> None:
        """A sheddable prompt goes although the hold has run out: after one budget the hold begins again."""
        if state.hold_since is None:
            return
        state.granted_tokens += max(1, tokens)
        if state.granted_tokens >= self._config.budget_tokens:
            state.hold_since, state.granted_tokens = now, 0

    def _note_closed(self, endpoint: EndpointState, state: _Endpoint, now: float) -> None:
        until = 0.0
        if state.sheddable and state.sheddable_tokens >= self._config.budget_tokens:
            until = _NEVER
        elif state.hold_since is not None:
            until = state.hold_since + self._config.max_hold_s
        if until > now and endpoint.is_open:
            self._closed[endpoint] = until
        else:
            self._closed.pop(endpoint, None)

    def _forget(self, endpoint: EndpointState) -> None:
        del self._endpoints[endpoint]
        self._closed.pop(endpoint, None)

    def _follow_counter(
        self, state: _Endpoint, before: EndpointSample | None, sample: EndpointSample, now: float
    ) -> bool:
        """Credits the engine's prompt tokens to the prefills in order, and learns their rate."""
        was_busy, state.was_busy = state.was_busy, bool(state.prefills)
        if before is None or before.prompt_tokens_total is None or sample.prompt_tokens_total is None:
            return False
        done = sample.prompt_tokens_total - before.prompt_tokens_total
        seconds = sample.sampled_at - before.sampled_at
        if done < 0 or seconds <= 0:
            state.credit = 0  # the engine has restarted
            return False
        if was_busy and state.was_busy and done:
            state.rate += _RATE_WEIGHT * (done / seconds - state.rate)
        state.credit += done
        any_ended = False
        for prefill in list(state.prefills.values()):
            if state.credit < prefill.tokens or not prefill.tokens:
                break
            state.credit -= prefill.tokens
            any_ended = self.ended(prefill.request_id, now) or any_ended
        if not state.prefills:
            state.credit = 0
        return any_ended
