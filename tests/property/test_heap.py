"""The removable heap against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.heap import Entry, RemovableHeap


@given(st.lists(st.tuples(st.sampled_from(("push", "pop", "remove")), st.integers(0, 9)), max_size=400))
def test_it_behaves_like_a_sorted_list(moves: list[tuple[str, int]]) -> None:
    heap: RemovableHeap[int] = RemovableHeap()
    model: list[tuple[int, int]] = []
    entries: dict[int, Entry[int]] = {}
    for serial, (move, number) in enumerate(moves):
        if move == "push":
            entries[serial] = heap.push((number,), serial)
            model.append((number, serial))
        elif move == "pop":
            expected = min(model)[1] if model else None
            assert heap.pop() == expected
            model = [row for row in model if row[1] != expected]
        elif entries:
            chosen = list(entries)[number % len(entries)]
            was_inside = any(row[1] == chosen for row in model)
            assert heap.remove(entries[chosen]) == was_inside
            model = [row for row in model if row[1] != chosen]
        assert len(heap) == len(model)
        assert bool(heap) == bool(model)
        assert heap.peek_item() == (min(model)[1] if model else None)
        assert list(heap.ascending()) == [row[1] for row in sorted(model)]
        assert sorted(heap) == sorted(row[1] for row in model)


def test_memory_follows_what_lives() -> None:
    heap: RemovableHeap[int] = RemovableHeap()
    entries = [heap.push((float(i),), i) for i in range(10_000)]
    for entry in entries[:9_900]:
        heap.remove(entry)
    assert len(heap) == 100
    assert len(heap._heap) < 400
