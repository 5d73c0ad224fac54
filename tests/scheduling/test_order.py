"""The heap with lazy removal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_runtime.scheduling.order import LazyHeap, Waiting
from tests.scheduling.pools import make_request


def _entry(seq: int) -> Waiting:
    return Waiting(make_request(str(seq)), float(seq), seq)


@given(st.lists(st.tuples(st.sampled_from(["push", "gone", "pop"]), st.integers(0, 50)), max_size=200))
def test_head_is_always_the_smallest_still_waiting(steps: list[tuple[str, int]]) -> None:
    heap = LazyHeap()
    waiting: dict[tuple[float, int], Waiting] = {}
    for seq, (what, number) in enumerate(steps):
        if what == "push":
            rank = (float(number), seq)
            waiting[rank] = _entry(seq)
            heap.push(rank, waiting[rank])
        elif waiting:
            ranks = sorted(waiting)
            rank = ranks[0] if what == "pop" else ranks[number % len(ranks)]
            waiting.pop(rank).gone = True
            heap.note_gone()
        assert len(heap) == len(waiting)
        assert heap.head() is (waiting[min(waiting)] if waiting else None)


def test_removed_entries_do_not_pile_up() -> None:
    heap = LazyHeap()
    keep = _entry(0)
    heap.push((0.0, 0), keep)
    for seq in range(1, 10_000):
        entry = _entry(seq)
        heap.push((float(seq), seq), entry)
        entry.gone = True
        heap.note_gone()
        assert len(heap._items) <= 2 * len(heap) + 65
    assert heap.head() is keep
