"""vLLM's waiting queue: first come first served, or lowest priority value first; preempted ones keep their
place.
"""

from __future__ import annotations

from heapq import heappop, heappush

from extproc.sim.sequence import Sequence, SequenceState
from extproc.sim.server_config import SchedulingPolicy


class WaitingQueue:
    """A heap by (priority, arrival); an aborted member is skipped when it comes up."""

    __slots__ = ("_by_priority", "_count", "_heap")

    def __init__(self, scheduling: SchedulingPolicy) -> None:
        self._by_priority = scheduling is SchedulingPolicy.PRIORITY
        self._heap: list[tuple[int, int, Sequence]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        heappush(self._heap, (sequence.priority if self._by_priority else 0, sequence.serial, sequence))
        self._count += 1

    def head(self) -> Sequence | None:
        while self._heap:
            sequence = self._heap[0][2]
            if sequence.state is SequenceState.WAITING:
                return sequence
            heappop(self._heap)
        return None

    def pop(self) -> Sequence:
        """Take the head, which the caller has just seen."""
        self._count -= 1
        return heappop(self._heap)[2]

    def discard(self, sequence: Sequence) -> None:
        """An aborted member; its place in the heap goes when it comes up."""
        sequence.state = SequenceState.ENDED
        self._count -= 1
