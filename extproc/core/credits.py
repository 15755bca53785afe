"""The values that replicas of one pool exchange: claims on endpoints, and what they need.

Only values: how they are computed is in `allocation`, how they travel is the shell's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SLOTS, TOKENS = 0, 1
"""Indices of the two resources."""

UNLIMITED = 1 << 40
"""Stands for the tokens of an endpoint that has no token limit; far above any real KV cache."""


class Credits(NamedTuple):
    """A claim on one endpoint: request slots and KV tokens."""

    slots: int
    tokens: int


class BandUse(NamedTuple):
    """In-flight load of one priority; `slots[i]` and `tokens[i]` are on the report's i-th address."""

    slots: Sequence[int]
    tokens: Sequence[int]


class Waiting(NamedTuple):
    """Queued load of one priority at one replica; `oldest_tokens` is the size of its first request."""

    priority: int
    requests: int
    tokens: int
    oldest_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDemand:
    """What one replica reports: its in-flight load by priority on `addresses`, and its queues."""

    addresses: Sequence[str] = ()
    in_use: Mapping[int, BandUse] = field(default_factory=dict)
    waiting: Sequence[Waiting] = ()


class Reclaim(NamedTuple):
    """Ask `replica` to evict work below `priority` on `address`, worth so much."""

    replica: str
    address: str
    priority: int
    slots: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a replica may use from now on; `sequence` 0 is "nothing granted yet".

    `replaced` is what the grant before it allowed: the replica may use that until it has read this one.
    `is_urgent`: somebody waits for what this grant takes away, so acknowledge it at once.
    """

    sequence: int = 0
    replaced: Mapping[str, Credits] = field(default_factory=dict)
    credits: Mapping[str, Credits] = field(default_factory=dict)
    reclaims: Sequence[Reclaim] = ()
    is_urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One replica's state: the grant it acts on, its load and queues.

    `measured` is the engines' own count of requests (running + waiting) by address, for claims of replicas
    that no longer report.
    """

    grant_sequence: int = 0
    demand: ReplicaDemand = field(default_factory=ReplicaDemand)
    measured: Mapping[str, int] = field(default_factory=dict)


NO_GRANT = Grant()
