"""Fair flows: every tenant gets the same service of tokens while it wants it, by virtual token counters.

A tenant's counter grows with what it is served, divided by its weight: 1 for each prompt token, 2 for each
generated one. The tenant with the lowest counter is next. The cost is charged when a request is dispatched,
as predicted, and corrected when it ends: who was charged too much gets it back, and who used more owes it.

A tenant that comes back after having had nothing waiting is lifted to the counter of whoever is next, so
time in which it wanted nothing is no claim on the time to come. But of the service that it did not want it
keeps some as credit, which is used up before its counter grows: whoever stays below its share is served at
once, also in bursts of the credit's size, and nobody can save up for an hour. No slot stays free for
anybody's sake.

After Sheng et al., "Fairness in Serving Large Language Models" (2024); there an engine charges each token
as it comes, here only the ends are seen.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection
from itertools import islice

from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.scheduling.flows import Shape, SingleFlow, shape_of
from llm_runtime.scheduling.history import PredictTokens
from llm_runtime.scheduling.order import Order, Waiting

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
SWEEP_ABOVE = 64
MAX_SAMPLE = 256
ROUNDING = 1e-6

WeightOf = Callable[[str], float]
"""tenant -> its share relative to others'; above 0."""


def equal_weights(tenant: str) -> float:
    return 1.0


class _Tenant:
    """counter: of service received, or lifted to. credit: what it may have before that counts. version: of
    its place in the heap."""

    __slots__ = ("counter", "credit", "flow", "num_running", "num_waiting", "version", "weight")

    def __init__(self, flow: SingleFlow, weight: float, counter: float, credit: float) -> None:
        self.counter = counter
        self.credit = credit
        self.flow = flow
        self.weight = weight
        self.num_waiting = 0
        self.num_running = 0
        self.version = -1

    @property
    def rank(self) -> float:
        return self.counter - self.credit


class FairFlows:
    """One flow per tenant, served by counter. Implements `Flows`.

    Finding the next is O(log tenants), however many wait. Tenants whose counter tells nothing any more
    are forgotten.
    """

    def __init__(
        self,
        order: Order,
        predict: PredictTokens,
        weight_of: WeightOf = equal_weights,
        *,
        credit_tokens: float = 0.0,
    ) -> None:
        self._order = order
        self._predict = predict
        self._weight_of = weight_of
        self._credit_tokens = credit_tokens
        self._tenants: dict[str, _Tenant] = {}
        self._heap: list[tuple[float, int, str]] = []  # rank, version, name; with another version outdated
        self._version = 0
        self._shapes: Counter[Shape] = Counter()
        self.work = 0.0
        self._served_last: _Tenant | None = None
        self._num_running = 0
        self._num_busy = 0  # tenants with something running
        self._sweep_above = SWEEP_ABOVE

    def push(self, entry: Waiting) -> None:
        name = entry.request.tenant
        tenant = self._tenants.get(name) or self._come(name)
        if not tenant.num_waiting:
            self._lift(tenant)
        tenant.flow.push(entry)
        tenant.num_waiting += 1
        self._shapes[shape_of(entry)] += 1
        self.work += entry.work
        if tenant.num_waiting == 1:
            self._place(name, tenant)

    def drop(self, entry: Waiting) -> None:
        self._leave(entry).flow.drop(entry)
        self._forget(entry.request.tenant)

    def take(self, entry: Waiting) -> None:
        tenant = self._leave(entry)
        tenant.flow.take(entry)
        self._num_busy += not tenant.num_running
        tenant.num_running += 1
        self._num_running += 1
        self._served_last = tenant
        entry.charged = self._cost(entry.request)
        self._charge(entry.request.tenant, tenant, entry.charged)

    def settle(self, entry: Waiting, usage: Usage | None) -> None:
        tenant = self._tenants[entry.request.tenant]
        tenant.num_running -= 1
        self._num_running -= 1
        self._num_busy -= not tenant.num_running
        spent = 0.0
        if usage is not None:
            spent = INPUT_WEIGHT * usage.prompt_tokens + OUTPUT_WEIGHT * usage.completion_tokens
        self._charge(entry.request.tenant, tenant, spent - entry.charged)
        self._forget(entry.request.tenant)

    @property
    def is_trackless(self) -> bool:
        """What a tenant gets is counted, whoever else waits."""
        return False

    def is_favoured(self, entry: Waiting) -> bool:
        """Its tenant has had less than its share, and runs less than half of what is running by tenant: a
        crowd that comes after a pause is owed something too, but not the slots kept for small ones."""
        tenant = self._tenants.get(entry.request.tenant)
        if tenant is None or tenant.credit <= 0:
            return False
        num_busy = self._num_busy + (not tenant.num_running)
        return 2 * tenant.num_running * num_busy <= self._num_running

    def head(self, refused: Collection[Shape]) -> Waiting | None:
        if all(shape in refused for shape in self._shapes):
            return None
        passed: list[tuple[float, int, str]] = []
        found = None
        while self._heap and found is None:
            item = self._heap[0]
            tenant = self._tenants.get(item[2])
            if tenant is None or tenant.version != item[1] or not tenant.num_waiting:
                heapq.heappop(self._heap)
                continue
            found = tenant.flow.head(refused)
            if found is None:
                passed.append(heapq.heappop(self._heap))
        for item in passed:
            heapq.heappush(self._heap, item)
        return found

    def ahead(self, entry: Waiting) -> float:
        """While a tenant is served its own work and this, every other gets as much by its weight, if it
        wants it. Of many tenants a sample tells, so that this stays cheap."""
        own = self._tenants.get(entry.request.tenant)
        weight = own.weight if own is not None else self._weight_of(entry.request.tenant)
        before = own.flow.ahead(entry) if own is not None else 0.0
        share = (before + entry.work) / weight
        stride = 1 + len(self._tenants) // MAX_SAMPLE
        sample = list(islice(self._tenants.values(), 0, None, stride))
        others = sum([min(tenant.flow.work, share * tenant.weight) for tenant in sample if tenant is not own])
        return before + others * len(self._tenants) / max(1, len(sample))

    def counters(self) -> dict[str, float]:
        """Of the tenants that are known, less their credit: for whoever explains the queue."""
        return {name: tenant.rank for name, tenant in self._tenants.items()}

    # ---- counting

    def _cost(self, request: RuntimeRequest) -> float:
        tokens = self._predict(request) * request.num_slots
        return INPUT_WEIGHT * request.num_prompt_tokens + OUTPUT_WEIGHT * tokens

    def _charge(self, name: str, tenant: _Tenant, cost: float) -> None:
        if cost:
            due = cost / tenant.weight
            paid = min(tenant.credit, max(due, 0.0))
            tenant.credit -= paid
            tenant.counter += due - paid
            if tenant.num_waiting:
                self._place(name, tenant)

    def _come(self, name: str) -> _Tenant:
        """A tenant that is not known has not had anything, as far as anybody remembers."""
        weight = self._weight_of(name)
        tenant = _Tenant(SingleFlow(self._order), weight, self._level(), self._credit_tokens / weight)
        self._tenants[name] = tenant
        return tenant

    def _lift(self, tenant: _Tenant) -> None:
        missed = self._level() - tenant.counter
        if missed > 0:
            tenant.credit = min(tenant.credit + missed, self._credit_tokens / tenant.weight)
            tenant.counter += missed

    def _place(self, name: str, tenant: _Tenant) -> None:
        self._version += 1
        tenant.version = self._version
        heapq.heappush(self._heap, (tenant.rank, self._version, name))
        if len(self._heap) > 2 * len(self._tenants) + SWEEP_ABOVE:
            self._heap = [
                (each.rank, each.version, each_name)
                for each_name, each in self._tenants.items()
                if each.num_waiting
            ]
            heapq.heapify(self._heap)

    def _level(self) -> float:
        """The counter of who is next; while nobody waits, of who was served last."""
        while self._heap:
            _, version, name = self._heap[0]
            tenant = self._tenants.get(name)
            if tenant is not None and tenant.version == version and tenant.num_waiting:
                return tenant.counter
            heapq.heappop(self._heap)
        return self._served_last.counter if self._served_last is not None else 0.0

    def _leave(self, entry: Waiting) -> _Tenant:
        tenant = self._tenants[entry.request.tenant]
        tenant.num_waiting -= 1
        shape = shape_of(entry)
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]
        # Sums of floats drift; an empty band starts anew.
        self.work = self.work - entry.work if self._shapes else 0.0
        return tenant

    def _forget(self, name: str) -> None:
        """Who wants nothing and would be lifted anyway need not be remembered."""
        tenant = self._tenants[name]
        if self._is_forgettable(tenant):
            del self._tenants[name]
        elif len(self._tenants) > self._sweep_above:
            self._tenants = {n: t for n, t in self._tenants.items() if not self._is_forgettable(t)}
            self._sweep_above = SWEEP_ABOVE + 2 * len(self._tenants)

    def _is_forgettable(self, tenant: _Tenant) -> bool:
        """Whether it would come back as if it had never been there."""
        if tenant.num_waiting or tenant.num_running:
            return False
        credit = self._credit_tokens / tenant.weight
        return min(tenant.credit + self._level() - tenant.counter, credit) >= credit - ROUNDING
