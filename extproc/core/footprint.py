"""How much of an endpoint a request will take: the one place where tokens are estimated.

It must not know endpoints or queues. Two figures per request: `tokens`, the weight that the concurrency
detector counts (prompt, and output by a fixed ratio when asked for), and `kv_tokens`, what the request
will hold in the KV cache at its end (prompt and expected output).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from extproc.core.checks import FieldChecks
from extproc.core.output_lengths import OutputLengths
from extproc.core.types import Request
from extproc.errors import ConfigError, Problem


class Footprint(msgspec.Struct, frozen=True, gc=False):
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
    """Token estimates; the ratio rule is min(output_ratio x prompt, client's limit, operator's cap).

    The KV figure expects the `output_quantile` of observed lengths, after `min_samples` of them; before,
    the client's limit (`unlearnt_output: max-tokens`, never too little) or the ratio rule.
    """

    add_estimated_output_tokens: bool = False
    """Whether `tokens` counts the output by the ratio rule too, not only the prompt."""
    release_at_first_output: bool = False
    """Whether `tokens` leaves the load at the first output, so that it counts work in prefill only (the
    peer's way without output). Only where output is seen, and only while no output is counted."""
    output_ratio: float = 1.5
    max_estimated_output_tokens: int | None = None
    learn_output: bool = True
    output_quantile: float = 0.9
    min_samples: int = 16
    unlearnt_output: Literal["max-tokens", "ratio"] = "max-tokens"

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("output_ratio", 0, 1000)
        checks.at_least("max_estimated_output_tokens", 0, 10_000_000)
        checks.fraction("output_quantile").at_least("min_samples", 1, 128).finish()
        if self.release_at_first_output and self.add_estimated_output_tokens:
            text = "needs add_estimated_output_tokens: false, since counted output is held until the end"
            raise ConfigError([Problem("release_at_first_output", text)])


class FootprintEstimator:
    """Footprints of requests, from what they state and what was learnt.

    `block_tokens` is the engines' KV block size: a request holds whole blocks.
    """

    def __init__(self, config: FootprintConfig, block_tokens: int = 16) -> None:
        self.block_tokens = block_tokens
        self.version = 0
        """Grows whenever an estimate may have changed."""
        self.releases_at_first_output = config.release_at_first_output
        self._config = config
        self._lengths = OutputLengths(config.output_quantile, config.min_samples)

    def observe(self, request: Request, output_tokens: int) -> None:
        """A completed request's true output length."""
        if self._config.learn_output:
            self._lengths.observe(request, output_tokens)
            self.version += 1

    def use_blocks(self, block_tokens: int) -> None:
        """An engine's block size; with several in a pool the largest is the safe one."""
        if block_tokens > self.block_tokens:
            self.block_tokens = block_tokens
            self.version += 1

    def footprint(self, request: Request) -> Footprint:
        config = self._config
        prompt = max(0, request.prompt_tokens)
        tokens = prompt
        if config.add_estimated_output_tokens:
            tokens += self._output_by_ratio(request, prompt)
        kv_tokens = prompt + self._expected_output(request, prompt)
        return Footprint(1, tokens, -(-kv_tokens // self.block_tokens) * self.block_tokens)

    def _expected_output(self, request: Request, prompt: int) -> int:
        limit = request.max_output_tokens
        expected = request.expected_output_tokens
        if expected is None and self._config.learn_output:
            expected = self._lengths.expected(request)
        if expected is not None:
            return max(0, expected) if limit is None else max(0, min(expected, limit))
        if limit is not None and self._config.unlearnt_output == "max-tokens":
            cap = self._config.max_estimated_output_tokens
            return max(0, limit) if cap is None else max(0, min(limit, cap))
        return self._output_by_ratio(request, prompt)

    def _output_by_ratio(self, request: Request, prompt: int) -> int:
        if prompt <= 0:
            return 0
        output = round(self._config.output_ratio * prompt)
        if request.max_output_tokens is not None:
            output = min(output, max(0, request.max_output_tokens))
        if self._config.max_estimated_output_tokens is not None:
            output = min(output, self._config.max_estimated_output_tokens)
        return output
