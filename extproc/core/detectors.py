"""The detectors there are: their configs as one tagged union, and how to build one."""

from __future__ import annotations

from extproc.core.concurrency import ConcurrencyDetector, ConcurrencyDetectorConfig
from extproc.core.saturation import SaturationDetector

DetectorConfig = ConcurrencyDetectorConfig


def build_detector(config: DetectorConfig) -> SaturationDetector:
    return ConcurrencyDetector(config)
