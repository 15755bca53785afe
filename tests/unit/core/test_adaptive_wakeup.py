"""The adaptive reserve asks to be woken only for what a wake-up can change."""

from __future__ import annotations

from extproc.core.adaptive import AdaptiveHoldbackConfig
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import TimerFired
from tests.support.core import Script


def test_a_band_that_nobody_serves_never_makes_the_controller_ask_for_now() -> None:
    """Statistics ask for the ceiling of the idle band 0 too; no pass ever gets down to it again."""
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=8, kv_tokens=1_000_000),
        ceilings=AdaptiveHoldbackConfig(),
        default_ttl_s=None,
    )
    script = Script(config)
    first = [script.arrive(priority=10, prompt_tokens=64) for _ in range(4)]
    for _ in range(12):
        script.arrive(priority=-1, prompt_tokens=64)
    script.controller.statistics()
    script.advance(60.0)
    for request_id in first[:2]:
        script.finish(request_id)
    script.controller.statistics()
    script.arrive(priority=10, prompt_tokens=64)
    for _ in range(4):
        wakeup = script.controller.next_wakeup()
        assert wakeup is None or wakeup > script.now
        if wakeup is None:
            return
        script.now = wakeup
        script.send(TimerFired())
