"""How long one allocation takes on a large group: every replica has work in flight and waiting everywhere."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from random import Random

from extproc.core.credits import BandUse, Credits, Grant, ReplicaDemand, Report, Waiting
from extproc.core.leasing import next_grants

_SLOTS = 128
_KV_TOKENS = 400_000
_FOOTPRINT = 2_000


def measure_allocation(replicas: int, endpoints: int, rounds: int, now: Callable[[], float]) -> float:
    """Median time of a round in seconds of `now`, over rounds of changing demand: every grant changes."""
    # As the server runs: the cycle collector comes rarely, and doesn't look at what was there at the start.
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        return _median_round_s(replicas, endpoints, rounds, now)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _median_round_s(replicas: int, endpoints: int, rounds: int, now: Callable[[], float]) -> float:
    rng = Random(1)
    addresses = [f"10.0.{number // 256}.{number % 256}:8000" for number in range(endpoints)]
    capacity = {address: Credits(_SLOTS, _KV_TOKENS) for address in addresses}
    grants: dict[str, Grant] = {}
    times = []
    for _ in range(rounds + 1):
        reports = {
            f"replica-{index}": _report(rng, addresses, replicas, grants.get(f"replica-{index}", Grant()))
            for index in range(replicas)
        }
        started = now()
        found = next_grants(capacity, reports, grants)
        times.append(now() - started)
        grants.update(found.grants)
    return statistics.median(times[1:])  # the first one pays for imports


def _report(rng: Random, addresses: list[str], replicas: int, grant: Grant) -> Report:
    most = _SLOTS // replicas
    in_use = {}
    for priority in (10, 0, -1):
        slots = [rng.randrange(most // 3 + 1) for _ in addresses]
        in_use[priority] = BandUse(slots, [count * _FOOTPRINT for count in slots])
    waiting = [Waiting(p, n := rng.randrange(200), n * _FOOTPRINT) for p in (10, -1)]
    demand = ReplicaDemand(addresses=addresses, in_use=in_use, waiting=waiting)
    return Report(grant_sequence=grant.sequence, demand=demand)
