"""Snapshots for the live page: one a second, the last minutes kept, each handed to every open page.

What a snapshot holds is the business of its maker; here it is only taken, kept and passed on. A page that
reads too slowly misses snapshots, it never holds others up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from extproc.clock import Clock

JsonObject = Mapping[str, object]

PERIOD_S = 1.0
KEPT_SNAPSHOTS = 300
MAX_READERS = 64


class LiveFeed:
    """Takes a snapshot every `period_s` and keeps the newest `kept`."""

    def __init__(
        self,
        take: Callable[[], JsonObject],
        clock: Clock,
        *,
        period_s: float = PERIOD_S,
        kept: int = KEPT_SNAPSHOTS,
    ) -> None:
        self._take = take
        self._clock = clock
        self._period_s = period_s
        self._kept: deque[JsonObject] = deque(maxlen=kept)
        self._readers: set[asyncio.Queue[JsonObject | None]] = set()

    async def run(self) -> None:
        """Take snapshots until cancelled."""
        due = self._clock.now()
        while True:
            self.take_now()
            due = max(due + self._period_s, self._clock.now())
            await self._clock.sleep_until(due)

    def take_now(self) -> None:
        """Take one snapshot and hand it to the open readers."""
        snapshot = self._take()
        self._kept.append(snapshot)
        self._hand_out(snapshot)

    def close(self) -> None:
        """End the feeds of all open readers."""
        self._hand_out(None)

    def _hand_out(self, snapshot: JsonObject | None) -> None:
        for queue in self._readers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(snapshot)

    def history(self) -> list[JsonObject]:
        """The kept snapshots, oldest first."""
        return list(self._kept)

    async def snapshots(self) -> AsyncIterator[JsonObject]:
        """Each new snapshot, until `close()`; ends at once when too many readers are open already."""
        if len(self._readers) >= MAX_READERS:
            return
        queue: asyncio.Queue[JsonObject | None] = asyncio.Queue(maxsize=2)
        self._readers.add(queue)
        try:
            while (snapshot := await queue.get()) is not None:
                yield snapshot
        finally:
            self._readers.discard(queue)

    @property
    def readers(self) -> int:
        """How many pages are open."""
        return len(self._readers)
