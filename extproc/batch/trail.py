"""What one item goes through, counted once: in its own statistics, in the metrics, in its job's totals."""

from __future__ import annotations

from extproc.batch.meters import BatchMeters
from extproc.batch.planner import Disruption
from extproc.batch.progress import Stats


class Trail:
    """Writes to the item's `stats` (which are saved with it) and to the worker's `meters`."""

    def __init__(self, stats: Stats, meters: BatchMeters) -> None:
        self.stats = stats
        self._meters = meters
        self._output_tokens = 0
        self._told = self._amounts()

    def sent(self) -> None:
        """A request was sent."""
        self.stats.attempts += 1

    def let_through(self, queue_s: float) -> None:
        """It waited so long for its response headers."""
        self.stats.queue_s += queue_s

    def received(self, tokens: int) -> None:
        """Output tokens came."""
        self._output_tokens += tokens
        self._meters.output_tokens.inc(tokens)

    def resumed(self, tokens: int) -> None:
        """A continuation builds on so many saved tokens."""
        self.stats.resumed_tokens += tokens
        self._meters.resumed_tokens.inc(tokens)

    def redone(self, tokens: int) -> None:
        """So many received tokens were given up and will be generated again."""
        self.stats.redone_tokens += tokens
        self._meters.redone_tokens.inc(tokens)

    def restarted(self, feature: str) -> None:
        """Everything starts again, because of `feature`."""
        self.stats.restarts += 1
        self._meters.restarts.labels(feature).inc()

    def ended(self, disruption: Disruption) -> None:
        """A turn is over."""
        self._meters.legs.labels(disruption.value).inc()

    def progressed(self) -> None:
        """New tokens are saved: the bad ends before don't count any more."""
        self.stats.failures = self.stats.breaks = self.stats.waits = 0

    def disrupted(self, disruption: Disruption) -> int:
        """Count the end; return how many such there were in a row (evictions: in all)."""
        stats = self.stats
        match disruption:
            case Disruption.EVICTED:
                stats.evictions += 1
                self._meters.evictions.inc()
                return stats.evictions
            case Disruption.BROKEN:
                stats.breaks += 1
                return stats.breaks
            case Disruption.FAILED:
                stats.failures += 1
                return stats.failures
            case _:
                stats.waits += 1
                return stats.waits

    def take_amounts(self) -> dict[str, int]:
        """What has happened since the last call, for the job's totals."""
        now = self._amounts()
        news = {name: value - self._told[name] for name, value in now.items() if value != self._told[name]}
        self._told = now
        return news

    def _amounts(self) -> dict[str, int]:
        return {
            "attempts": self.stats.attempts,
            "evictions": self.stats.evictions,
            "output_tokens": self._output_tokens,
            "resumed_tokens": self.stats.resumed_tokens,
            "redone_tokens": self.stats.redone_tokens,
            "restarts": self.stats.restarts,
        }
