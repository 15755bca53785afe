"""All policies of one configuration, built together; what hasn't changed is kept, with what it has learnt."""

from __future__ import annotations

import random
from dataclasses import dataclass

from extproc.core.ceilings import build_ceilings
from extproc.core.config import FlowControlConfig
from extproc.core.demand import DemandTracker
from extproc.core.detectors import build_detector
from extproc.core.eviction import VictimIndex
from extproc.core.footprint import FootprintEstimator
from extproc.core.holdback import CeilingPolicy
from extproc.core.inflight import InflightLedger
from extproc.core.pacing import PrefillPacing
from extproc.core.picker import Picker, build_picker
from extproc.core.pool import Pool
from extproc.core.saturation import SaturationDetector


@dataclass(slots=True)
class Policies:
    detector: SaturationDetector
    picker: Picker
    victims: VictimIndex
    pacing: PrefillPacing
    ceilings: CeilingPolicy
    estimator: FootprintEstimator


class PolicyBuilder:
    """Builds policies over one pool and ledger, again and again as the configuration changes."""

    def __init__(self, pool: Pool, ledger: InflightLedger, demand: DemandTracker, rng: random.Random) -> None:
        self._pool = pool
        self._ledger = ledger
        self._demand = demand
        self._rng = rng

    def build(self, config: FlowControlConfig) -> Policies:
        detector = build_detector(config.detector)
        return Policies(
            detector=detector,
            picker=build_picker(config.picker, self._rng),
            victims=VictimIndex(config.eviction),
            pacing=PrefillPacing(config.pacing),
            ceilings=self._build_ceilings(config, detector),
            estimator=FootprintEstimator(config.footprint),
        )

    def rebuild(self, config: FlowControlConfig, old_config: FlowControlConfig, old: Policies) -> Policies:
        """New policies where the configuration differs; victims are always indexed afresh."""
        new = self.build(config)
        new.estimator.version = old.estimator.version + 1
        if config.footprint == old_config.footprint:
            new.estimator = old.estimator
        if config.pacing == old_config.pacing:
            new.pacing = old.pacing
        if config.picker == old_config.picker:
            new.picker = old.picker
        if config.detector == old_config.detector:
            new.detector = old.detector
            new.ceilings = self._build_ceilings(config, old.detector)
            is_same = config.ceilings == old_config.ceilings
            if is_same and config.declared_priorities == old_config.declared_priorities:
                new.ceilings = old.ceilings
        return new

    def _build_ceilings(self, config: FlowControlConfig, detector: SaturationDetector) -> CeilingPolicy:
        declared = config.declared_priorities
        return build_ceilings(config.ceilings, declared, self._demand, detector, self._pool, self._ledger)
