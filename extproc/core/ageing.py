"""Ageing: a bounded share of dispatches for bands that strict priority would starve. Off by default.

A band's head is *aged* once it has waited `after_s`. While one is, every dispatch of a higher band earns
`share` of a turn; with a whole turn the aged head goes next, under the ceiling of the highest band, before
anything else. So starved bands together get about `share` of the dispatches, never more.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.checks import FieldChecks


@dataclass(frozen=True, kw_only=True, slots=True)
class AgeingConfig:
    """`share` of the dispatches at most; 0.05 is one in twenty."""

    after_s: float = 30.0
    share: float = 0.05

    def __post_init__(self) -> None:
        FieldChecks(self).above("after_s", 0, 86_400).above("share", 0, 0.5).finish()


class Ageing:
    """The turns earned so far, at most one."""

    def __init__(self, config: AgeingConfig | None) -> None:
        self.config = config
        self._turn = 0.0

    @property
    def has_turn(self) -> bool:
        return self.config is not None and self._turn >= 1 - 1e-9

    def is_aged(self, arrived_at: float, now: float) -> bool:
        return self.config is not None and now - arrived_at >= self.config.after_s

    def higher_dispatched(self) -> None:
        """Something went ahead of an aged head."""
        if self.config is not None:
            self._turn = min(1.0, self._turn + self.config.share)

    def turn_used(self) -> None:
        self._turn = 0.0
