"""The detectors there are: their configs as one tagged union, and how to build one."""

from __future__ import annotations

from extproc.core.capacity import CapacityDetector, CapacityDetectorConfig
from extproc.core.concurrency import ConcurrencyDetector, ConcurrencyDetectorConfig
from extproc.core.saturation import SaturationDetector
from extproc.core.utilization import UtilizationDetector, UtilizationDetectorConfig

DetectorConfig = ConcurrencyDetectorConfig | UtilizationDetectorConfig | CapacityDetectorConfig


def build_detector(config: DetectorConfig) -> SaturationDetector:
    match config:
        case ConcurrencyDetectorConfig():
            return ConcurrencyDetector(config)
        case UtilizationDetectorConfig():
            return UtilizationDetector(config)
        case CapacityDetectorConfig():
            return CapacityDetector(config)
