"""The closer look at a controller: flows, ages, and who occupies which endpoint."""

from __future__ import annotations

from extproc.core.band import BandConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import EndpointHealthChanged
from extproc.core.types import FairnessId
from tests.support.core import Script, endpoint


def test_occupants_and_queues_are_told_by_priority_and_flow() -> None:
    config = FlowControlConfig(
        detector=ConcurrencyDetectorConfig(max_concurrency=2), bands=(BandConfig(priority=5, max_requests=7),)
    )
    script = Script(config)
    for priority, tokens in ((-1, 50), (5, 100)):
        script.arrive(priority, prompt_tokens=tokens)
    script.arrive(5, "a")
    script.advance(3)
    script.arrive(5, "a")
    last = script.arrive(5, "b")
    seen = script.controller.inspect(script.now + 1)
    (place,) = seen.endpoints
    assert place.by_priority == {5: 1, -1: 1}
    assert place.tokens_by_priority == {5: 100, -1: 50}
    assert (place.name, place.condition, place.sample_age_s) == ("e0", "ready", None)
    band = seen.bands[0]
    assert (band.priority, band.max_requests, band.oldest_queued_s) == (5, 7, 4.0)
    assert band.flows == {FairnessId("a"): 2, FairnessId("b"): 1}
    script.cancel(last)
    assert script.controller.inspect(script.now).bands[0].flows == {FairnessId("a"): 2}


def test_conditions_and_samples_of_endpoints() -> None:
    script = Script(endpoints=0)
    well, ill, leaving = endpoint("well"), endpoint("ill"), endpoint("leaving", is_draining=True)
    for item in (well, ill, leaving):
        script.add(item)
    script.send(EndpointHealthChanged(ill.id, is_healthy=False))
    script.sample(well, running_requests=3)
    seen = {item.name: item for item in script.controller.inspect(script.now + 2).endpoints}
    assert {name: item.condition for name, item in seen.items()} == {
        "well": "ready",
        "ill": "unhealthy",
        "leaving": "draining",
    }
    sample = seen["well"].sample
    assert sample is not None
    assert (sample.running_requests, seen["well"].sample_age_s) == (3, 2.0)


def test_requests_on_a_removed_endpoint_are_still_told() -> None:
    script = Script(endpoints=0)
    gone = endpoint("gone")
    script.add(gone)
    running = script.arrive(3, prompt_tokens=9)
    script.drop(gone)
    seen = script.controller.inspect(script.now)
    assert (seen.endpoints, seen.departed, seen.departed_tokens) == ((), {3: 1}, {3: 9})
    script.finish(running)
    assert script.controller.inspect(script.now).departed == {}
