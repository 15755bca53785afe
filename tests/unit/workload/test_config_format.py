"""Traffic classes are written in YAML; the loader tells the processes and lengths apart by their `type`."""

from __future__ import annotations

from extproc.config.loader import load_text
from extproc.workload.arrivals import ClosedLoop, NoisySinusoid
from extproc.workload.lengths import Fixed, UniformLength
from extproc.workload.traffic import AfterEviction, TrafficClass

TEXT = """
- name: chat
  priority: 10
  arrivals: {type: sinusoid, base_per_s: 4, surges_s: [[60, 210]], surge_factor: 3, end_s: 300}
  prompt: {type: uniform, low: 100, high: 200}
- name: offline
  priority: -1
  arrivals: {type: closed, concurrency: 32}
  output: {type: fixed, tokens: 1500}
  after_eviction: resume
"""


def test_classes_load_from_yaml() -> None:
    chat, offline = load_text(TEXT, tuple[TrafficClass, ...])
    assert chat.arrivals == NoisySinusoid(base_per_s=4, surges_s=((60, 210),), surge_factor=3, end_s=300)
    assert chat.prompt == UniformLength(low=100, high=200)
    assert offline.arrivals == ClosedLoop(concurrency=32)
    assert offline.output == Fixed(tokens=1500)
    assert offline.after_eviction is AfterEviction.RESUME
