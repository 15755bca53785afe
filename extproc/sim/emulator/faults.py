"""Faults of an emulated server, from the command line or switched on while it runs.

| fault | what happens | parameters |
|---|---|---|
| `error` | requests are refused | `status` (500), `share` (1.0) |
| `reset` | the connection breaks after so many tokens | `after` (10), `share` (1.0) |
| `hang` | after so many tokens a stream goes silent, but stays open | `after` (10), `share` (1.0) |
| `garbage` | a streamed answer holds a line that is no JSON | `after` (10), `share` (1.0) |
| `stall` | the engine makes no step for a while | `seconds` (5) |
| `slow` | every step takes longer | `factor` (2) |
| `slow-headers` | answers begin late | `seconds` (1) |
| `slow-start` | the server is not healthy and refuses requests at first | `seconds` (10) |
| `stale-metrics` | /metrics repeats what it said last | |
| `no-metrics` | /metrics answers 500 | |
| `death` | the engine dies: open streams end with an error, later requests get 500 | |

All take `for` (seconds until it ends by itself). Written as `error:status=503,share=0.2,for=30`. Pure.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from extproc.errors import ConfigError, Problem

_PARAMETERS: dict[str, dict[str, float]] = {
    "error": {"status": 500, "share": 1.0},
    "reset": {"after": 10, "share": 1.0},
    "hang": {"after": 10, "share": 1.0},
    "garbage": {"after": 10, "share": 1.0},
    "stall": {"seconds": 5.0},
    "slow": {"factor": 2.0},
    "slow-headers": {"seconds": 1.0},
    "slow-start": {"seconds": 10.0},
    "stale-metrics": {},
    "no-metrics": {},
    "death": {},
}
STREAM_FAULTS = ("reset", "hang", "garbage")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind with its parameters; `for_s` None: until it is taken away."""

    kind: str
    parameters: dict[str, float] = field(default_factory=dict)
    for_s: float | None = None

    def __getitem__(self, name: str) -> float:
        return self.parameters[name]


def parse_fault(text: str) -> Fault:
    """`kind:name=value,...` as a fault with its defaults filled in. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    if kind not in _PARAMETERS:
        known = ", ".join(_PARAMETERS)
        raise ConfigError([Problem("fault", f"there is no fault {kind!r}; known: {known}")])
    parameters = dict(_PARAMETERS[kind])
    for_s: float | None = None
    for part in filter(None, rest.split(",")):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError as error:
            raise ConfigError([Problem(f"fault.{kind}", f"{part!r} is not name=number")]) from error
        if name == "for":
            for_s = number
        elif name in parameters:
            parameters[name] = number
        else:
            known = ", ".join([*parameters, "for"])
            raise ConfigError([Problem(f"fault.{kind}", f"takes no {name!r}; it takes {known}")])
        if not 0 <= number < 1e9:
            raise ConfigError([Problem(f"fault.{kind}.{name}", f"must be 0 or more, not {value}")])
    return Fault(kind, parameters, for_s)


class FaultPlan:
    """The faults that are on, at most one of each kind, and when each ends."""

    def __init__(self) -> None:
        self._active: dict[str, tuple[Fault, float | None]] = {}

    def add(self, fault: Fault, now: float | None = None) -> None:
        """Switch `fault` on; without `now` its time counts from `begin`."""
        until = None if now is None or fault.for_s is None else now + fault.for_s
        self._active[fault.kind] = (fault, until)

    def begin(self, now: float) -> None:
        """The server starts: faults given on the command line count from here."""
        for fault, _ in list(self._active.values()):
            self.add(fault, now)

    def remove(self, kind: str | None = None) -> None:
        """Switch one kind off, or all."""
        if kind is None:
            self._active.clear()
        else:
            self._active.pop(kind, None)

    def get(self, kind: str, now: float) -> Fault | None:
        """The active fault of this kind."""
        fault, until = self._active.get(kind, (None, None))
        if fault is not None and until is not None and now >= until:
            del self._active[kind]
            return None
        return fault

    def draw(self, kind: str, now: float, rng: random.Random) -> Fault | None:
        """The active fault of this kind, if it strikes this request."""
        fault = self.get(kind, now)
        if fault is None or rng.uniform(0.0, 1.0) > fault.parameters.get("share", 1.0):
            return None
        return fault

    def active(self, now: float) -> list[Fault]:
        return [fault for kind in list(self._active) if (fault := self.get(kind, now)) is not None]
