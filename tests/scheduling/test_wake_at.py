"""`wake_at` is exact: earlier nothing is due, at that instant something is.

One exception: a decision that closed a batch by our own limit asks to be called again at once, because
only the next one can tell whether another engine is idle.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_runtime.scheduling.base import Decision
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler
from tests.scheduling.pools import FakePool, FakeReplica, make_request
from tests.scheduling.static_engine import SERVICE_S

STEP = st.tuples(
    st.sampled_from(["add", "add", "add", "finish", "wake", "wake", "pass"]),
    st.sampled_from([0.0, 0.001, 0.004, 0.02]),
    st.sampled_from([None, None, None, 0.008, 0.1]),
)


def _did_something(decision: Decision) -> bool:
    return bool(decision.dispatch or decision.evict)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(STEP, max_size=120),
    replicas=st.sampled_from([(8,), (4, 4), (2,)]),
    static=st.booleans(),
    enable_batching=st.booleans(),
)
def test_wake_at_is_exact(
    steps: list[tuple[str, float, float | None]],
    replicas: tuple[int, ...],
    static: bool,
    enable_batching: bool,
) -> None:
    scheduler = build_scheduler(SchedulingConfig(enable_batching=enable_batching, max_batch_size=4))
    pool = FakePool(scheduler, *(FakeReplica(num, static=static) for num in replicas))
    now = 0.0
    wake_at: float | None = None
    for index, (what, gap_s, queue_s) in enumerate(steps):
        target = now + gap_s
        if wake_at is not None and target >= wake_at:
            between = (now + wake_at) / 2
            if between < wake_at:
                assert not _did_something(pool.decide(between))
            decision = pool.decide(wake_at)
            assert _did_something(decision) or wake_at == now, "woken for nothing"
            now, wake_at = wake_at, decision.wake_at
            target = max(target, now)
        elif wake_at is not None and what == "wake":
            early = pool.decide(target)
            assert not _did_something(early)
            assert early.wake_at == wake_at
        now = target
        if what == "add":
            pool.add(make_request(str(index), queue_s=queue_s), now)
        elif what == "finish" and pool.running:
            now += SERVICE_S if wake_at is None else 0.0
            for name in list(pool.running):
                pool.finish(name, now)
        wake_at = pool.decide(now).wake_at


def test_a_held_batch_starts_at_wake_at() -> None:
    """The same, on a path where the window is certain to be used."""
    pool = FakePool(build_scheduler(SchedulingConfig()), FakeReplica(8, static=True))
    now = 0.0
    for round_number in range(12):
        for k in range(3):
            pool.add(make_request(f"{round_number}.{k}"), now)
            decision = pool.decide(now)
        while pool.running or decision.wake_at is not None:
            if decision.wake_at is not None:
                assert not _did_something(pool.decide(decision.wake_at - 1e-6))
                now = decision.wake_at
            else:
                now += SERVICE_S
                for name in list(pool.running):
                    pool.finish(name, now)
            decision = pool.decide(now)
    pool.add(make_request("alone"), now)
    decision = pool.decide(now)
    assert decision.dispatch == ()
    assert decision.wake_at is not None
    assert not _did_something(pool.decide((now + decision.wake_at) / 2))
    assert [p.request_id for p in pool.decide(decision.wake_at).dispatch] == ["alone"]
