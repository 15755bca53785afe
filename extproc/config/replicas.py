"""Settings of several replicas that share one pool."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from extproc.config.endpoints import ScrapeConfig
from extproc.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasConfig:
    """How this process shares its pool with others.

    `single`: it doesn't. `leased`: all replicas serve, on credits out of every endpoint's capacity.
    `standby`: one serves, the others wait, ready, for its lease to end.

    `redis_url` is a Redis or Valkey (`redis://`, `rediss://` or `unix://`); its password may instead be in
    `password_file`. Pools that share one Redis need different `pool` names. `replica_id` None is made from
    host name and process. A replica that was not heard of for `lease_s` loses its credits; one that is cut
    off keeps serving on them for as long, then falls back: `even-share` of the last known replica count,
    or, by `hold-sheddable`, the same share for priorities 0 and above only.
    """

    mode: Literal["single", "leased", "standby"] = "single"
    redis_url: str = "redis://127.0.0.1:6379/0"
    password_file: str | None = None
    pool: str = "default"
    replica_id: str | None = None
    period_s: float = 0.1
    lease_s: float = 3.0
    leader_lease_s: float = 1.0
    redis_timeout_s: float = 0.5
    fallback: Literal["even-share", "hold-sheddable"] = "even-share"
    election: Literal["redis", "kubernetes"] = "redis"
    """Mode standby: where the one that serves is elected."""
    kubernetes_lease: str = "extproc"
    """Mode standby by `election: kubernetes`: name of the Lease, in the pod's own namespace."""

    def __post_init__(self) -> None:
        problems = []
        if urlsplit(self.redis_url).scheme not in ("redis", "rediss", "unix"):
            problems.append(Problem("redis_url", "must start with redis://, rediss:// or unix://"))
        if not self.pool or any(character in self.pool for character in "{}: \n"):
            problems.append(Problem("pool", "must be a name without spaces, colons and braces"))
        bounds = {
            "period_s": (0.02, 1.0),
            "lease_s": (0.5, 60.0),
            "leader_lease_s": (0.2, 30.0),
            "redis_timeout_s": (0.02, 10.0),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                problems.append(Problem(name, f"must be from {low:g} to {high:g} seconds, not {value}"))
        if self.lease_s < 5 * self.period_s:
            problems.append(Problem("lease_s", "must be at least five times period_s"))
        if self.leader_lease_s < 3 * self.period_s:
            problems.append(Problem("leader_lease_s", "must be at least three times period_s"))
        if problems:
            raise ConfigError(problems)


def scraping(scrape: ScrapeConfig, config: ReplicasConfig) -> ScrapeConfig:
    """Leased capacity needs counts that are never older than a lease, also of endpoints that are idle for us:
    they tell whether requests of a replica that is gone still run.
    """
    if config.mode != "leased":
        return scrape
    limit_s = max(scrape.min_interval_s, config.lease_s / 3)
    return dataclasses.replace(
        scrape,
        max_interval_s=min(scrape.max_interval_s, limit_s),
        busy_interval_s=min(scrape.busy_interval_s, limit_s),
    )
