"""The allocator's part of a replica: reads all reports, writes the grants that follow.

Whichever replica holds the leader's lease runs it. It keeps nothing that its successor would miss: reports
and grants are in the store; only since when somebody is gone is counted here, and counted afresh by the
next leader, which errs on the safe side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from extproc.core.credits import Credits, Grant, Report
from extproc.core.leasing import claims_left_behind, next_grants
from extproc.errors import PeerProtocolError
from extproc.runtime.replicas.letters import decode_grant, decode_report, encode
from extproc.runtime.replicas.store import ReplicaStore

logger = logging.getLogger(__name__)

Letter = TypeVar("Letter", Report, Grant)


class Allocator:
    """Runs rounds while its replica leads. `lease_s` is how long a replica may be silent."""

    def __init__(self, store: ReplicaStore, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._gone_since: dict[str, float] = {}
        self._unreadable: set[str] = set()
        self._settling_until = float("-inf")
        self._settling_replicas = 1
        self.rounds = 0

    def settle(self, replicas: int, now: float) -> None:
        """Some of so many replicas may live on their fallback, unseen: even shares only, for one lease."""
        self._settling_replicas = replicas
        self._settling_until = now + self._lease_s

    async def round(self, leader: str, capacity: Mapping[str, Credits], now: float) -> bool:
        """One allocation; True when the next one should follow at once. Raises StoreError."""
        self.rounds += 1
        table = await self._store.table()
        reports = self._read(table.reports, decode_report)
        live = {name: report for name, report in reports.items() if name in table.alive}
        departed = {name: report for name, report in reports.items() if name not in table.alive}
        written = self._read(table.grants, decode_grant)
        forget = self._forgotten(departed, written, live, now)
        forget += [name for name in table.reports if name not in reports]
        remembered = {name: report for name, report in departed.items() if name not in forget}
        ghosts = claims_left_behind(remembered, written, live.values())
        at_least = self._settling_replicas if now < self._settling_until else 1
        found = next_grants(capacity, live, written, ghosts, at_least_replicas=at_least)
        if not found.grants and not forget:
            if found.is_pending:
                await self._store.wake_others()
            return found.is_pending
        letters = {name: encode(grant) for name, grant in found.grants.items()}
        if not await self._store.write(leader, letters, forget):
            return False  # another leads now
        return found.is_pending

    def _read(self, letters: Mapping[str, bytes], decode: Callable[[bytes], Letter]) -> dict[str, Letter]:
        """Those that can be read. A replica whose grant can't be read takes it for none, too."""
        found = {}
        for name, data in letters.items():
            try:
                found[name] = decode(data)
            except PeerProtocolError as error:
                if name not in self._unreadable:
                    logger.warning("replica %s: %s (said once)", name, error)
                self._unreadable.add(name)
            else:
                self._unreadable.discard(name)
        return found

    def _forgotten(
        self,
        departed: Mapping[str, Report],
        written: Mapping[str, Grant],
        live: Mapping[str, Report],
        now: float,
    ) -> list[str]:
        """Departed replicas that no longer occupy anything.

        With measurements: as soon as the engines run nothing beyond what the live ones know of, but not
        before a sample can have seen it (one lease). Without: after one more lease.
        """
        for name in list(self._gone_since):
            if name not in departed:
                del self._gone_since[name]
        forgotten = []
        for name, report in departed.items():
            gone_s = now - self._gone_since.setdefault(name, now)
            has_measurement = any(other.measured for other in live.values())
            claims = claims_left_behind({name: report}, written, live.values()) if has_measurement else {}
            if gone_s >= self._lease_s and not claims:
                logger.warning("replica %s is gone; its capacity is free again", name)
                forgotten.append(name)
        return forgotten
