"""Small hand-made runs for the tests of figures."""

from __future__ import annotations

from extproc.bench.outcome import RunOutcome
from extproc.bench.suite import Arm, Cell, Load, Setting, Suite
from extproc.workload.record import RequestOutcome, RequestRecord


def interactive(index: int, at_s: float, ttft_s: float | None, **fields: object) -> RequestRecord:
    base: dict[str, object] = {
        "traffic_class": "interactive",
        "index": index,
        "priority": 10,
        "fairness_id": "interactive",
        "intended_s": at_s,
        "sent_s": at_s,
        "prompt_tokens": 10,
        "first_token_s": None if ttft_s is None else at_s + ttft_s,
        "end_s": None if ttft_s is None else at_s + ttft_s + 1.0,
        "output_tokens": 11,
        "outcome": RequestOutcome.UNFINISHED if ttft_s is None else RequestOutcome.COMPLETED,
    }
    return RequestRecord(**(base | fields))  # type: ignore[arg-type]


def batch(index: int, end_s: float | None, **fields: object) -> RequestRecord:
    base: dict[str, object] = {
        "traffic_class": "batch",
        "index": index,
        "priority": -1,
        "fairness_id": "batch",
        "intended_s": 1.0,
        "sent_s": 1.0,
        "prompt_tokens": 10,
        "first_token_s": 2.0,
        "end_s": end_s,
        "output_tokens": 100,
        "outcome": RequestOutcome.UNFINISHED if end_s is None else RequestOutcome.COMPLETED,
    }
    return RequestRecord(**(base | fields))  # type: ignore[arg-type]


def outcome(arm: str, seed: int, records: list[RequestRecord], **fields: object) -> RunOutcome:
    cell = Cell(suite="toy", load="1/s", arm=arm, setting=Setting.WAVE)
    return RunOutcome(cell=cell, seed=seed, records=records, duration_s=20.0, **fields)  # type: ignore[arg-type]


def toy_suite(*arms: str) -> Suite:
    load = Load(name="1/s", traffic=lambda setting: (), horizon_s=20.0)
    return Suite(
        name="toy",
        title="A toy",
        seed="000",
        section="0",
        hardware="none",
        loads=(load,),
        arms=tuple(Arm(name=arm, flow_control=None) for arm in arms),
        settings=(Setting.WAVE,),
    )
