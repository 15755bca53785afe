"""The traffic of seed 000: batch jobs that resume, and interactive requests beside them, in both settings."""

from __future__ import annotations

from collections.abc import Callable

from extproc.bench.arms import BATCH_PRIORITY, INTERACTIVE_PRIORITY
from extproc.bench.suite import Load, Setting
from extproc.workload.arrivals import Bursts, OpenArrivals, Poisson, Uniform
from extproc.workload.lengths import Fixed, Lengths, UniformLength
from extproc.workload.traffic import AfterEviction, TrafficClass

COMPLETION_WINDOW_S = 86_400.0
"""What the OpenAI Batch API promises."""

ArrivalsFrom = Callable[[float], OpenArrivals]


def varied(tokens: int, setting: Setting) -> Lengths:
    """Exactly `tokens` in the wave setting, 0.5 to 1.5 times it in steady state."""
    if setting is Setting.WAVE:
        return Fixed(tokens=tokens)
    return UniformLength(low=tokens // 2, high=tokens + tokens // 2)


def batch(
    setting: Setting,
    *,
    requests: int,
    prompt: int,
    output: int,
    name: str = "batch",
    deadline_s: float = COMPLETION_WINDOW_S,
    start_s: float = 0.5,
) -> TrafficClass:
    """Offline work, all of it submitted at once, when the gateway has scraped its endpoints.

    Requests follow each other by a millisecond and so do their deadlines: where the gateway orders by
    deadline, an evicted request goes back to its own place, not behind the work that came after it.
    """
    return TrafficClass(
        name=name,
        priority=BATCH_PRIORITY,
        fairness_ids=(name,),
        arrivals=Uniform(rate_per_s=1000.0, start_s=start_s, end_s=start_s + requests / 1000.0),
        prompt=Fixed(tokens=prompt),
        output=varied(output, setting),
        deadline_s=deadline_s,
        after_eviction=AfterEviction.RESUME,
    )


def interactive(
    arrivals: OpenArrivals, *, prompt: int, output: int, limit: int | None = None
) -> TrafficClass:
    """Users waiting for their first token; `limit` is the max_tokens that they state."""
    return TrafficClass(
        name="interactive",
        priority=INTERACTIVE_PRIORITY,
        fairness_ids=("interactive",),
        arrivals=arrivals,
        prompt=Fixed(tokens=prompt),
        output=Fixed(tokens=output),
        max_output_tokens=limit,
    )


def steady(rate_per_s: float, seconds: float) -> ArrivalsFrom:
    """Poisson arrivals for `seconds` from the start that the setting gives."""
    return lambda start: Poisson(rate_per_s=rate_per_s, start_s=start, end_s=start + seconds)


def bursts(size: int, every_s: float, count: int) -> ArrivalsFrom:
    """Bursts from the start that the setting gives."""
    return lambda start: Bursts(size=size, every_s=every_s, count=count, start_s=start)


def mixed_load(
    name: str,
    arrivals: ArrivalsFrom,
    *,
    starts_s: tuple[float, float],
    horizon_s: float,
    offline: Callable[[Setting], tuple[TrafficClass, ...]],
    prompt: int,
    output: int,
    limit: int | None = None,
    is_steady: bool = True,
    exceeds_slots: bool = False,
) -> Load:
    """A load of seed 000's shape. `starts_s`: first interactive arrival with the wave, and in steady
    state.
    """

    def traffic(setting: Setting) -> tuple[TrafficClass, ...]:
        start = starts_s[0] if setting is Setting.WAVE else starts_s[1]
        online = interactive(arrivals(start), prompt=prompt, output=output, limit=limit)
        return (online, *offline(setting))

    return Load(
        name=name,
        traffic=traffic,
        horizon_s=horizon_s,
        is_steady=is_steady,
        exceeds_slots=exceeds_slots,
    )
