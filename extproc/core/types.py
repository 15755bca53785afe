"""The frozen values that the policy core talks about; no behaviour, no clock, no I/O.

What is made for every request is a `msgspec.Struct`: six times cheaper to make than a frozen dataclass, and
invisible to the cycle collector.

Times are monotonic seconds (`now` of the caller), durations end in `_s`, counts of tokens in `_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType

import msgspec

RequestId = NewType("RequestId", int)
"""One per ext_proc stream, made by us; never the client's x-request-id, which may repeat."""

EndpointId = NewType("EndpointId", str)
"""`name|address|start`: a replaced server at the same address is another endpoint."""

FairnessId = NewType("FairnessId", str)

DEFAULT_FAIRNESS_ID = FairnessId("default-flow")

NO_LABELS: Mapping[str, str] = {}


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the core knows of a request before it is dispatched. Higher `priority` is more important.

    `deadline_s` is absolute on the core's clock; `ttl_s` and `ttft_target_s` count from the arrival.
    `expected_output_tokens` is what the caller knows (None: the core estimates), `max_output_tokens` the
    client's own limit. `endpoint_subset` holds `ip:port` addresses (None: the whole pool). `prefix_hashes`
    chains block hashes of the prompt, first block first.
    """

    id: RequestId
    priority: int = 0
    fairness_id: FairnessId = DEFAULT_FAIRNESS_ID
    model: str = ""
    prompt_tokens: int = 0
    expected_output_tokens: int | None = None
    max_output_tokens: int | None = None
    size_bytes: int = 0
    ttl_s: float | None = None
    deadline_s: float | None = None
    ttft_target_s: float | None = None
    endpoint_subset: frozenset[str] | None = None
    lora: str | None = None
    session_id: str | None = None
    prefix_hashes: tuple[int, ...] = ()
    is_resumable: bool = False
    is_streaming: bool = False


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One model server. `address` is `ip:port`, what Envoy is told.

    The `max_*` fields override the detector's configured capacity for this endpoint (None: the default).
    """

    id: EndpointId
    name: str
    address: str
    labels: Mapping[str, str] = msgspec.field(default_factory=lambda: NO_LABELS)
    max_requests: int | None = None
    max_tokens: int | None = None
    is_draining: bool = False


class EndpointSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One measurement of an endpoint (None: the engine did not report it).

    `sampled_at` is when the measurement was asked for, so that a dispatch after it is never hidden by it.
    `kv_usage_fraction` runs from 0 to 1; `kv_capacity_tokens` is what is usable: (blocks - 1) x block size.
    """

    endpoint_id: EndpointId
    sampled_at: float
    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_usage_fraction: float | None = None
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int | None = None
    max_model_len: int | None = None
    preemptions_total: int | None = None
    prompt_tokens_total: int | None = None
    models: frozenset[str] | None = None
    running_loras: frozenset[str] | None = None
    waiting_loras: frozenset[str] | None = None
    max_loras: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Token counts of a finished (or cut) answer, as far as they were seen."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
