"""How requests are read, ranked, counted and refused: the configuration of the exchange.

Frozen values that check themselves; where they come from is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from extproc.errors import ConfigError, Problem
from extproc.formats.openai import MAX_COUNT

_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
"""A field name of RFC 9110, in lower case; Envoy fails every request whose mutation names another one."""


class PrioritySource(Enum):
    """Where a priority may come from; the configured order decides, the first that says something wins."""

    OBJECTIVE = "objective"
    """The objective header, looked up in `objectives`."""
    HEADER = "header"
    """The numeric `x-priority` header. Only where clients may be trusted with it."""
    BODY = "body"
    """The body's `priority` field (higher = more important)."""
    FAIRNESS_ID = "fairness-id"
    MODEL = "model"


class EnginePriority(Enum):
    """What the engine is given as `priority` (its convention: LOWER first; ignored without its flag)."""

    REMOVE = "remove"
    NEGATE = "negate"
    KEEP = "keep"


class Strictness(Enum):
    REFUSE = "refuse"
    """Answer 400 and say why."""
    PASS = "pass"
    """Let the engine decide."""


class UnknownPath(Enum):
    ADMIT = "admit"
    """Queue it like any request, with a cost estimated from its size."""
    REFUSE = "refuse"
    """Answer 404."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityConfig:
    """How a request's priority is found. Values outside `minimum` to `maximum` are refused or ignored."""

    sources: tuple[PrioritySource, ...] = (
        PrioritySource.OBJECTIVE,
        PrioritySource.BODY,
        PrioritySource.FAIRNESS_ID,
        PrioritySource.MODEL,
    )
    objectives: Mapping[str, int] = field(default_factory=dict)
    fairness_ids: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    default: int = 0
    minimum: int = -1000
    maximum: int = 1000
    engine: EnginePriority = EnginePriority.REMOVE

    def __post_init__(self) -> None:
        problems = []
        if self.minimum > self.maximum:
            problems.append(Problem("minimum", "must not be above maximum"))
        if not self.minimum <= self.default <= self.maximum:
            problems.append(Problem("default", "must lie between minimum and maximum"))
        for name in ("objectives", "fairness_ids", "models"):
            for key, value in getattr(self, name).items():
                if not self.minimum <= value <= self.maximum:
                    problems.append(Problem(f"{name}.{key}", "must lie between minimum and maximum"))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitConfig:
    """Bounds on what one request may bring.

    Envoy's buffer limit should be twice `max_body_bytes`: a body that is only somewhat too large is taken
    whole and then refused, since an HTTP/1.1 client that is still sending would lose the answer.

    `early_decision_bytes`: in STREAMED mode Envoy stops reading once its buffer (1 MiB by default) is full of
    unanswered chunks, so the decision is taken there at the latest, on what has been seen.

    `max_headers`: Envoy answers a bare 500 when the header that names the server is one too many for its own
    limit (100 by default, its pseudo-headers and additions included), and closes the connection wordlessly
    when the client's are. Keep this a little below Envoy's.

    `max_deadline_s`: how far ahead a deadline may lie; batch work of days sorts behind that of hours by it.
    """

    max_body_bytes: int = 16 * 1024 * 1024
    early_decision_bytes: int = 512 * 1024
    max_ttl_s: float = 3000.0
    max_deadline_s: float = 366 * 86_400.0
    max_fairness_id_bytes: int = 128
    max_headers: int = 96
    max_messages: int = 1_000_000

    def __post_init__(self) -> None:
        names = (
            "max_body_bytes",
            "early_decision_bytes",
            "max_ttl_s",
            "max_deadline_s",
            "max_fairness_id_bytes",
            "max_headers",
            "max_messages",
        )
        problems = [Problem(name, "must be positive") for name in names if getattr(self, name) <= 0]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTarget:
    model: str
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRewrite:
    """Requests for `model` are sent on as one of `targets`, drawn by weight."""

    model: str
    targets: tuple[RewriteTarget, ...]

    def __post_init__(self) -> None:
        problems = [
            Problem(f"targets[{index}].weight", "must be positive")
            for index, target in enumerate(self.targets)
            if target.weight <= 0
        ]
        problems += [
            Problem(f"targets[{index}].model", "must not be empty")
            for index, target in enumerate(self.targets)
            if not target.model
        ]
        if not self.model:
            problems.append(
                Problem("model", "must not be empty: a request without a model is `missing_model`")
            )
        if not self.targets:
            problems.append(Problem("targets", "must not be empty"))
        if problems:
            raise ConfigError(problems)


class CountMode(Enum):
    ESTIMATE = "estimate"
    """Bytes over a ratio learnt per model."""
    TOKENIZER = "tokenizer"
    """A local tokenizer file, read with the `tokenizers` package."""
    ENGINE = "engine"
    """The engine's own /tokenize."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """What a prompt costs. `bytes_per_token` is where the learnt ratio of each model starts.

    An image costs width x height / `pixels_per_image_token`, or `image_tokens` where its size can't be
    seen; the other media have fixed costs. In the exact modes a count that takes longer than `timeout_s`
    falls back to the estimate. `tokenizer_files` maps model names to tokenizer.json files.
    """

    mode: CountMode = CountMode.ESTIMATE
    bytes_per_token: float = 4.0
    learn_ratio: bool = True
    image_tokens: int = 225
    pixels_per_image_token: int = 1024
    max_image_tokens: int = 16384
    audio_tokens: int = 500
    video_tokens: int = 2048
    document_tokens: int = 2048
    tokenizer_files: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 0.4
    cache_entries: int = 1024

    def __post_init__(self) -> None:
        problems = []
        if not 0.1 <= self.bytes_per_token <= 64:
            problems.append(Problem("bytes_per_token", "must lie between 0.1 and 64"))
        for name in ("pixels_per_image_token", "timeout_s", "cache_entries"):
            if getattr(self, name) <= 0:
                problems.append(Problem(name, "must be positive"))
        for name in ("image_tokens", "max_image_tokens", "audio_tokens", "video_tokens", "document_tokens"):
            if not 0 <= getattr(self, name) <= MAX_COUNT:
                problems.append(Problem(name, f"must lie between 0 and {MAX_COUNT}"))
        if self.mode is CountMode.TOKENIZER and not self.tokenizer_files:
            problems.append(Problem("tokenizer_files", "mode `tokenizer` needs at least one file"))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationConfig:
    """Which responses are looked at chunk by chunk where Envoy keeps their bodies from us (lean mode).

    A share of `fraction` within about `max_chunks_per_s` of their chunks (each costs us a message, so long
    answers are watched less often), and every one while fewer than `all_below_per_s` requests arrive per
    second. Needs `allow_mode_override: true` in Envoy; without it Envoy ignores the request, at no harm.
    """

    fraction: float = 0.01
    all_below_per_s: float = 5.0
    max_chunks_per_s: float = 100.0
    max_captured_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.fraction <= 1:
            problems.append(Problem("fraction", "must lie between 0 and 1"))
        for name in ("all_below_per_s", "max_chunks_per_s"):
            if getattr(self, name) < 0:
                problems.append(Problem(name, "must not be negative"))
        if self.max_captured_bytes < 1024:
            problems.append(Problem("max_captured_bytes", "must be at least 1024"))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixConfig:
    """How finely prompts are compared for the prefix-cache scorer: blocks of `block_bytes` (256 bytes are
    about 64 tokens of English), at most `max_blocks` of one prompt; 0 blocks: not at all."""

    block_bytes: int = 256
    max_blocks: int = 512

    def __post_init__(self) -> None:
        problems = []
        if not 16 <= self.block_bytes <= 65_536:
            problems.append(Problem("block_bytes", "must lie between 16 and 65536"))
        if not 0 <= self.max_blocks <= 100_000:
            problems.append(Problem("max_blocks", "must lie between 0 and 100000"))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeConfig:
    """Everything about reading one request and answering it.

    `clear_route_cache` makes Envoy choose the route again after our headers are set. `trust_model_header`
    obeys the client's model-rewrite header. `missing_model` and `compressed_bodies` say what becomes of
    such bodies.
    """

    priority: PriorityConfig = field(default_factory=PriorityConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    tokens: TokenConfig = field(default_factory=TokenConfig)
    observation: ObservationConfig = field(default_factory=ObservationConfig)
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    model_rewrites: tuple[ModelRewrite, ...] = ()
    trust_model_header: bool = False
    restore_response_model: bool = True
    missing_model: Strictness = Strictness.REFUSE
    compressed_bodies: Strictness = Strictness.REFUSE
    unknown_paths: UnknownPath = UnknownPath.ADMIT
    clear_route_cache: bool = False
    strip_request_headers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        problems = []
        for index, rewrite in enumerate(self.model_rewrites):
            if rewrite.model in seen:
                problems.append(Problem(f"model_rewrites[{index}].model", "is listed twice"))
            seen.add(rewrite.model)
        for index, name in enumerate(self.strip_request_headers):
            if not _HEADER_NAME.fullmatch(name):
                problems.append(
                    Problem(f"strip_request_headers[{index}]", "must be a lower-case header name without ':'")
                )
        if problems:
            raise ConfigError(problems)
