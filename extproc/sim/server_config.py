"""What one modelled engine is configured with: limits as vLLM names them, and what a step costs.

Pure values that check themselves; reading files is the business of `extproc.sim.files`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extproc.errors import ConfigError, Problem


class SchedulingPolicy(Enum):
    """Order of vLLM's waiting queue; its priority convention is the opposite of ours: LOWER goes first."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of one engine step: base + prefill tokens + sequences + context tokens read by decoding ones.

    The defaults are a fast accelerator with a small model; real coefficients come from config/hardware/.
    """

    base_s: float = 1.6e-3
    prefill_token_s: float = 7.6e-6
    sequence_s: float = 0.11e-3
    context_token_s: float = 7e-9

    def __post_init__(self) -> None:
        names = ("base_s", "prefill_token_s", "sequence_s", "context_token_s")
        problems = [
            Problem(f"step_cost.{name}", f"must be a finite number, 0 or more, not {getattr(self, name)}")
            for name in names
            if not 0 <= getattr(self, name) < 1e3
        ]
        if not problems and self.base_s + self.sequence_s <= 0:
            problems.append(Problem("step_cost.base_s", "a step must take time: base_s + sequence_s is 0"))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits of one engine. `kv_blocks` counts like vLLM's num_gpu_blocks: one of them is never used."""

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    kv_blocks: int = 16_717
    block_tokens: int = 16
    scheduling: SchedulingPolicy = SchedulingPolicy.FCFS
    has_prefix_cache: bool = True
    cost: StepCost = StepCost()

    def __post_init__(self) -> None:
        problems = [
            Problem(f"engine.{name}", f"must be at least {least}, not {getattr(self, name)}")
            for name, least in (
                ("max_num_seqs", 1),
                ("max_num_batched_tokens", 1),
                ("max_model_len", 2),
                ("kv_blocks", 2),
                ("block_tokens", 1),
            )
            if getattr(self, name) < least
        ]
        if not problems and self.max_num_batched_tokens < self.max_num_seqs:
            problems.append(
                Problem(
                    "engine.max_num_batched_tokens",
                    f"must be at least max_num_seqs ({self.max_num_seqs}), not {self.max_num_batched_tokens}",
                )
            )
        if not problems and self.usable_kv_tokens < self.max_model_len:
            problems.append(
                Problem(
                    "engine.kv_blocks",
                    f"{self.kv_blocks} blocks of {self.block_tokens} hold {self.usable_kv_tokens} tokens, "
                    f"less than one request of max_model_len ({self.max_model_len}); change one of the two",
                )
            )
        if problems:
            raise ConfigError(problems)

    @property
    def usable_kv_blocks(self) -> int:
        return self.kv_blocks - 1

    @property
    def usable_kv_tokens(self) -> int:
        return self.usable_kv_blocks * self.block_tokens
