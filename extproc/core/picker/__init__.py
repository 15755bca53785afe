"""Which endpoint a request goes to, among those that may take it."""

from __future__ import annotations

import random

from extproc.core.picker.least_inflight import LeastInflightPicker, LeastInflightPickerConfig
from extproc.core.picker.profiles import ProfilesPicker, ProfilesPickerConfig
from extproc.core.picker.protocol import Fits, Pick, Picker, Scores

PickerConfig = LeastInflightPickerConfig | ProfilesPickerConfig


def build_picker(config: PickerConfig, rng: random.Random) -> Picker:
    """The picker that a section of the configuration describes."""
    match config:
        case LeastInflightPickerConfig():
            return LeastInflightPicker(config, rng)
        case ProfilesPickerConfig():
            return ProfilesPicker(config, rng)


__all__ = [
    "Fits",
    "LeastInflightPicker",
    "LeastInflightPickerConfig",
    "Pick",
    "Picker",
    "PickerConfig",
    "ProfilesPicker",
    "ProfilesPickerConfig",
    "Scores",
    "build_picker",
]
