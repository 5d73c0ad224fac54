"""The queue explained, for operators: who waits, for what, what each has had, and how long it will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from llm_runtime.core.request import PriorityClass, priority_class
from llm_runtime.runtime.dispatcher import Dispatcher
from llm_runtime.runtime.flow_counts import Flow, Waiting, flow_of
from llm_runtime.runtime.pools import Pool
from llm_runtime.runtime.runtime import Runtime
from llm_runtime.runtime.service_book import ServiceBook


class QueueReport:
    """Made by the composition root; asked on the loop's thread. Keeps nothing but the book it is given."""

    def __init__(
        self,
        runtime: Runtime,
        book: ServiceBook,
        *,
        policy: str,
        weight_of: Callable[[str], float],
    ) -> None:
        self._runtime = runtime
        self._book = book
        self._policy = policy
        self._weight_of = weight_of

    def __call__(self) -> dict[str, Any]:
        """A dictionary that any JSON encoder takes; durations in seconds, rounded to the millisecond."""
        now = self._runtime.clock.now()
        return {"policy": self._policy, "pools": [self._pool(pool, now) for pool in self._runtime.pools]}

    def _pool(self, pool: Pool, now: float) -> dict[str, Any]:
        dispatcher = pool.dispatcher
        return {
            "model": pool.model,
            "num_waiting": dispatcher.num_waiting,
            "num_waiting_tokens": dispatcher.num_waiting_tokens,
            "num_running": dispatcher.num_running,
            "num_slots": dispatcher.num_slots,
            "num_free_slots": dispatcher.num_free_slots,
            "head": self._head(dispatcher, now),
            "classes": self._classes(pool),
            "flows": self._flows(dispatcher, now),
        }

    def _head(self, dispatcher: Dispatcher, now: float) -> dict[str, Any] | None:
        head = dispatcher.head()
        if head is None:
            return None
        request = head.request
        return {
            "request_id": request.id,
            "tenant": request.tenant,
            "priority": request.priority,
            "class": priority_class(request.priority).value,
            "num_slots": request.num_slots,
            "waited_s": _rounded(now - head.queued_at),
            "why": head.reason,
            "at_most_s": None if head.until is None else _rounded(max(head.until - now, 0.0)),
        }

    def _classes(self, pool: Pool) -> dict[str, Any]:
        waiting: Counter[PriorityClass] = Counter()
        for flow, counts in pool.dispatcher.flows.items():
            waiting[flow.cls] += counts.num_requests
        waits = pool.dispatcher.predicted_waits()
        return {
            cls.value: {"num_waiting": waiting[cls], "predicted_wait_s": _rounded(waits[cls.value])}
            for cls in PriorityClass
        }

    def _flows(self, dispatcher: Dispatcher, now: float) -> list[dict[str, Any]]:
        waiting = dispatcher.flows
        running = Counter(flow_of(request) for request in dispatcher.running())
        oldest = _oldest(dispatcher)
        flows = dict.fromkeys((*waiting, *running, *self._book.flows))
        return [
            self._flow(flow, waiting.get(flow) or Waiting(), running[flow], now - oldest.get(flow, now))
            for flow in sorted(flows, key=lambda flow: (list(PriorityClass).index(flow.cls), flow.tenant))
        ]

    def _flow(self, flow: Flow, waiting: Waiting, num_running: int, oldest_s: float) -> dict[str, Any]:
        received = self._book.received(flow)
        return {
            "class": flow.cls.value,
            "tenant": flow.tenant,
            "weight": self._weight_of(flow.tenant),
            "num_waiting": waiting.num_requests,
            "num_waiting_tokens": waiting.num_tokens,
            "oldest_wait_s": _rounded(max(oldest_s, 0.0)),
            "num_running": num_running,
            "received": {
                "num_requests": received.num_requests,
                "prompt_tokens": received.prompt_tokens,
                "completion_tokens": received.completion_tokens,
                "service_tokens": received.service_tokens,
            },
        }


def _oldest(dispatcher: Dispatcher) -> dict[Flow, float]:
    """When the longest waiting request of each flow was queued. Those that wait stand nearly in that order,
    so it is enough to look until each flow was met."""
    oldest: dict[Flow, float] = {}
    num_flows = len(dispatcher.flows)
    for request, queued_at in dispatcher.waiting():
        oldest.setdefault(flow_of(request), queued_at)
        if len(oldest) == num_flows:
            break
    return oldest


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
