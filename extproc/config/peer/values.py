"""The peer's scalar notations: Go durations, Kubernetes quantities, feature gates.

Each reader raises ValueError with what is wrong; where the value stood is the caller's business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from extproc.config.yaml_source import Data

_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_FACTOR: dict[str | None, float] = {
    None: 1.0,
    "m": 1e-3,
    **{suffix: 1000.0**power for power, suffix in enumerate("kMGTP", start=1)},
    **{f"{suffix}i": 1024.0**power for power, suffix in enumerate("KMGTP", start=1)},
}


def duration_s(value: Data) -> float:
    """`1m30s`, `250ms` or `0` in seconds."""
    if value in (0, "0"):
        return 0.0
    text = str(value)
    parts = _DURATION_PART.findall(text)
    if not isinstance(value, str) or not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{value!r} is not a duration such as 30s, 250ms or 1m30s")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def quantity(value: Data) -> int:
    """`2Gi`, `1500M`, `"3000"` or 3000 as a whole number; fractions are rounded up as Kubernetes does."""
    match = _QUANTITY.fullmatch(str(value)) if not isinstance(value, bool) else None
    if match is None:
        raise ValueError(f"{value!r} is not a quantity such as 3000, 1500M or 2Gi")
    number = float(match[1]) * _FACTOR[match[2]]
    return math.ceil(number)


def gates(entries: Iterable[Data]) -> dict[str, bool]:
    """`[flowControl, "other=false"]` as names and whether they are on."""
    result = {}
    for entry in entries:
        name, _, state = str(entry).partition("=")
        state = state.strip().lower() or "true"
        if state not in ("1", "t", "true", "0", "f", "false"):
            raise ValueError(f"feature gate {entry!r} is neither on nor off")
        result[name.strip()] = state in ("1", "t", "true")
    return result
