"""Time of a run of engine steps whose duration grows by the same amount at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Stretch:
    """`steps` steps from `started_at`: the first takes `first_s`, each later one `growth_s` more."""

    started_at: float
    first_s: float
    growth_s: float
    steps: int

    def elapsed_s(self, steps: int) -> float:
        """From the start to the end of step number `steps` (1-based)."""
        return steps * self.first_s + self.growth_s * steps * (steps - 1) / 2

    @property
    def ends_at(self) -> float:
        return self.started_at + self.elapsed_s(self.steps)

    def steps_ended_by(self, now: float) -> int:
        """How many steps have ended at `now`, at most `steps`."""
        elapsed = now - self.started_at
        if elapsed <= 0:
            return 0
        if self.growth_s == 0:
            count = int(elapsed / self.first_s)
        else:
            linear = self.first_s - self.growth_s / 2
            count = int((math.sqrt(linear * linear + 2 * self.growth_s * elapsed) - linear) / self.growth_s)
        while count < self.steps and self.elapsed_s(count + 1) <= elapsed:
            count += 1
        while count > 0 and self.elapsed_s(count) > elapsed:
            count -= 1
        return min(count, self.steps)

    def cut_after(self, now: float) -> None:
        """Shorten to the step that is running at `now`: what arrives now takes part in the step after it."""
        ended = self.steps_ended_by(now)
        if ended and self.started_at + self.elapsed_s(ended) >= now:
            ended -= 1
        self.steps = max(1, min(self.steps, ended + 1))
