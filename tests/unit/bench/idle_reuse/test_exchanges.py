"""Every leg of a simulated run is noted, cut ones as cut."""

from __future__ import annotations

from collections import Counter

from extproc.bench.idle_reuse.exchanges import simulated_exchanges
from extproc.bench.suite import Cell, Setting
from extproc.bench.suites.catalogue import SUITES
from extproc.bench.virtual import build_scenario, run_virtual


def test_legs_agree_with_the_records() -> None:
    cell = Cell(suite="holdback-tokens", load="bursts of 32", arm="eviction", setting=Setting.WAVE)
    suite = SUITES[cell.suite]
    exchanges = simulated_exchanges(build_scenario(suite, cell, 0))
    run = run_virtual(suite, cell, 0)
    assert sum(each.is_cut for each in exchanges) == run.evictions > 0
    completed = Counter(each.traffic_class for each in exchanges if not each.is_cut)
    assert completed == Counter(record.traffic_class for record in run.records)
    assert all(each.sent_s < each.ended_s for each in exchanges)
