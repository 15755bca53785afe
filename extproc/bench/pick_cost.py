"""What picking an endpoint costs: microseconds per pick, by picker and size of the pool.

One pick is everything that a dispatch asks of the picker: the pick itself with its fallbacks, the booking
that follows, and the later release. The requests belong to 200 families with a common prompt beginning of 64
blocks each, so the prefix index is in use. A heapq push + pop pair over as many entries is timed in the same
run.
"""

from __future__ import annotations

import gc
import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from extproc.bench.core_cost import Stopwatch
from extproc.core.picker import LeastInflightPickerConfig, PickerConfig, ProfilesPickerConfig, build_picker
from extproc.core.picker.choice import (
    ChoiceConfig,
    PowerOfTwoConfig,
    RandomConfig,
    RoundRobinConfig,
    WeightedRandomConfig,
)
from extproc.core.picker.profile import ProfileConfig
from extproc.core.picker.scorers import InflightScorerConfig, KvUsageScorerConfig, QueueScorerConfig
from extproc.core.pool import Candidates, EndpointState
from extproc.core.types import Endpoint, EndpointId, EndpointSample, Request, RequestId

_FAMILIES = 200
_BLOCKS = 64
_LIMIT = 32
_KV_TOKENS = 400_000


def _choosing(choice: ChoiceConfig) -> PickerConfig:
    return ProfilesPickerConfig(profiles=(ProfileConfig(choice=choice),))


PICKERS: dict[str, PickerConfig] = {
    "default": ProfilesPickerConfig(),
    "with 2 fallbacks": ProfilesPickerConfig(profiles=(ProfileConfig(max_endpoints=3),)),
    "least-inflight": LeastInflightPickerConfig(),
    "weighted-random": _choosing(WeightedRandomConfig()),
    "random": _choosing(RandomConfig()),
    "round-robin": _choosing(RoundRobinConfig()),
    "power-of-two": _choosing(PowerOfTwoConfig()),
    "scale: pool": ProfilesPickerConfig(
        profiles=(
            ProfileConfig(
                scorers=(
                    QueueScorerConfig(scale="pool"),
                    InflightScorerConfig(scale="pool"),
                    KvUsageScorerConfig(),
                )
            ),
        )
    ),
}
"""What is worth comparing; `scale: pool` looks at every candidate, the others don't."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickRow:
    """`pairs` is `pick_us` in heapq push + pop pairs of the same run."""

    picker: str
    endpoints: int
    pick_us: float
    pair_us: float

    @property
    def pairs(self) -> float:
        return self.pick_us / self.pair_us


class _Bench:
    """A pool under load, and picks that book as the controller does."""

    def __init__(self, config: PickerConfig, endpoints: int) -> None:
        self._rng = random.Random(1)
        self._picker = build_picker(config, self._rng)
        self._states = [self._open(number) for number in range(endpoints)]
        self._candidates = Candidates({state.id: state for state in self._states}, is_whole_pool=True)
        self._running: deque[EndpointState] = deque()
        self._requests: deque[Request] = deque()

    def _open(self, number: int) -> EndpointState:
        address = f"10.0.{number // 250}.{number % 250}:8000"
        state = EndpointState(Endpoint(id=EndpointId(address), name=address, address=address))
        state.sample = EndpointSample(
            endpoint_id=state.id,
            sampled_at=0.0,
            running_requests=3,
            waiting_requests=self._rng.randrange(4),
            kv_usage_fraction=self._rng.random(),
            kv_capacity_tokens=_KV_TOKENS,
        )
        state.requests = self._rng.randrange(_LIMIT - 2)
        self._picker.endpoint_changed(state)
        return state

    def prepare(self, count: int) -> None:
        """Make the next requests, which isn't the picker's work."""
        for number in range(count):
            first = self._rng.randrange(_FAMILIES) * _BLOCKS
            hashes = tuple(range(first, first + _BLOCKS))
            self._requests.append(Request(id=RequestId(number), prefix_hashes=hashes))

    def pick(self) -> None:
        """One dispatch, and the release of the oldest once the pool holds half of what it could."""
        request = self._requests.popleft()
        pick = self._picker.pick(request, self._candidates, lambda state: state.requests < _LIMIT, 0.0)
        assert pick is not None
        self._change(pick.endpoint, 1)
        self._picker.request_dispatched(request, pick.endpoint, 0.0)
        self._running.append(pick.endpoint)
        if len(self._running) > len(self._states):
            self._change(self._running.popleft(), -1)

    def _change(self, state: EndpointState, difference: int) -> None:
        state.requests += difference
        self._picker.endpoint_changed(state)


def measure_pick(
    clock: Stopwatch, *, picker: str = "default", endpoints: int = 1024, picks: int = 200, repeats: int = 15
) -> PickRow:
    """The least of several repeats: noise only adds."""
    bench = _Bench(PICKERS[picker], endpoints)
    bench.prepare(endpoints + picks * repeats)
    for _ in range(endpoints):
        bench.pick()
    return PickRow(
        picker=picker,
        endpoints=endpoints,
        pick_us=min(_time(bench.pick, picks, clock) for _ in range(repeats)),
        pair_us=_pair_us(clock, endpoints, repeats),
    )


def _pair_us(clock: Stopwatch, size: int, repeats: int) -> float:
    rng = random.Random(2)
    heap = [(rng.random(), number) for number in range(size)]
    heapq.heapify(heap)

    def pair() -> None:
        heapq.heappush(heap, (rng.random(), 0))
        heapq.heappop(heap)

    return min(_time(pair, 1000, clock) for _ in range(repeats))


def _time(action: Callable[[], None], count: int, clock: Stopwatch) -> float:
    gc.collect()
    gc.disable()
    try:
        started = clock.now()
        for _ in range(count):
            action()
        return (clock.now() - started) * 1e6 / count
    finally:
        gc.enable()
