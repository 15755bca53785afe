"""What the experiment measured, and what follows from it; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """One request on a connection that had been unused for the server's keep-alive plus `offset_s`."""

    offset_s: float
    status: int
    code: str
    """The error's code; empty with 200."""

    @property
    def has_failed(self) -> bool:
        return self.status != 200


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """The probes of one arm, spread evenly over offsets of -`window_s` to +`window_s`."""

    name: str
    window_s: float
    probes: Sequence[Probe]

    @property
    def failures(self) -> int:
        return sum(probe.has_failed for probe in self.probes)

    @property
    def share(self) -> float:
        """Failed probes over all; NaN without any."""
        return self.failures / len(self.probes) if self.probes else math.nan

    @property
    def lost_s(self) -> float:
        """The area under the failure curve: as if every reuse failed whose idle time falls in so long a span.

        A pool whose reuses hit idle times of the keep-alive at a rate of r per second of idle time loses
        r x `lost_s` requests.
        """
        return self.share * 2 * self.window_s

    def by_offset(self, bins: int) -> list[tuple[float, float]]:
        """(start of the bin in seconds, failed share in it), for bins with probes."""
        width_s = 2 * self.window_s / bins
        counts = [[0, 0] for _ in range(bins)]
        for probe in self.probes:
            number = min(bins - 1, max(0, int((probe.offset_s + self.window_s) / width_s)))
            counts[number][0] += 1
            counts[number][1] += probe.has_failed
        return [
            (index * width_s - self.window_s, failed / sent)
            for index, (sent, failed) in enumerate(counts)
            if sent
        ]


def wilson(failures: int, sent: int, *, z: float = 1.96) -> tuple[float, float]:
    """The 95% score interval of a share (Wilson 1927), which stays sensible at 0 failures."""
    if sent == 0:
        return 0.0, 1.0
    share = failures / sent
    scale = 1 + z * z / sent
    middle = (share + z * z / (2 * sent)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / sent + z * z / (4 * sent * sent))
    return max(0.0, middle - half), min(1.0, middle + half)
