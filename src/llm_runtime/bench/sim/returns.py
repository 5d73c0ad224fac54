"""Clients that come back when they were told to, in virtual time, and how true what they were told was.

The truth about a refused client's place: the first instant at which the gate's own rule for those without
a place would have let it in, behind what is queued then and behind every client that was told before it
and has not come yet. It is looked for after every event, over the core that decides, which it does not
touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from llm_runtime.admission.capacity_gate import CLOSE_AT
from llm_runtime.bench.sim.job import Ask, Job
from llm_runtime.core.errors import Rejected
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.runtime.decision import DecisionCore


@dataclass(slots=True)
class Told:
    """One refusal. again: it had come when told. free_at: when there really was a place, inf if
    that was not seen."""

    request: RuntimeRequest
    told_at: float
    told_s: float
    returns: bool
    again: bool
    free_at: float = math.inf
    let_in: bool = False

    @property
    def true_s(self) -> float:
        return self.free_at - self.told_at


class ReturningFeed:
    """Implements `Feed`: the asks, and again each that was refused, when it was told, up to `tries` in all
    and as long as it is told no more than its client's patience, which goes by the number of the ask."""

    def __init__(self, asks: Iterable[Ask], *, tries: int, wait_s: Callable[[int], float]) -> None:
        self._asks = list(asks)
        self._tries = tries
        self._wait_s = wait_s
        self._numbers = count(len(self._asks))
        self.told: list[Told] = []
        self._last: dict[int, Told] = {}

    def arrivals(self) -> Iterator[Ask]:
        return iter(self._asks)

    def ended(self, job: Job, now: float) -> Ask | None:
        ask = job.ask
        original = ask.number if ask.original is None else ask.original
        before = self._last.pop(original, None)
        refused = isinstance(job.error, Rejected)
        if before is not None:
            before.let_in = not refused
        if not refused or job.error is None or job.error.retry_after_s is None:
            return None
        told_s, tries = job.error.retry_after_s, 1 + (ask.num_retries or 0)
        returns = tries < self._tries and told_s <= self._wait_s(original)
        self.told.append(told := Told(job.request, now, told_s, returns, before is not None))
        if not returns:
            return None
        self._last[original] = told
        return replace(
            ask, number=next(self._numbers), at_s=now + told_s, num_retries=tries, original=original
        )


class Truth:
    """Watches the core for the instants at which the told ones' places became free."""

    def __init__(self, feed: ReturningFeed, limit_s: float) -> None:
        self._feed = feed
        self._room_s = CLOSE_AT * limit_s
        self._num_seen = 0
        self._open: list[Told] = []

    def __call__(self, core: DecisionCore, now: float) -> None:
        told = self._feed.told
        for each in told[self._num_seen :]:
            # Whom a promise was broken to stands before those who were told after him.
            self._open.insert(0 if each.again else len(self._open), each)
        self._num_seen = len(told)
        if not self._open:
            return
        first = self._open[0].request
        load = core.load(first, now)
        if load.would_wait and load.forecast is None:
            return
        backlog_s, rate = (
            (0.0, math.inf) if load.forecast is None else (load.forecast.wait_s, load.forecast.rate)
        )
        still = []
        for each in self._open:
            if backlog_s <= self._room_s and each.free_at == math.inf:
                each.free_at = now
            is_away = each.returns and now < each.told_at + each.told_s
            if is_away:
                backlog_s += load.work / rate
            if is_away or each.free_at == math.inf:
                still.append(each)
        self._open = still
