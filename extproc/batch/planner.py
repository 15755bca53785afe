"""When to send what: how many requests at once, by which deadline the gateway sorts each, what to do after
each way of ending, when to leave a server alone.

Pure: `now` (monotonic seconds) and the random source are handed in. Which item comes next (earliest deadline,
then resumed before fresh, then job and line order) is the store's claim order; how it is sent is the
runner's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random

from extproc.client.answers import EndKind, StreamEnd
from extproc.config.batch import RetryConfig, WindowConfig


class Disruption(Enum):
    """What the end of a leg means for its item; the value is the metric label."""

    NONE = "none"
    EVICTED = "evicted"
    """The gateway took the place back (or the connection broke after tokens): go on at once."""
    BACKPRESSURE = "backpressure"
    """Refused for lack of room: come back when told."""
    FAILED = "failed"
    """A fault of the server or of this request: back off, and give up after some."""
    BROKEN = "broken"
    """Broke after the response had begun and before any token: an early eviction or a crash, nobody knows."""
    UNREACHABLE = "unreachable"
    """Nobody there: not the request's fault, never a reason to give up."""
    REFUSED = "refused"
    """The request itself is wrong: never repeated."""
    MISSHAPEN = "misshapen"
    """The answer can't be rebuilt from its stream: ask again, for the whole."""
    LATE = "late"
    """Its deadline has passed."""


_PROXY_ERRORS = frozenset({502, 503, 504})
"""What a proxy answers when there is nobody behind it."""
_RETRIED_CLIENT_ERRORS = frozenset({408, 409, 425, 429})
_LATE_REASONS = frozenset({"rejected-deadline"})


def interpret_end(end: StreamEnd, tokens: int) -> Disruption:
    """What the end of a leg that brought `tokens` means."""
    match end.kind:
        case EndKind.FINISHED:
            return Disruption.NONE
        case EndKind.REFUSED:
            return _interpret_status(end)
        case EndKind.UNREACHABLE:
            return Disruption.UNREACHABLE
        case EndKind.TIMED_OUT:
            return Disruption.LATE
        case EndKind.RESET | EndKind.TRUNCATED | EndKind.ABORTED:
            return Disruption.EVICTED if tokens else Disruption.BROKEN
        case EndKind.ERROR_EVENT | EndKind.STALLED:
            return Disruption.FAILED


def is_nobody_there(end: StreamEnd) -> bool:
    """Neither a server nor the gateway's flow control answered: no connection, or a proxy says so."""
    if end.kind is EndKind.REFUSED:
        has_reason = end.dropped_reason is not None or end.retry_after_s is not None
        return end.status in _PROXY_ERRORS and not has_reason
    return end.kind is EndKind.UNREACHABLE


def is_away(end: StreamEnd) -> bool:
    """The server asked for help (a render server) gave no answer now, but may later."""
    if end.kind is EndKind.REFUSED:
        return end.status in _PROXY_ERRORS or end.status == 429
    return end.kind is not EndKind.FINISHED


def _interpret_status(end: StreamEnd) -> Disruption:
    if end.dropped_reason == "evicted":
        return Disruption.EVICTED
    if end.dropped_reason in _LATE_REASONS:
        return Disruption.LATE
    if end.status == 429 or (end.status == 503 and (end.dropped_reason or end.retry_after_s is not None)):
        return Disruption.BACKPRESSURE
    if 400 <= end.status < 500 and end.status not in _RETRIED_CLIENT_ERRORS:
        return Disruption.REFUSED
    return Disruption.FAILED


_STEP_S = 0.001
_MAX_STAGGER_S = 60.0
_MAX_STAGGER_SHARE = 0.01


def line_deadline(deadline: float, window_s: float, line: int, total: int, wall_time: float) -> float:
    """The deadline (epoch seconds) under which the gateway sorts line `line` (1-based) of a job of `total`.

    The lines of a job follow each other by a millisecond, so that an evicted request goes back to its own
    place and not behind all that came after it; the last line has the job's `deadline`. The first is never
    earlier than that by more than a minute or 1% of `window_s`: further apart, a large job would overtake one
    that is due before it. The same for every turn of a line, but for the job's last moments: where the line's
    own deadline has passed, the job's is what counts.
    """
    lines_before = max(total - 1, 1)
    stagger_s = min(lines_before * _STEP_S, _MAX_STAGGER_S, _MAX_STAGGER_SHARE * window_s)
    own = deadline - stagger_s * max(total - line, 0) / lines_before
    return own if wall_time < own else deadline


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When an item is sent again after each kind of end, or that it is given up."""

    config: RetryConfig = field(default_factory=RetryConfig)

    def backoff_s(self, repeats: int, rng: Random) -> float:
        """A delay after `repeats` (1 = the first) disruptions in a row."""
        return rng.uniform(0.0, min(self.config.cap_s, self.config.base_s * 2.0 ** min(repeats - 1, 30)))

    def delay_s(
        self, disruption: Disruption, repeats: int, retry_after_s: float | None, rng: Random, *, resumes: bool
    ) -> float | None:
        """Seconds until the item may be sent again; None: give up.

        `repeats` counts such ends in a row, this one included; `resumes` tells whether saved tokens are used
        (an eviction then costs nothing and goes on at once; without, it backs off like a failure).
        """
        match disruption:
            case Disruption.EVICTED:
                return 0.0 if resumes else self.backoff_s(repeats, rng)
            case Disruption.MISSHAPEN:
                return 0.0
            case Disruption.BACKPRESSURE:
                wait_s = retry_after_s if retry_after_s is not None else self.backoff_s(repeats + 1, rng)
                return wait_s * rng.uniform(1.0, 1.25)
            case Disruption.UNREACHABLE:
                return self.backoff_s(repeats, rng)
            case Disruption.BROKEN:
                if repeats >= self.config.max_breaks:
                    return None
                return 0.0 if repeats == 1 else self.backoff_s(repeats - 1, rng)
            case Disruption.FAILED:
                return None if repeats >= self.config.max_failures else self.backoff_s(repeats, rng)
            case Disruption.NONE | Disruption.REFUSED | Disruption.LATE:
                return None


class Window:
    """How many more requests may be sent now, learnt from how the gateway takes them."""

    def __init__(self, config: WindowConfig, now: float) -> None:
        self._config = config
        self._limit = float(config.initial)
        self._is_starting = True
        self._changed_at = now
        self._is_waiting_long = False

    @property
    def limit(self) -> int:
        """The present bound on requests in flight."""
        return int(self._limit)

    def room(self, in_flight: int, queued: int, now: float) -> int:
        """How many may be sent; `queued` of the `in_flight` have no response headers yet."""
        self._probe(in_flight, queued, now)
        return max(0, min(self.limit - in_flight, self._config.max_queued - queued))

    def on_dispatched(self, queue_s: float) -> None:
        """Response headers came `queue_s` after the request was sent: the gateway had room."""
        self._is_waiting_long = queue_s > self._config.queue_target_s
        if self._is_starting and not self._is_waiting_long:
            self._limit = min(self._limit + 1.0, float(self._config.maximum))

    def on_pushback(self, in_flight: int, now: float) -> None:
        """An eviction or a refusal for lack of room."""
        self._is_starting = False
        if now - self._changed_at >= self._config.interval_s:
            base = min(self._limit, float(max(in_flight, 1)))
            self._limit = max(base * self._config.decrease, float(self._config.minimum))
            self._changed_at = now

    def _probe(self, in_flight: int, queued: int, now: float) -> None:
        is_used_up = in_flight >= self.limit and queued == 0
        if is_used_up and not self._is_waiting_long and now - self._changed_at >= self._config.interval_s:
            step = max(1.0, self._limit * self._config.growth_fraction)
            self._limit = min(self._limit + step, float(self._config.maximum))
            self._changed_at = now


class Circuit:
    """Leaves one server alone after `threshold` connection failures in a row; then lets one request try.

    The pause follows the retry policy's back-off; the first response of any kind closes the circuit.
    """

    def __init__(self, policy: RetryPolicy, rng: Random, threshold: int = 3) -> None:
        self._policy = policy
        self._rng = rng
        self._threshold = threshold
        self._failures = 0
        self._open_until = 0.0
        self._is_probing = False

    @property
    def is_closed(self) -> bool:
        """Requests flow freely."""
        return self._failures < self._threshold

    def admits(self, now: float) -> bool:
        """Whether a request may be sent now; an open circuit admits one when its pause is over."""
        if self.is_closed:
            return True
        if not self.can_probe(now):
            return False
        self._is_probing = True
        return True

    def can_probe(self, now: float) -> bool:
        """Whether an open circuit's pause is over and nobody is probing."""
        return not self._is_probing and now >= self._open_until

    def on_answer(self) -> None:
        """The server answered, whatever it said."""
        self._failures = 0
        self._is_probing = False

    def on_unreachable(self, now: float) -> None:
        """The server could not be reached."""
        self._failures += 1
        self._is_probing = False
        repeats = self._failures - self._threshold + 1
        if repeats > 0:
            self._open_until = now + self._policy.backoff_s(repeats, self._rng)

    def on_unused(self) -> None:
        """Nothing was sent after all: somebody else may probe."""
        self._is_probing = False

    @property
    def open_until(self) -> float:
        """When the present pause ends."""
        return self._open_until
