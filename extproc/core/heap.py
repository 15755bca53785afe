"""A priority queue whose entries can be taken out again from any place; knows nothing of requests.

`heapq` with tombstones: `remove` empties the entry and leaves it in the list until it reaches the top, or
until tombstones outnumber the living, when the list is rebuilt. So push, pop and remove are O(log n)
amortised (at C speed), and memory is at most twice what lives in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

Key = tuple[float, ...]
"""What entries are ordered by; the lowest comes first, ties keep the order of insertion."""

_REBUILD_ABOVE = 8


class Entry(Generic[T]):
    """The handle of one pushed item; `item` is None once it has left the heap."""

    __slots__ = ("item", "key", "sequence")

    def __init__(self, key: Key, sequence: int, item: T) -> None:
        self.key = key
        self.sequence = sequence
        self.item: T | None = item

    def __bool__(self) -> bool:
        return self.item is not None


class RemovableHeap(Generic[T]):
    """Lowest key first; `len` counts living entries only."""

    __slots__ = ("_heap", "_length", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Entry[T]]] = []
        self._length = 0
        self._sequence = 0

    def __len__(self) -> int:
        return self._length

    def __bool__(self) -> bool:
        return self._length > 0

    def __iter__(self) -> Iterator[T]:
        """All living items, in no order: for rare rebuilds only."""
        return (entry.item for _, _, entry in self._heap if entry.item is not None)

    def push(self, key: Key, item: T) -> Entry[T]:
        self._sequence += 1
        entry = Entry(key, self._sequence, item)
        heapq.heappush(self._heap, (key, self._sequence, entry))
        self._length += 1
        return entry

    def remove(self, entry: Entry[T]) -> bool:
        """Takes the entry out; False when it had left already, so that removal may be repeated."""
        if entry.item is None:
            return False
        entry.item = None
        self._length -= 1
        dead = len(self._heap) - self._length
        if dead > _REBUILD_ABOVE and dead > self._length:
            self._heap = [row for row in self._heap if row[2].item is not None]
            heapq.heapify(self._heap)
        return True

    def peek(self) -> Entry[T] | None:
        """The entry with the lowest key, or None."""
        heap = self._heap
        while heap:
            entry = heap[0][2]
            if entry.item is not None:
                return entry
            heapq.heappop(heap)
        return None

    def peek_item(self) -> T | None:
        heap = self._heap
        while heap:
            item = heap[0][2].item
            if item is not None:
                return item
            heapq.heappop(heap)
        return None

    def pop(self) -> T | None:
        entry = self.peek()
        if entry is None:
            return None
        heapq.heappop(self._heap)
        item, entry.item = entry.item, None
        self._length -= 1
        return item

    def ascending(self) -> Iterator[T]:
        """Living items lowest first, without removing them; the cost is that of what is consumed.

        Walks the heap's tree with a frontier, O(k log k) for the first k items; tombstones at the top are
        cleared first, those deeper are walked over.
        """
        top = self.peek()
        if top is None or top.item is None:
            return
        left = self._length - 1
        yield top.item
        if not left:
            return  # what remains is tombstones
        heap = self._heap
        frontier = [(heap[child][0], heap[child][1], child) for child in (1, 2) if child < len(heap)]
        heapq.heapify(frontier)
        while frontier and left:
            _, _, index = heapq.heappop(frontier)
            item = heap[index][2].item
            if item is not None:
                left -= 1
                yield item
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child][0], heap[child][1], child))
