"""How many requests wait, by class and tenant: kept as they come and go, so that looking costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from llm_runtime.core.request import PriorityClass, RuntimeRequest, priority_class


class Flow(NamedTuple):
    """Requests that have equal rights: of one tenant, in one class."""

    cls: PriorityClass
    tenant: str


MAX_KNOWN: Final = 1000
_known: Final[dict[tuple[int, str], Flow]] = {}
"""Flows by priority and tenant, because to look one up costs less than to make it."""


def flow_of(request: RuntimeRequest) -> Flow:
    key = (request.priority, request.tenant)
    flow = _known.get(key)
    if flow is None:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        flow = _known[key] = Flow(priority_class(request.priority), request.tenant)
    return flow


@dataclass(slots=True)
class Waiting:
    """num_tokens: prompt estimates and caps."""

    num_requests: int = 0
    num_tokens: int = 0


class FlowCounts:
    """Owned by a decision core. Flows of which nobody waits are forgotten."""

    __slots__ = ("_by_flow",)

    def __init__(self) -> None:
        self._by_flow: dict[Flow, Waiting] = {}

    @property
    def by_flow(self) -> Mapping[Flow, Waiting]:
        return self._by_flow

    def add(self, request: RuntimeRequest, num_tokens: int) -> None:
        flow = flow_of(request)
        waiting = self._by_flow.get(flow)
        if waiting is None:
            waiting = self._by_flow[flow] = Waiting()
        waiting.num_requests += 1
        waiting.num_tokens += num_tokens

    def remove(self, request: RuntimeRequest, num_tokens: int) -> None:
        flow = flow_of(request)
        waiting = self._by_flow[flow]
        waiting.num_requests -= 1
        waiting.num_tokens -= num_tokens
        if not waiting.num_requests:
            del self._by_flow[flow]
