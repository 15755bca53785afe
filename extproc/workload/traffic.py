"""Classes of traffic and the requests planned from them; the driver (simulator or load generator) sends them.

A class says who sends (priority, fairness id), when (arrivals), how much (lengths), what it promises its
users (TTFT target, deadline), and what its client does with an evicted request. Plans are deterministic:
the same classes and seed give the same rows in every arm.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from extproc.workload.arrivals import Arrivals, ClosedLoop
from extproc.workload.lengths import Fixed, Lengths
from extproc.workload.rng import random_stream


class AfterEviction(Enum):
    """What a client does when its request was evicted."""

    FAIL = "fail"
    """Gives up; the request counts as evicted."""
    RESUME = "resume"
    """Sends the saved tokens again at once and continues behind them (the batch worker)."""
    RESTART = "restart"
    """Starts from the first token again, after an exponential back-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """One kind of sender. `deadline_s` and `ttft_target_s` count from the arrival; priority: higher first.

    `max_output_tokens` is what the client allows (None: exactly the drawn output length, as with
    `ignore_eos`). `shared_prefix_tokens` are common to every request of one of `prefix_groups` groups, for
    prefix caches.
    """

    name: str
    arrivals: Arrivals
    prompt: Lengths = field(default_factory=lambda: Fixed(tokens=32))
    output: Lengths = field(default_factory=lambda: Fixed(tokens=128))
    priority: int = 0
    fairness_ids: tuple[str, ...] = ("default-flow",)
    max_output_tokens: int | None = None
    ttl_s: float | None = None
    deadline_s: float | None = None
    ttft_target_s: float | None = None
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1
    after_eviction: AfterEviction = AfterEviction.FAIL
    streams: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request to be sent at `at_s` seconds into the run (closed loops: the earliest time it may start).

    `deadline_s` is absolute on the run's clock; `prefix_group` is None when the prompt shares nothing.
    """

    index: int
    at_s: float
    traffic_class: str
    priority: int
    fairness_id: str
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int
    ttl_s: float | None = None
    deadline_s: float | None = None
    ttft_target_s: float | None = None
    prefix_group: str | None = None
    prefix_tokens: int = 0
    after_eviction: AfterEviction = AfterEviction.FAIL
    streams: bool = True


def plan_class(traffic: TrafficClass, seed: int) -> Iterator[PlannedRequest]:
    """The rows of one class in order of time; for a closed loop all rows carry its `start_s`, unbounded
    at need.
    """
    arrivals = traffic.arrivals
    lengths = random_stream(seed, f"{traffic.name}/lengths")
    if isinstance(arrivals, ClosedLoop):
        limit = arrivals.requests
        index = 0
        while limit is None or index < limit:
            yield _row(traffic, index, arrivals.start_s, lengths)
            index += 1
        return
    for index, at in enumerate(arrivals.times(random_stream(seed, f"{traffic.name}/arrivals"))):
        yield _row(traffic, index, at, lengths)


def plan_open(classes: Sequence[TrafficClass], seed: int) -> Iterator[PlannedRequest]:
    """The rows of all open-loop classes merged by time, lazily; `index` counts within the class."""
    parts = [plan_class(each, seed) for each in classes if not isinstance(each.arrivals, ClosedLoop)]
    yield from heapq.merge(*parts, key=lambda row: row.at_s)


def _row(traffic: TrafficClass, index: int, at: float, rng: Random) -> PlannedRequest:
    prompt_tokens = traffic.prompt.draw(rng)
    output_tokens = traffic.output.draw(rng)
    fairness_id = rng.choice(traffic.fairness_ids)
    group = rng.randrange(traffic.prefix_groups)
    limit = traffic.max_output_tokens
    return PlannedRequest(
        index=index,
        at_s=at,
        traffic_class=traffic.name,
        priority=traffic.priority,
        fairness_id=fairness_id,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens if limit is None else min(limit, output_tokens),
        max_output_tokens=output_tokens if limit is None else limit,
        ttl_s=traffic.ttl_s,
        deadline_s=None if traffic.deadline_s is None else at + traffic.deadline_s,
        ttft_target_s=traffic.ttft_target_s,
        prefix_group=f"{traffic.name}/{group}" if traffic.shared_prefix_tokens else None,
        prefix_tokens=min(traffic.shared_prefix_tokens, prompt_tokens),
        after_eviction=traffic.after_eviction,
        streams=traffic.streams,
    )
