"""What a pool's decision core measures of its replicas, and what follows from it: how many slots are in
force, how long a request would wait, and who was told to return. Pure; time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_runtime.admission.adaptive_limit import AdaptiveLimit
from llm_runtime.admission.forecast import Forecast, Forecaster
from llm_runtime.admission.line import Line
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.runtime.capacity import Limits, ReplicaSlots
from llm_runtime.scheduling.base import Outlook


@dataclass(frozen=True, slots=True)
class Promises:
    """Who was told to return: places given out and not yet lapsed, and, since the start, kept (let in when
    they came), broken (told again) and lapsed (nobody came)."""

    outstanding: int
    kept: int
    broken: int
    lapsed: int


class Measures:
    """Owned by one decision core. adaptive: whether the limits of continuous replicas adapt."""

    def __init__(self, replicas: dict[str, ReplicaSlots], *, adaptive: bool) -> None:
        self._replicas = replicas
        self._anybody_waits = False
        self._forecaster = Forecaster([replica.id for replica in replicas.values() if replica.is_static])
        self.line = Line()
        self.limits = Limits(
            {
                replica.id: AdaptiveLimit(replica.num_slots)
                for replica in replicas.values()
                if adaptive and not replica.is_static
            }
        )

    # ---- events

    def started(self, request: RuntimeRequest, replica_id: str, work: float, now: float) -> None:
        here, limits = self._replicas[replica_id], self.limits
        in_force = limits.in_force(here) if limits.any else here.num_slots
        self._forecaster.started(request, replica_id, work, in_force, now)

    def left(self, request_id: str, usage: Usage | None, prompt_weight: float, now: float) -> None:
        """For good. Of what an engine refused or died over nothing is learnt."""
        stay = self._forecaster.running(request_id)
        if stay is None:
            return
        served = _was_served(usage, stay.generates)
        here, limits = self._replicas[stay.replica], self.limits
        if not limits.any:
            self._forecaster.left(request_id, here.num_slots, now, drained=served)
            return
        self._forecaster.left(request_id, limits.in_force(here), now, drained=served)
        limit = limits.of(stay.replica)
        if limit is not None and served and usage is not None and not usage.estimated:
            limit.observe(stay, usage, prompt_weight, now)

    def given_back(self, request_id: str, now: float) -> None:
        """To the queue: it has left its engine, but will come again."""
        stay = self._forecaster.running(request_id)
        if stay is not None:
            in_force = self.limits.in_force(self._replicas[stay.replica])
            self._forecaster.left(request_id, in_force, now, drained=False)

    def waits(self, anybody: bool, now: float) -> None:
        """Told whenever that may have changed: whether anybody waits."""
        if anybody is not self._anybody_waits:
            self._anybody_waits = anybody
            self._forecaster.waits(anybody, now)
            self.limits.demand(anybody, now)

    # ---- what follows

    def forecast(self, outlook: Outlook, now: float) -> Forecast | None:
        """For a request that has to wait; None while nothing was measured."""
        in_force = {
            replica.id: self.limits.in_force(replica)
            for replica in self._replicas.values()
            if replica.ready and not replica.draining
        }
        rate = self._forecaster.rate(in_force, now)
        if rate is None:
            return None
        left_over = self._forecaster.left_over(rate, outlook.overtaken_by, outlook.slot_share, now)
        return Forecast(
            wait_s=self._forecaster.wait_s(outlook.ahead, left_over),
            own_s=outlook.work / rate,
            interval_s=self._forecaster.interval_s(rate),
            sheddable_s=outlook.sheddable_ahead / rate,
            prompt_s=outlook.prompt_s,
            answer_s=outlook.answer_s,
            rate=rate,
        )

    @property
    def promises(self) -> Promises:
        line = self.line
        return Promises(line.num_places, line.num_kept, line.num_broken, line.num_lapsed)

    @property
    def usual_work(self) -> float:
        """Of a request, as the scheduler expected it."""
        return self._forecaster.usual_work


def _was_served(usage: Usage | None, generates: bool) -> bool:
    if usage is None:
        return False
    return usage.completion_tokens > 0 or (not generates and usage.prompt_tokens > 0 and not usage.estimated)
