"""One request inside a modelled engine."""

from __future__ import annotations

from enum import Enum

from extproc.sim.kv_cache import Content, Holding


class SequenceState(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"


class Sequence:
    """State of a sequence; while it decodes, its counts are brought up to date only when it leaves the batch.

    `output_limit` is how many tokens it will produce. `generated` and `computed` (tokens whose KV is in the
    cache) are exact in every state but DECODING: ask the engine's `generated_tokens`.
    """

    __slots__ = (
        "admission",
        "cached_tokens",
        "computed",
        "content",
        "entered_step",
        "finish_step",
        "generated",
        "holding",
        "id",
        "is_aborting",
        "is_exempt",
        "output_limit",
        "preemptions",
        "priority",
        "prompt_tokens",
        "serial",
        "state",
        "token_times",
    )

    def __init__(
        self,
        sequence_id: int,
        *,
        prompt_tokens: int,
        output_limit: int,
        content: Content,
        priority: int = 0,
        is_exempt: bool = False,
    ) -> None:
        self.id = sequence_id
        self.prompt_tokens = prompt_tokens
        self.output_limit = output_limit
        self.content = content
        self.priority = priority
        """vLLM's convention: lower goes first."""
        self.is_exempt = is_exempt
        """Needs neither a slot nor KV blocks: the yardstick of a server that nobody has to wait for."""
        self.state = SequenceState.WAITING
        self.generated = 0
        self.computed = 0
        self.cached_tokens = 0
        """Prompt tokens found in the prefix cache at the first admission."""
        self.holding: Holding | None = None
        self.serial = 0
        """Arrival order at this engine."""
        self.admission = 0
        """Order of the latest admission to the running batch."""
        self.entered_step = 0
        self.finish_step = 0
        self.preemptions = 0
        self.is_aborting = False
        self.token_times: list[float] = []
        """When each output token appeared; kept only by an engine that was asked to, and complete only
        while the sequence does not decode.
        """

    @property
    def total_tokens(self) -> int:
        """Tokens that must be computed before the next one appears."""
        return self.prompt_tokens + self.generated
