"""What the capacity detector believes of one endpoint: its capacities, its load, and what samples taught."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, Protocol

from extproc.core.ceiling import TOLERANCE, Ceiling
from extproc.core.footprint import Footprint
from extproc.core.pool import EndpointState
from extproc.core.types import EndpointSample

UNKNOWN_KV_TOKENS = 1e12
"""Stands for "no limit known"; finite, so that sums stay meaningful."""

_FOREIGN_SAMPLES = 3
_FREE_KV_FRACTION = 0.9
_PROBE_AFTER_S = 10.0
_RATE_WEIGHT = 0.05
_COMPARABLE_FRACTION = 0.02


class CapacityParameters(Protocol):
    """The part of the detector's config that concerns one endpoint."""

    @property
    def max_num_seqs(self) -> int | None: ...
    @property
    def assumed_max_num_seqs(self) -> int: ...
    @property
    def kv_tokens(self) -> int | Literal["auto"]: ...
    @property
    def kv_overcommit(self) -> float: ...
    @property
    def min_correction(self) -> float: ...
    @property
    def max_correction(self) -> float: ...
    @property
    def correction_memory_s(self) -> float: ...


Row = tuple[float, float, float, float, float, float]
"""What an endpoint adds to the pool's sums: used, capacity, revoked, each slots and KV tokens."""

NO_LOAD: Row = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class EndpointModel:
    """Usage and capacity of one endpoint; `refresh` after every change of its state."""

    __slots__ = (
        "_config",
        "_corrected_at",
        "_decode_rate",
        "_endpoint",
        "_foreign",
        "_last_sample",
        "_learnt_slots",
        "_probed_at",
        "correction",
        "foreign_kv",
        "foreign_slots",
        "kv_ratio",
        "kv_tokens",
        "kv_used",
        "row",
        "slots",
        "slots_ratio",
        "slots_used",
    )

    def __init__(self, config: CapacityParameters, endpoint: EndpointState) -> None:
        self._config = config
        self._endpoint = endpoint
        self._foreign: deque[tuple[int, float]] = deque(maxlen=_FOREIGN_SAMPLES)
        self._last_sample: EndpointSample | None = None
        self._learnt_slots: int | None = None
        self._probed_at = float("-inf")
        self._corrected_at: float | None = None
        self._decode_rate: float | None = None
        self.correction = 1.0
        self.foreign_slots = 0
        self.foreign_kv = 0.0
        self.slots = self.kv_tokens = 1.0
        self.slots_used = self.kv_used = 0.0
        self.slots_ratio = self.kv_ratio = 0.0
        self.row: Row = NO_LOAD

    def refresh(self) -> None:
        endpoint = self._endpoint
        self.slots, self.kv_tokens = self._slots(), self._kv_tokens()
        self.slots_used = endpoint.requests + self.foreign_slots
        self.kv_used = self.correction * endpoint.kv_tokens + self.foreign_kv
        self.slots_ratio = ratio(self.slots_used, self.slots)
        self.kv_ratio = ratio(self.kv_used, self.kv_tokens)
        revoked_kv = self.correction * endpoint.revoked_kv_tokens
        used, revoked = (self.slots_used, self.kv_used), (endpoint.revoked_requests, revoked_kv)
        self.row = (*used, self.slots, self.kv_tokens, *revoked)

    def takes(self, footprint: Footprint, ceiling: Ceiling, promised: Footprint | None) -> bool:
        """Whether one more request of this footprint stays within the ceiling."""
        slots_used, kv_used = self.slots_used, self.kv_used
        if promised is not None:
            endpoint = self._endpoint
            slots_used -= endpoint.revoked_requests + promised.requests
            kv_used -= self.correction * (endpoint.revoked_kv_tokens + promised.kv_tokens)
        if slots_used <= 0 and self.slots >= 1 and self.kv_tokens >= 1 and not self._is_partly_leased:
            return True
        slots_free = ceiling.requests * self.slots - slots_used
        kv_free = ceiling.tokens * self.kv_tokens - kv_used
        needed_kv = self.correction * footprint.kv_tokens
        return footprint.requests <= slots_free + TOLERANCE and needed_kv <= kv_free + TOLERANCE

    def learn_decode_rate(self, output_tokens: int, seconds: float) -> None:
        """Tokens per second of one request, from a completed one."""
        if seconds <= 0:
            return
        rate = output_tokens / seconds
        old = self._decode_rate
        self._decode_rate = rate if old is None else old + _RATE_WEIGHT * (rate - old)

    def learn_from_sample(self, now: float) -> None:
        """Foreign load, KV correction and slots from the endpoint's newest sample."""
        sample = self._endpoint.sample
        if sample is None or sample is self._last_sample:
            return
        if self._endpoint.leased_slots is None:
            # Samples of an endpoint that is shared by leases show the other replicas' load too.
            self._learn_foreign(sample)
            self._learn_correction(sample)
        self._learn_slots(sample)
        self._last_sample = sample

    def _learn_foreign(self, sample: EndpointSample) -> None:
        if sample.running_requests is None:
            return
        endpoint = self._endpoint
        unknown = max(0, sample.running_requests + (sample.waiting_requests or 0) - endpoint.requests)
        measured_kv = self._measured_kv(sample)
        unknown_kv = max(0.0, (measured_kv or 0.0) - self.correction * endpoint.kv_tokens)
        self._foreign.append((unknown, unknown_kv))
        if len(self._foreign) == _FOREIGN_SAMPLES:
            self.foreign_slots = min(requests for requests, _ in self._foreign)
            self.foreign_kv = min(kv for _, kv in self._foreign) if self.foreign_slots else 0.0

    def _learn_correction(self, sample: EndpointSample) -> None:
        """Compares measured KV with what the ledger predicts for the same instant."""
        before, self._corrected_at = self._corrected_at, sample.sampled_at
        measured = self._measured_kv(sample)
        predicted = self._predicted_kv(sample.sampled_at)
        if before is None or measured is None or predicted is None or sample.waiting_requests:
            return
        if self.foreign_slots or predicted < _COMPARABLE_FRACTION * self.kv_tokens:
            return
        config = self._config
        weight = -math.expm1(-max(0.0, sample.sampled_at - before) / config.correction_memory_s)
        seen = min(2.0, max(0.5, measured / predicted))
        correction = self.correction + weight * (seen - self.correction)
        self.correction = min(config.max_correction, max(config.min_correction, correction))

    def _predicted_kv(self, at: float) -> float | None:
        """Tokens the in-flight requests should hold at that time: prompts, and outputs grown so far."""
        endpoint = self._endpoint
        if self._decode_rate is None or endpoint.requests == 0 or endpoint.last_dispatch_at > at:
            return None
        grown = self._decode_rate * max(0.0, endpoint.requests * at - endpoint.dispatch_times)
        expected_output = max(0, endpoint.kv_tokens - endpoint.prompt_tokens)
        return endpoint.prompt_tokens + min(grown, expected_output)

    def _learn_slots(self, sample: EndpointSample) -> None:
        """`max_num_seqs` isn't exported: it shows when requests wait beside free KV, at a steady count."""
        last, running = self._last_sample, sample.running_requests
        if self._config.max_num_seqs is not None or running is None or last is None:
            return
        is_kv_free = (sample.kv_usage_fraction or 0.0) < _FREE_KV_FRACTION
        is_stuck = bool(sample.waiting_requests and last.waiting_requests)
        if is_stuck and is_kv_free and running == last.running_requests and running > 0:
            self._learnt_slots = max(self._learnt_slots or 0, running)
            self._probed_at = sample.sampled_at
            return
        is_due = sample.sampled_at - self._probed_at >= _PROBE_AFTER_S
        learnt = self._learnt_slots
        if learnt is not None and running >= learnt and not sample.waiting_requests and is_due:
            self._learnt_slots = learnt + 1
            self._probed_at = sample.sampled_at

    def _measured_kv(self, sample: EndpointSample) -> float | None:
        if sample.kv_usage_fraction is None or sample.kv_capacity_tokens is None:
            return None
        return sample.kv_usage_fraction * sample.kv_capacity_tokens

    @property
    def _is_partly_leased(self) -> bool:
        """Idle for us need not mean idle: other replicas may use the rest."""
        leased = self._endpoint.leased_kv_tokens
        return leased is not None and leased < self.whole_kv_tokens

    @property
    def whole_slots(self) -> float:
        """Sequence slots of the endpoint, whatever part of them is leased to us."""
        slots = self._endpoint.endpoint.max_requests or self._config.max_num_seqs or self._learnt_slots
        return slots or self._config.assumed_max_num_seqs

    def _slots(self) -> float:
        slots, leased = self.whole_slots, self._endpoint.leased_slots
        return slots if leased is None else min(slots, leased)

    @property
    def whole_kv_tokens(self) -> float:
        """KV tokens of the endpoint, whatever part of them is leased to us."""
        endpoint, config = self._endpoint, self._config
        kv_tokens: float = UNKNOWN_KV_TOKENS
        if endpoint.endpoint.max_tokens is not None:
            kv_tokens = endpoint.endpoint.max_tokens
        elif config.kv_tokens != "auto":
            kv_tokens = config.kv_tokens
        elif endpoint.sample is not None and endpoint.sample.kv_capacity_tokens is not None:
            kv_tokens = endpoint.sample.kv_capacity_tokens
        if kv_tokens != UNKNOWN_KV_TOKENS:
            kv_tokens *= config.kv_overcommit
        return kv_tokens

    def _kv_tokens(self) -> float:
        kv_tokens, leased = self.whole_kv_tokens, self._endpoint.leased_kv_tokens
        return kv_tokens if leased is None else min(kv_tokens, leased)


def ratio(used: float, capacity: float) -> float:
    """Used over capacity; without capacity everything is full."""
    return used / capacity if capacity > 0 else 1.0
