"""What one endpoint has in prefill: dispatched, and not past its first output as far as is known.

A prefill ends when its first output is seen, else by estimate: first come, first served at the prefill rate.
Where the engine's prompt token counter is sampled, an estimated end is only assumed: the tokens stay *owed*
until the counter has covered them, first come first served, so that a rate thought too high can't pile up
work. Between samples the owed work is taken to shrink at the rate. The rate itself is the counter's growth
over the time the endpoint was busy with prompts.
"""

from __future__ import annotations

from extproc.core.heap import Entry
from extproc.core.pool import EndpointState
from extproc.core.types import EndpointSample, Request, RequestId

_RATE_WEIGHT = 0.2


class Prefill:
    """One request before its first output."""

    __slots__ = ("endpoint", "is_sheddable", "request_id", "timer", "tokens")

    def __init__(self, request: Request, endpoint: EndpointState, is_sheddable: bool) -> None:
        self.request_id = request.id
        self.endpoint = endpoint
        self.is_sheddable = is_sheddable
        self.tokens = max(0, request.prompt_tokens)
        self.timer: Entry[Prefill] | None = None


class EndpointPrefills:
    """Counts of one endpoint; `rate` is in prompt tokens per second."""

    __slots__ = (
        "_busy_s",
        "_busy_tokens",
        "_busy_until",
        "_credit",
        "_owed",
        "_sample",
        "_was_busy",
        "granted_tokens",
        "hold_since",
        "interactive",
        "is_observed",
        "owed_tokens",
        "pending",
        "rate",
        "sheddable",
        "sheddable_tokens",
        "waiting_since",
    )

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.pending: dict[RequestId, Prefill] = {}
        self.interactive = 0
        self.sheddable = 0
        self.sheddable_tokens = 0
        self.owed_tokens = 0
        self.hold_since: float | None = None
        self.granted_tokens = 0
        self.is_observed = False
        self.waiting_since: float | None = None
        self._owed: dict[RequestId, int] = {}
        self._busy_until = float("-inf")
        self._credit = 0
        self._sample: EndpointSample | None = None
        self._was_busy = False
        self._busy_s = 0.0
        self._busy_tokens = 0

    @property
    def is_idle(self) -> bool:
        return not self.pending and not self._owed

    def start(self, prefill: Prefill, now: float) -> float:
        """Counts it in; returns when its prefill should be over."""
        self.pending[prefill.request_id] = prefill
        if prefill.is_sheddable:
            self.sheddable += 1
            self.sheddable_tokens += prefill.tokens
        else:
            self.interactive += 1
        self._busy_until = max(now, self._busy_until) + prefill.tokens / self.rate
        return self._busy_until

    def end(self, prefill: Prefill) -> None:
        """Its first output was seen, or nobody waits for it any more."""
        del self.pending[prefill.request_id]
        if prefill.is_sheddable:
            self.sheddable -= 1
            self.sheddable_tokens -= prefill.tokens
        else:
            self.interactive -= 1

    def owe(self, prefill: Prefill) -> None:
        """It has ended by estimate only: the counter, if there is one, has yet to show it."""
        if self._sample is not None and self._sample.prompt_tokens_total is not None:
            self._owed[prefill.request_id] = prefill.tokens
            self.owed_tokens += prefill.tokens

    def forgive(self, request_id: RequestId) -> None:
        """Its output was seen or its stream has ended, whatever the counter says."""
        self.owed_tokens -= self._owed.pop(request_id, 0)

    def backlog_tokens(self, now: float) -> float:
        """Owed work that should be left by now."""
        if not self.owed_tokens or self._sample is None:
            return 0.0
        return max(0.0, self.owed_tokens - self.rate * (now - self._sample.sampled_at))

    def cleared_at(self, tokens: float) -> float:
        """When the owed work should have shrunk to so many tokens."""
        sampled_at = 0.0 if self._sample is None else self._sample.sampled_at
        return sampled_at + max(0.0, self.owed_tokens - tokens) / self.rate

    def follow(self, sample: EndpointSample) -> list[Prefill]:
        """Takes a newer sample in; returns the prefills that its counter shows to be done."""
        before, self._sample = self._sample, sample
        if not sample.waiting_requests:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = sample.sampled_at
        if before is None or before.prompt_tokens_total is None or sample.prompt_tokens_total is None:
            return []
        done = sample.prompt_tokens_total - before.prompt_tokens_total
        seconds = sample.sampled_at - before.sampled_at
        if done < 0 or seconds <= 0:
            self._credit = 0  # the engine has restarted
            return []
        found = self._pay(done)
        self._learn_rate(done, seconds)
        return found

    def has_seen(self, sample: EndpointSample) -> bool:
        return sample is self._sample

    def _pay(self, done: int) -> list[Prefill]:
        self._credit += done
        for request_id, tokens in list(self._owed.items()):
            if self._credit < tokens:
                return []
            self._credit -= tokens
            self.forgive(request_id)
        found = []
        for prefill in self.pending.values():
            if self._credit < prefill.tokens:
                break
            self._credit -= prefill.tokens
            found.append(prefill)
        if len(found) == len(self.pending):
            self._credit = 0
        return found

    def _learn_rate(self, done: int, seconds: float) -> None:
        """The counter grows by whole prompts, so the time between two of its steps is what counts."""
        is_busy = not self.is_idle
        if self._was_busy:
            self._busy_s += seconds
            self._busy_tokens += done
        if self._was_busy and done and self._busy_s > 0:
            self.rate += _RATE_WEIGHT * (self._busy_tokens / self._busy_s - self.rate)
        if done or not is_busy:
            self._busy_s, self._busy_tokens = 0.0, 0
        self._was_busy = is_busy
