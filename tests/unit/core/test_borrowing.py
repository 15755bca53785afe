"""A request waits a moment for what other replicas have free, where evicting would cost the pool more."""

from __future__ import annotations

import pytest

from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import CapacityLeased, OutputObserved
from extproc.core.eviction import EvictionConfig
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.types import RequestId
from tests.support.core import Script, endpoint

SLOTS, KV_TOKENS = 16, 200_000
LONG, SHORT = 8_000, 500
WAIT_S = 0.025


def leased_script(slots: int = 1, *, wait_s: float = WAIT_S) -> Script:
    """One endpoint of which this replica has so many slots."""
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=SLOTS, kv_tokens=KV_TOKENS),
        pacing=PrefillPacingConfig(enabled=False),
        eviction=EvictionConfig(enabled=True, borrow_wait_s=wait_s),
    )
    script = Script(config, is_leased=True)
    lease(script, slots)
    return script


def lease(script: Script, slots: int) -> None:
    script.send(CapacityLeased(endpoint("e0").id, slots, None))


def test_a_long_answer_is_not_evicted_when_a_place_comes_in_time() -> None:
    script = leased_script()
    batch = script.arrive(-1, prompt_tokens=LONG)
    urgent = script.arrive(10, prompt_tokens=SHORT)
    assert script.dispatched() == [batch]
    lease(script, 2)
    assert script.dispatched() == [batch, urgent]
    assert script.revoked() == []


def test_it_is_evicted_when_none_has_come() -> None:
    script = leased_script()
    batch = script.arrive(-1, prompt_tokens=LONG)
    urgent = script.arrive(10, prompt_tokens=SHORT)
    assert script.controller.next_wakeup() == pytest.approx(script.now + WAIT_S)
    script.advance(WAIT_S - 0.001)
    assert script.revoked() == []
    script.advance(0.001)
    assert script.revoked() == [batch]
    assert urgent in script.dispatched()


@pytest.mark.parametrize(
    ("prompt_tokens", "slots", "wait_s"),
    [(SHORT, 1, WAIT_S), (LONG, SLOTS, WAIT_S), (LONG, 1, 0.0)],
    ids=["short-work", "nobody-shares", "switched-off"],
)
def test_where_waiting_would_not_pay_it_is_evicted_at_once(
    prompt_tokens: int, slots: int, wait_s: float
) -> None:
    script = leased_script(slots, wait_s=wait_s)
    batch: list[RequestId] = [script.arrive(-1, prompt_tokens=prompt_tokens) for _ in range(slots)]
    urgent = script.arrive(10, prompt_tokens=SHORT)
    assert set(script.revoked()) <= set(batch)
    assert script.revoked()
    assert urgent in script.dispatched()


def test_output_counts_as_work_that_would_be_lost() -> None:
    script = leased_script()
    batch = script.arrive(-1, prompt_tokens=SHORT)
    script.send(OutputObserved(batch, LONG))
    script.arrive(10, prompt_tokens=SHORT)
    assert script.revoked() == []
