"""Random event sequences against the whole controller; many more of them in `make test-all`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.machine import ControllerMachine

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def _play(sequences: int, steps: int) -> None:
    run_state_machine_as_test(
        ControllerMachine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=_CHECKS,
            database=None,
        ),
    )


def test_random_event_sequences() -> None:
    """Few, as a crowded machine must get through them as well."""
    _play(40, 40)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_random_event_sequences() -> None:
    _play(10_000, 40)
