"""From a body and its headers to the request that flow control is asked to admit, or to a refusal.

Also says how the body must change on its way to the engine (model rewritten, priority translated). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from extproc.core.types import Request, RequestId
from extproc.exchange.attributes import HeaderHints, resolve_priority
from extproc.exchange.refusals import Refusal, refuse_malformed
from extproc.exchange.settings import (
    EnginePriority,
    ExchangeConfig,
    ModelRewrite,
    PriorityConfig,
    RewriteTarget,
    Strictness,
)
from extproc.exchange.tokens import TokenEstimator
from extproc.formats.openai import ApiKind, BodyProblem, ParsedBody, parse_body
from extproc.formats.prefix import prefix_hashes
from extproc.formats.prompt import EMPTY, PromptSize
from extproc.formats.splice import is_too_fine, splice_members


class Admission(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request ready to be submitted. `changes` are edits of the body's top-level members (None: remove)."""

    request: Request
    client_model: str
    changes: Mapping[str, bytes | None]
    prompt: PromptSize = EMPTY

    def with_prompt_tokens(self, tokens: int) -> Admission:
        return replace(self, request=replace(self.request, prompt_tokens=tokens))


_NO_CHANGES: Mapping[str, bytes | None] = {}


class Admitter:
    """Builds admissions; one per process. `draw` gives numbers from 0 to 1 for weighted rewrites."""

    def __init__(self, config: ExchangeConfig, estimator: TokenEstimator, draw: Callable[[], float]) -> None:
        self._config = config
        self._estimator = estimator
        self._draw = draw
        self._rewrites: dict[str, ModelRewrite] = {rule.model: rule for rule in config.model_rewrites}

    def admit_json(
        self,
        request_id: RequestId,
        kind: ApiKind,
        body: bytes,
        hints: HeaderHints,
        subset: frozenset[str] | None,
    ) -> Admission | Refusal:
        """Read a JSON body of a known API."""
        parsed = parse_body(kind, body)
        if isinstance(parsed, BodyProblem):
            return refuse_malformed(parsed.message, parsed.field)
        if parsed.model is None and self._config.missing_model is Strictness.REFUSE:
            return refuse_malformed("model is required", "model")
        client_model = parsed.model or ""
        model = self._target_model(client_model, hints)
        priority = resolve_priority(self._config.priority, hints, parsed.priority, client_model)
        if priority is None:
            return _refuse_priority(self._config.priority)
        request = Request(
            id=request_id,
            priority=priority,
            fairness_id=hints.fairness_id,
            model=model,
            prompt_tokens=self._estimator.estimate(model, parsed.prompt),
            expected_output_tokens=hints.expected_output_tokens,
            max_output_tokens=_output_limit(parsed),
            size_bytes=len(body),
            ttl_s=hints.ttl_s,
            deadline_s=hints.deadline_s,
            ttft_target_s=hints.ttft_target_s,
            endpoint_subset=subset,
            session_id=hints.session_id,
            prefix_hashes=self._prefix_hashes(model, parsed),
            is_resumable=hints.is_resumable,
            is_streaming=parsed.is_streaming,
        )
        changes = self._changes(parsed, model)
        if changes and is_too_fine(body):
            return _refuse_change(changes)
        return Admission(request=request, client_model=client_model, changes=changes, prompt=parsed.prompt)

    def admit_unread(
        self,
        request_id: RequestId,
        size_bytes: int,
        is_text: bool,
        hints: HeaderHints,
        subset: frozenset[str] | None,
    ) -> Admission:
        """A body that is not read (unknown path, other media type, or not seen in time): cost by its size."""
        estimator = self._estimator
        tokens = (
            estimator.estimate("", PromptSize(size_bytes, 1))
            if is_text
            else estimator.estimate_opaque(size_bytes)
        )
        priority = resolve_priority(self._config.priority, hints, None, "")
        assert priority is not None  # only a body's own priority can be refused
        request = Request(
            id=request_id,
            priority=priority,
            fairness_id=hints.fairness_id,
            prompt_tokens=tokens,
            expected_output_tokens=hints.expected_output_tokens,
            size_bytes=size_bytes,
            ttl_s=hints.ttl_s,
            deadline_s=hints.deadline_s,
            ttft_target_s=hints.ttft_target_s,
            endpoint_subset=subset,
            session_id=hints.session_id,
            is_resumable=hints.is_resumable,
        )
        return Admission(request=request, client_model="", changes=_NO_CHANGES)

    def _prefix_hashes(self, model: str, parsed: ParsedBody) -> tuple[int, ...]:
        config = self._config.prefix
        if not config.max_blocks:
            return ()
        seed = f"{model}|{parsed.cache_salt}"
        return prefix_hashes(
            seed, map(memoryview, parsed.prompt_parts), config.block_bytes, config.max_blocks
        )

    def _target_model(self, client_model: str, hints: HeaderHints) -> str:
        """A rule beats the (trusted) header, which beats the body."""
        rule = self._rewrites.get(client_model)
        if rule is not None:
            return _draw_target(rule.targets, self._draw).model
        return hints.model_rewrite or client_model

    def _changes(self, parsed: ParsedBody, model: str) -> Mapping[str, bytes | None]:
        changes: dict[str, bytes | None] = {}
        if model != (parsed.model or "") and parsed.model is not None:
            changes["model"] = msgspec.json.encode(model)
        if parsed.priority is not None:
            match self._config.priority.engine:
                case EnginePriority.REMOVE:
                    changes["priority"] = None
                case EnginePriority.NEGATE:
                    changes["priority"] = str(-parsed.priority).encode()
                case EnginePriority.KEEP:
                    pass
        return changes or _NO_CHANGES


def apply_changes(body: bytes, changes: Mapping[str, bytes | None]) -> bytes | None:
    """The edited body, or None when nothing changes."""
    if not changes:
        return None
    edited = splice_members(body, changes)
    return None if edited == body else edited


def _refuse_priority(allowed: PriorityConfig) -> Refusal:
    message = f"priority must lie between {allowed.minimum} and {allowed.maximum}"
    return refuse_malformed(message, "priority")


def _refuse_change(changes: Mapping[str, bytes | None]) -> Refusal:
    message = f"the body has too many JSON values for its {' and '.join(changes)} to be changed"
    return refuse_malformed(message, next(iter(changes)))


def _output_limit(parsed: ParsedBody) -> int | None:
    """The client's limit over all choices it asks for."""
    return None if parsed.max_output_tokens is None else parsed.max_output_tokens * parsed.choices


def _draw_target(targets: tuple[RewriteTarget, ...], draw: Callable[[], float]) -> RewriteTarget:
    if len(targets) == 1:
        return targets[0]
    point = draw() * sum(target.weight for target in targets)
    for target in targets:
        point -= target.weight
        if point < 0:
            return target
    return targets[-1]
