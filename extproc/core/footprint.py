"""How much of an endpoint a request will take: the one place where tokens are estimated.

It must not know endpoints or queues. Two figures per request: `tokens`, the weight that the concurrency
detector counts (prompt, and output by a fixed ratio when asked for), and `kv_tokens`, what the request
will hold in the KV cache at its end (prompt and expected output).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from extproc.core.checks import FieldChecks
from extproc.core.types import Request


class Footprint(NamedTuple):
    """What one request occupies; also used for sums of requests."""

    requests: int
    tokens: int
    kv_tokens: int

    def plus(self, other: Footprint) -> Footprint:
        return Footprint(
            self.requests + other.requests, self.tokens + other.tokens, self.kv_tokens + other.kv_tokens
        )

    def minus(self, other: Footprint) -> Footprint:
        return Footprint(
            self.requests - other.requests, self.tokens - other.tokens, self.kv_tokens - other.kv_tokens
        )


NO_FOOTPRINT = Footprint(0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class FootprintConfig:
    """Token estimates; the ratio rule is min(output_ratio x prompt, client's limit, operator's cap)."""

    add_estimated_output_tokens: bool = False
    """Whether `tokens` counts the estimated output too, not only the prompt."""
    output_ratio: float = 1.5
    max_estimated_output_tokens: int | None = None

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("output_ratio", 0, 1000)
        checks.at_least("max_estimated_output_tokens", 0, 10_000_000).finish()


class FootprintEstimator:
    """Footprints of requests, from what they state and from the ratio rule."""

    def __init__(self, config: FootprintConfig) -> None:
        self._config = config

    def footprint(self, request: Request) -> Footprint:
        prompt = max(0, request.prompt_tokens)
        tokens = prompt
        if self._config.add_estimated_output_tokens:
            tokens += self._output_by_ratio(request, prompt)
        expected = request.expected_output_tokens
        output = self._output_by_ratio(request, prompt) if expected is None else max(0, expected)
        return Footprint(1, tokens, prompt + output)

    def _output_by_ratio(self, request: Request, prompt: int) -> int:
        if prompt <= 0:
            return 0
        output = round(self._config.output_ratio * prompt)
        if request.max_output_tokens is not None:
            output = min(output, max(0, request.max_output_tokens))
        if self._config.max_estimated_output_tokens is not None:
            output = min(output, self._config.max_estimated_output_tokens)
        return output
