"""What became of one planned request, as its client saw it: the row that every driver of load writes.

The simulator fills it in virtual time, the load generator from real sockets; all summaries are made of these
rows alone. Times are seconds from the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RequestOutcome(Enum):
    """The end of a request for its client."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """Refused before any output (429 or 503), and not sent again."""
    EVICTED = "evicted"
    """Cut off by an eviction, and not sent again."""
    FAILED = "failed"
    """Any other error: a broken connection, 4xx, 5xx."""
    UNFINISHED = "unfinished"
    """The run ended first."""


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request from its intended send time to its end, over all its legs (a leg ends with each eviction).

    `intended_s` is when it should have been sent: latencies count from here. `sent_s` is when it really
    was. `first_token_s` is the first chunk that carries a token; `chunk_gaps_s` are the gaps between chunks
    with tokens. `redone_tokens` were generated twice, `refilled_tokens` are prompt tokens computed again
    for a resumed leg (not found in a prefix cache). `status` is the last HTTP status (None: none was seen).
    """

    traffic_class: str
    index: int
    priority: int
    fairness_id: str
    intended_s: float
    prompt_tokens: int
    sent_s: float | None = None
    dispatched_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    output_tokens: int = 0
    chunk_gaps_s: tuple[float, ...] = ()
    outcome: RequestOutcome = RequestOutcome.UNFINISHED
    status: int | None = None
    reason: str | None = None
    evictions: int = 0
    redone_tokens: int = 0
    refilled_tokens: int = 0
    cached_tokens: int = 0
    refused: int = 0
    """429 and 503 answers that were followed by another attempt."""
    deadline_s: float | None = None
    ttft_target_s: float | None = None
    is_closed_loop: bool = False

    @property
    def ttft_s(self) -> float | None:
        """Intended send time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """(end - first token) / (output tokens - 1), as vLLM's own bench defines it; None below two
        tokens.
        """
        if self.first_token_s is None or self.end_s is None or self.output_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def lag_s(self) -> float | None:
        """How late the generator itself was."""
        return None if self.sent_s is None else self.sent_s - self.intended_s

    @property
    def has_met_deadline(self) -> bool | None:
        """None when it has no deadline."""
        if self.deadline_s is None:
            return None
        return self.outcome is RequestOutcome.COMPLETED and (self.end_s or 0.0) <= self.deadline_s
