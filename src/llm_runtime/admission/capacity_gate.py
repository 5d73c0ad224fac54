"""The capacity gate: whether what would have to wait may join the queue, and when to return if not.

Three reasons to refuse, all without effect on a request that a free slot would take at once:

- the queue is full (`QueueFull`);
- the request would miss the time it has: its own limits, or `max_predicted_wait_s` (`WouldMissDeadline`).
  Not before the drain rate was measured: nobody is refused on a guess;
- it is a retry that nobody asked for, and the budget for those is spent (`RetriesExhausted`).

The gate closes at `CLOSE_AT` of a limit, and who was told to return is let in up to the whole of it: a
forecast is off by some share, and a promise has to hold all the same. For the same reason the cap gives
way by an eighth to those who were told. A full queue of sheddable requests drops those first.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from llm_runtime.admission.base import NO_ROOM, AdmissionPolicy, Load, MakeRoom
from llm_runtime.admission.line import Line, Place
from llm_runtime.admission.retry_budget import RetryBudget
from llm_runtime.core.errors import LLMRuntimeError, QueueFull, RetriesExhausted, WouldMissDeadline
from llm_runtime.core.request import PriorityClass, RuntimeRequest, priority_class

CLOSE_AT: Final = 0.85
YIELD: Final = 8
"""One place in so many of a full queue is kept for those who were told to return."""
UNKNOWN_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Bound:
    """One limit, in seconds of queue. backlog_s: as it is. room_s: at which the gate closes. most_s: for
    those who were told to return. needed: what would have to be shed to get below."""

    backlog_s: float
    room_s: float
    most_s: float
    error: type[LLMRuntimeError]
    message: str
    can_shed: bool = False
    needed: MakeRoom = NO_ROOM


@dataclass(frozen=True, slots=True)
class _Asking:
    """Who knocks. held: the place he was given; place: the same, if he comes when he was told to."""

    request: RuntimeRequest
    load: Load
    now: float
    line: Line
    held: Place | None
    place: Place | None
    rate: float
    own_s: float


class CapacityGate(AdmissionPolicy):
    """The second gate's policy; shared by all pools.

    max_queue_size: requests that may wait in a pool. max_predicted_wait_s: for all, beside their own
    limits. retry_share: of a `RetryBudget`. None: no such limit.
    """

    name = "capacity"

    def __init__(
        self,
        max_queue_size: int | None = None,
        *,
        max_predicted_wait_s: float | None = None,
        retry_share: float | None = None,
    ) -> None:
        if max_queue_size is not None and max_queue_size < 0:
            raise ValueError(f"max_queue_size must not be negative, not {max_queue_size}")
        self._max_queue_size = max_queue_size
        self._max_predicted_wait_s = max_predicted_wait_s
        self._retry_share = retry_share
        self._budgets: dict[str, RetryBudget] = {}

    def reserve(self, request: RuntimeRequest, load: Load, now: float) -> MakeRoom | None:
        """Raises QueueFull, WouldMissDeadline or RetriesExhausted."""
        if not load.would_wait and not load.line.num_places:
            if self._retry_share is not None and not request.num_retries:
                self._budget(request).earn()
            return None
        asking = _asking(request, load, now)
        is_retry = bool(request.num_retries) and asking.place is None
        room = None
        if load.would_wait:
            if is_retry and not self._may_retry(request):
                raise _refusal(asking, _by_retries(asking))
            room = _judged(asking, self._bounds(asking))
        if asking.held is not None:
            asking.line.take(asking.held, now)
        elif not is_retry and self._retry_share is not None:
            self._budget(request).earn()
        return room

    def _bounds(self, asking: _Asking) -> list[_Bound]:
        bounds = []
        if self._max_queue_size is not None:
            bounds.append(_by_count(asking, self._max_queue_size))
        forecast = asking.load.forecast
        if forecast is not None:
            time_s = time_to_wait_s(asking.request, asking.load, asking.now)
            if self._max_predicted_wait_s is not None:
                time_s = min(time_s, self._max_predicted_wait_s)
            if time_s < math.inf:
                bounds.append(_by_time(asking, time_s))
        return bounds

    def _may_retry(self, request: RuntimeRequest) -> bool:
        return self._retry_share is None or self._budget(request).spend()

    def _budget(self, request: RuntimeRequest) -> RetryBudget:
        budget = self._budgets.get(request.model)
        if budget is None:
            assert self._retry_share is not None
            budget = self._budgets[request.model] = RetryBudget(self._retry_share)
        return budget


def time_to_wait_s(request: RuntimeRequest, load: Load, now: float) -> float:
    """How long it can wait and still be in time, by what its answer is expected to take; infinite without
    a limit. A stream must have its first token in time, a plain reply all of it."""
    limits, forecast = request.limits, load.forecast
    prompt_s, answer_s = (0.0, 0.0) if forecast is None else (forecast.prompt_s, forecast.answer_s)
    spent_s = now - request.arrived_at
    times = [math.inf]
    if limits.queue_s is not None:
        times.append(limits.queue_s)
    if limits.request_s is not None:
        times.append(limits.request_s - spent_s - (prompt_s if request.stream else answer_s))
    if limits.total_s is not None:
        times.append(limits.total_s - spent_s - answer_s)
    if limits.first_byte_s is not None:
        times.append(limits.first_byte_s - spent_s - prompt_s)
    return max(min(times), 0.0)


def _asking(request: RuntimeRequest, load: Load, now: float) -> _Asking:
    line = load.line
    # Whose client says that it never sent this before was told nothing, whoever else has sent the same.
    held = None if request.num_retries == 0 else line.holder(place_key(request), now)
    due = held if held is not None and line.is_due(held, now) else None
    rate = load.work / UNKNOWN_INTERVAL_S
    if load.forecast is not None:
        rate = load.forecast.rate
    return _Asking(request, load, now, line, held, due, rate, load.work / rate)


def place_key(request: RuntimeRequest) -> Hashable:
    """By which who returns is known again: the same tenant with the same body."""
    return request.tenant, request.model, request.fingerprint or request.id


def _by_count(asking: _Asking, max_queue_size: int) -> _Bound:
    load = asking.load
    interval_s = UNKNOWN_INTERVAL_S if load.forecast is None else load.forecast.interval_s
    return _Bound(
        backlog_s=(load.num_waiting + 1) * interval_s,
        room_s=max_queue_size * interval_s,
        most_s=(max_queue_size + max_queue_size // YIELD) * interval_s,
        error=QueueFull,
        message=f"The queue is full: {load.num_waiting} requests are waiting.",
        can_shed=load.num_sheddable > 0,
        needed=MakeRoom(num_requests=1),
    )


def _by_time(asking: _Asking, time_s: float) -> _Bound:
    forecast = asking.load.forecast
    assert forecast is not None
    room_s = CLOSE_AT * time_s
    excess_s = max(forecast.wait_s - room_s, 0.0)
    return _Bound(
        backlog_s=forecast.wait_s,
        room_s=room_s,
        most_s=time_s,
        error=WouldMissDeadline,
        message=f"The request would wait for about {forecast.wait_s:.1f} s and can wait for {time_s:.1f} s.",
        can_shed=0 < excess_s <= forecast.sheddable_s,
        needed=MakeRoom(work=excess_s * forecast.rate),
    )


def _by_retries(asking: _Asking) -> _Bound:
    """A retry beyond the budget may come when the queue of now has gone."""
    forecast = asking.load.forecast
    return _Bound(
        backlog_s=UNKNOWN_INTERVAL_S if forecast is None else forecast.wait_s,
        room_s=0.0,
        most_s=0.0,
        error=RetriesExhausted,
        message="Too many retries: the queue takes no more of them now.",
    )


def _judged(asking: _Asking, bounds: list[_Bound]) -> MakeRoom | None:
    """What has to be shed for it, None for nothing. Raises the error of the bound that is reached; of
    several the one that takes longest to get below."""
    reached = [bound for bound in bounds if not _is_below(asking, bound)]
    sheddable = priority_class(asking.request.priority) is PriorityClass.BATCH
    if not reached:
        return None
    if not sheddable and all(bound.can_shed for bound in reached):
        return MakeRoom(
            max(bound.needed.num_requests for bound in reached), max(bound.needed.work for bound in reached)
        )
    worst = max(reached, key=lambda bound: bound.backlog_s - bound.room_s)
    raise _refusal(asking, worst)


def _refusal(asking: _Asking, bound: _Bound) -> LLMRuntimeError:
    return bound.error(bound.message, retry_after_s=_told_s(asking, bound))


def _is_below(asking: _Asking, bound: _Bound) -> bool:
    if asking.place is not None:
        return bound.backlog_s <= bound.most_s
    line, now = asking.line, asking.now
    return line.has_room(bound.backlog_s, asking.own_s, bound.room_s, asking.rate, now)


def _told_s(asking: _Asking, bound: _Bound) -> float:
    """When there will be room, with a place for it."""
    line, load, now = asking.line, asking.load, asking.now
    wait_s = max(bound.backlog_s - bound.room_s, 0.0)
    if asking.place is not None:
        return line.renew(asking.place, wait_s, asking.rate, now)
    if asking.held is not None:  # too early
        return asking.held.due_at - now
    return line.give(place_key(asking.request), load.work, wait_s, asking.rate, now)
