"""The client side of one planned request: its legs, what it saves, when it tries again, and its record.

A pure twin of the real clients: `FAIL` gives up after an eviction, `RESUME` is the batch worker (continues
from the tokens it has saved, at once), `RESTART` starts over after an exponential back-off. The last two
also come back after a refusal: when Retry-After says so, or after the back-off.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Protocol

from extproc.core.outcomes import Outcome
from extproc.core.types import FairnessId, Request, RequestId
from extproc.sim.calendar import Calendar, Rank
from extproc.sim.kv_cache import SymbolicContent
from extproc.sim.leg import Leg, LegOwner
from extproc.sim.sequence import Sequence
from extproc.workload.record import RequestOutcome, RequestRecord
from extproc.workload.traffic import AfterEviction, PlannedRequest

_BACKOFF_S, _BACKOFF_LIMIT_S = 1.0, 60.0
_NO_ENDPOINTS = frozenset(
    {Outcome.REJECTED_NO_ENDPOINTS, Outcome.EXPIRED_NO_ENDPOINTS, Outcome.REJECTED_SHUTTING_DOWN}
)
_PREFIX_HASH_TOKENS = 64
"""Tokens behind one of the prefix hashes that a request shows to the picker."""


class LegFactory(Protocol):
    """Makes legs with the scenario's delays, through one of the gateways."""

    @property
    def resubmit_s(self) -> float: ...

    def new_request_id(self) -> RequestId: ...

    def new_leg(self, request: Request, sequence: Sequence, owner: LegOwner) -> Leg: ...


class Journey:
    """From the intended send time to the final outcome; `on_end` is called once, with the record complete."""

    __slots__ = (
        "_attempts",
        "_calendar",
        "_factory",
        "_key",
        "_leg",
        "_on_end",
        "_rng",
        "_saved",
        "_shown",
        "plan",
        "record",
    )

    def __init__(
        self,
        plan: PlannedRequest,
        key: int,
        *,
        calendar: Calendar,
        factory: LegFactory,
        rng: random.Random,
        on_end: Callable[[Journey], None],
        is_closed_loop: bool,
    ) -> None:
        self.plan = plan
        self.record = RequestRecord(
            traffic_class=plan.traffic_class,
            index=plan.index,
            priority=plan.priority,
            fairness_id=plan.fairness_id,
            intended_s=calendar.now,
            prompt_tokens=plan.prompt_tokens,
            deadline_s=plan.deadline_s,
            ttft_target_s=plan.ttft_target_s,
            is_closed_loop=is_closed_loop,
        )
        self._key = key
        self._calendar = calendar
        self._factory = factory
        self._rng = rng
        self._on_end = on_end
        self._leg: Leg | None = None
        self._saved = 0
        self._attempts = 0
        self._shown: list[tuple[Sequence, int]] = []
        """Legs whose tokens the client has kept, and how many of each."""

    def start(self) -> None:
        """Send the first leg now."""
        self.record.sent_s = self._calendar.now
        self._send()

    def close(self) -> None:
        """The run ends with this request under way."""
        self.record.output_tokens = self._saved
        if self._leg is not None:
            self.record.output_tokens += self._leg.generated_known_to_client()

    # -- what the leg tells -------------------------------------------------------------------------------

    def leg_dispatched(self, at: float) -> None:
        if self.record.dispatched_s is None:
            self.record.dispatched_s = at

    def leg_first_token(self) -> None:
        if self.record.first_token_s is None:
            self.record.first_token_s = self._calendar.now
        self._count_refill()

    def leg_completed(self) -> None:
        assert self._leg is not None
        sequence = self._leg.sequence
        self._shown.append((sequence, sequence.generated))
        self._finish(RequestOutcome.COMPLETED, self._saved + sequence.generated, 200, None)

    def leg_refused(self, outcome: Outcome, retry_after_s: int | None) -> None:
        status = 503 if outcome in _NO_ENDPOINTS else 504 if outcome is Outcome.EXPIRED_DEADLINE else 429
        if self.plan.after_eviction is AfterEviction.FAIL or outcome is Outcome.EXPIRED_DEADLINE:
            self._finish(RequestOutcome.REJECTED, self._saved, status, outcome.value)
            return
        self.record.refused += 1
        self.record.status, self.record.reason = status, outcome.value
        self._send_after(float(retry_after_s) if retry_after_s is not None else self._backoff_s())

    def leg_evicted(self, generated: int) -> None:
        self.record.evictions += 1
        self._cut_off(generated, RequestOutcome.EVICTED, 429, "evicted")

    def leg_lost(self, generated: int) -> None:
        self._cut_off(generated, RequestOutcome.FAILED, 503, "upstream-lost")

    # -- what the client does -----------------------------------------------------------------------------

    def _cut_off(self, generated: int, outcome: RequestOutcome, status: int, reason: str) -> None:
        match self.plan.after_eviction:
            case AfterEviction.FAIL:
                self._finish(outcome, self._saved + generated, status, reason)
            case AfterEviction.RESUME:
                self._saved += generated
                if self._leg is not None:
                    self._shown.append((self._leg.sequence, generated))
                self._send_after(self._factory.resubmit_s)
            case AfterEviction.RESTART:
                self.record.redone_tokens += generated
                self._send_after(self._backoff_s())

    def _backoff_s(self) -> float:
        """Doubling from one second, with jitter between half and all of it."""
        ceiling = min(_BACKOFF_LIMIT_S, _BACKOFF_S * (1 << min(self._attempts - 1, 10)))
        return ceiling * self._rng.uniform(0.5, 1.0)

    def _send_after(self, delay_s: float) -> None:
        self._leg = None
        self._calendar.after(delay_s, Rank.ARRIVAL, self._send)

    def _send(self) -> None:
        self._attempts += 1
        plan, saved = self.plan, self._saved
        request = Request(
            id=self._factory.new_request_id(),
            priority=plan.priority,
            fairness_id=FairnessId(plan.fairness_id),
            prompt_tokens=plan.prompt_tokens + saved,
            max_output_tokens=plan.max_output_tokens - saved,
            size_bytes=4 * (plan.prompt_tokens + saved),
            ttl_s=plan.ttl_s,
            deadline_s=plan.deadline_s,
            ttft_target_s=plan.ttft_target_s,
            prefix_hashes=prefix_hashes(plan),
            is_resumable=plan.after_eviction is AfterEviction.RESUME,
            is_streaming=plan.streams,
        )
        sequence = Sequence(
            request.id,
            prompt_tokens=plan.prompt_tokens + saved,
            output_limit=plan.output_tokens - saved,
            content=SymbolicContent(
                self._key, prefix_key=group_key(plan.prefix_group), prefix_tokens=plan.prefix_tokens
            ),
            priority=-plan.priority,
        )
        self._leg = self._factory.new_leg(request, sequence, self)
        self._leg.send()

    def _count_refill(self) -> None:
        assert self._leg is not None
        sequence = self._leg.sequence
        self.record.cached_tokens += sequence.cached_tokens
        if self._attempts > 1:
            self.record.refilled_tokens += sequence.prompt_tokens - sequence.cached_tokens

    def _finish(self, outcome: RequestOutcome, tokens: int, status: int, reason: str | None) -> None:
        record = self.record
        record.outcome, record.output_tokens = outcome, tokens
        record.status, record.reason = status, reason
        record.end_s = self._calendar.now
        record.chunk_gaps_s = token_gaps(self._shown)
        self._leg = None
        self._on_end(self)


def token_gaps(shown: list[tuple[Sequence, int]]) -> tuple[float, ...]:
    """Gaps between successive tokens over all legs; () where engines keep no token times."""
    times = [time for sequence, count in shown for time in sequence.token_times[:count]]
    return tuple([later - earlier for earlier, later in itertools.pairwise(times)])


def group_key(group: str | None) -> int:
    """A content key for a shared prefix, the same in every run (`hash` of a text is not)."""
    if group is None:
        return 0
    return int.from_bytes(group.encode()[-8:].rjust(8, b"\0"), "big") ^ (len(group) << 56) | 1 << 62


def prefix_hashes(plan: PlannedRequest) -> tuple[int, ...]:
    """What the picker sees of the shared part of the prompt; the rest of it is nobody else's."""
    if plan.prefix_group is None:
        return ()
    key = group_key(plan.prefix_group)
    return tuple(key + block for block in range(plan.prefix_tokens // _PREFIX_HASH_TOKENS))
