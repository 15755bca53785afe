"""The answer on the page says what was kept."""

from __future__ import annotations

from extproc.bench.idle_reuse.arms import BARE, IDLE_ARMS, SHIPPED
from extproc.bench.idle_reuse.measured import emulated_figures, real_figures
from extproc.bench.idle_reuse.prose import one_503


def test_every_arm_stands_in_the_table_with_both_servers() -> None:
    emulated, real = emulated_figures(), real_figures()
    text = one_503(emulated, real, refused=0, sent=1000)
    for arm in IDLE_ARMS:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {arm.name} |")]
        for kept in (emulated, real):
            assert f"{kept['arms'][arm.name]['failed']} of {kept['arms'][arm.name]['probes']:,} (" in row
    for each in emulated["suspects"]:
        assert f"| {each['suspect']} | {each['status']} |" in text


def test_what_the_prose_concludes_is_what_was_measured() -> None:
    for kept in (emulated_figures(), real_figures()):
        assert kept["arms"][BARE.name]["failed"] > 0
        assert kept["arms"]["retry: reset-before-request"]["failed"] > 0
        assert kept["arms"][SHIPPED.name]["failed"] == 0
    assert emulated_figures()["arms"]["retry: reset"]["failed"] > 0
    assert real_figures()["keep_alive_s"] == 5.0
