"""What each tenant has received of the engines so far, by class: the other half of a fair share."""

from __future__ import annotations

from collections import OrderedDict

from llm_runtime.core.events import NullEvents
from llm_runtime.core.outcome import RequestRecord
from llm_runtime.runtime.flow_counts import Flow, flow_of
from llm_runtime.scheduling.fair import INPUT_WEIGHT, OUTPUT_WEIGHT

MAX_FLOWS = 1000
"""Without keys clients name their tenants themselves; then those are kept that were served last."""


class Received:
    """Of requests that were at an engine, however they ended. Tokens as engines counted or as estimated."""

    __slots__ = ("completion_tokens", "num_requests", "prompt_tokens")

    def __init__(self) -> None:
        self.num_requests = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    @property
    def service_tokens(self) -> float:
        """Weighted as `fair` weighs them."""
        return INPUT_WEIGHT * self.prompt_tokens + OUTPUT_WEIGHT * self.completion_tokens


class ServiceBook(NullEvents):
    """A listener, since the start of the process. Used on the loop's thread."""

    def __init__(self, max_flows: int = MAX_FLOWS) -> None:
        self._received: OrderedDict[Flow, Received] = OrderedDict()
        self._max_flows = max_flows
        # The one served last, which is mostly served next too.
        self._newest: tuple[Flow, Received] | None = None

    def settled(self, record: RequestRecord) -> None:
        if record.timeline.dispatched_at is None:
            return
        flow, usage = flow_of(record.request), record.usage
        newest = self._newest
        received = newest[1] if newest is not None and newest[0] is flow else self._served(flow)
        received.num_requests += 1
        received.prompt_tokens += usage.prompt_tokens
        received.completion_tokens += usage.completion_tokens

    def _served(self, flow: Flow) -> Received:
        received = self._received.get(flow)
        if received is None:
            if len(self._received) >= self._max_flows:
                self._received.popitem(last=False)
            received = self._received[flow] = Received()
        self._received.move_to_end(flow)
        self._newest = (flow, received)
        return received

    @property
    def flows(self) -> list[Flow]:
        return list(self._received)

    def received(self, flow: Flow) -> Received:
        return self._received.get(flow) or Received()
