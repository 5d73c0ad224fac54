"""How long a request would wait: what is queued before it, by how fast the pool drains.

The unit of work is the scheduler's, about a generated token. A replica's drain rate is

    slots in force * work per second of a slot

where the second factor is measured: for every request that left a slot, the work it had been expected
to be when it was queued, by the time it held the slot, weighted with the part of that time in which the
replica was full. So predictions that are wrong by a factor are wrong in the rate by the same factor, and
the wait is right; an idle replica, which is faster, teaches nothing.

    wait = (work ahead + residual) / (rate - rate at which better classes come)

residual: work left in a slot when one looks at a random instant, E[w^2] / 2 E[w]; the slot that the last
of those ahead does not take becomes free so much later (renewal theory).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llm_runtime.core.request import PriorityClass, RuntimeRequest, priority_class

FORGETTING = 0.96
"""Weight of a sample when the next one comes: some 25 count."""
MIN_SAMPLES = 3
FULL_SHARE = 0.9
"""Of the slots in force; a request of several slots may leave some of them free."""
SILENCE = 1.5
"""Mean service times without anybody leaving a full pool, after which it is taken to have become slower.
A static batch leaves all at once, and then nobody does for one service time."""
ARRIVAL_MEMORY_S = 10.0
LEAST_SHARE = 0.05
"""Of the rate that better classes leave to the others, whatever comes of them."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """For one request, in seconds. wait_s: until it would be dispatched. own_s: what it adds to the wait
    of whoever comes behind it. interval_s: between two requests that leave. sheddable_s: the part of
    wait_s that could be shed. prompt_s, answer_s: on an engine, until its first token and in all.
    rate: at which the pool drains, work per second."""

    wait_s: float
    own_s: float
    interval_s: float
    sheddable_s: float
    prompt_s: float
    answer_s: float
    rate: float


@dataclass(slots=True)
class _Running:
    replica: str
    work: float
    num_slots: int
    started_at: float
    occupancy: float  # of the replica's integrals, when it was started
    full_s: float


@dataclass(frozen=True, slots=True)
class Stay:
    """A request that has left a replica. held_s: its time there. num_slots: its own. mean_held: slots that
    were held there meanwhile, its own included, on average over that time."""

    replica: str
    work: float
    num_slots: int
    started_at: float
    held_s: float
    mean_held: float


@dataclass(slots=True)
class _Replica:
    """Integrals over time of the slots held, and of the time in which it was full."""

    num_held: int = 0
    occupancy: float = 0.0
    full_s: float = 0.0
    is_full: bool = False
    seen_at: float = 0.0
    work: float = 0.0  # of past samples, forgotten by and by, as is the slot time of them
    slot_s: float = 0.0
    num_samples: int = 0

    def advance(self, now: float) -> None:
        span_s = max(now - self.seen_at, 0.0)
        self.seen_at = now
        self.occupancy += self.num_held * span_s
        if self.is_full:
            self.full_s += span_s


@dataclass(slots=True)
class _Arrivals:
    """Work per second, forgotten exponentially."""

    rate: float = 0.0
    seen_at: float = -math.inf

    def add(self, work: float, now: float) -> None:
        self.rate = self.at(now) + work / ARRIVAL_MEMORY_S
        self.seen_at = now

    def at(self, now: float) -> float:
        return self.rate * math.exp(-max(now - self.seen_at, 0.0) / ARRIVAL_MEMORY_S)


@dataclass(slots=True)
class Sizes:
    """Mean of what requests were expected to be, and of its square."""

    mean: float = 0.0
    mean_square: float = 0.0
    num_seen: int = 0

    def learn(self, work: float) -> None:
        self.num_seen += 1
        gain = max(1 - FORGETTING, 1 / self.num_seen)
        self.mean += gain * (work - self.mean)
        self.mean_square += gain * (work * work - self.mean_square)

    @property
    def residual(self) -> float:
        return self.mean_square / (2 * self.mean) if self.mean else 0.0


@dataclass(slots=True)
class Forecaster:
    """Of one pool; owned by its decision core, which tells it of every start and end. Each costs O(1)."""

    _replicas: dict[str, _Replica] = field(default_factory=dict)
    _running: dict[str, _Running] = field(default_factory=dict)
    _arrivals: dict[PriorityClass, _Arrivals] = field(
        default_factory=lambda: {cls: _Arrivals() for cls in PriorityClass}
    )
    _sizes: Sizes = field(default_factory=Sizes)
    _left_at: float = -math.inf
    _full_since: float = math.inf
    """The instant from which on somebody has been waiting without a break."""

    def waits(self, anybody: bool, now: float) -> None:
        """Told after every decision: whether anybody waits still."""
        if not anybody:
            self._full_since = math.inf
        elif self._full_since == math.inf:
            self._full_since = now

    def started(self, request: RuntimeRequest, replica: str, work: float, in_force: int, now: float) -> None:
        """in_force: slots of the replica that may be held; 0 where any held slot keeps all others out."""
        self._arrivals[priority_class(request.priority)].add(work, now)
        num_slots = request.num_slots
        here = self._advanced(replica, now)
        here.num_held += num_slots
        here.is_full = here.num_held >= FULL_SHARE * in_force
        self._running[request.id] = _Running(replica, work, num_slots, now, here.occupancy, here.full_s)

    def left(self, request_id: str, in_force: int, now: float, *, drained: bool = True) -> Stay | None:
        """drained: it had an answer and will not come back; only that teaches anything. None: it did not,
        or it was not running."""
        run = self._running.pop(request_id, None)
        if run is None:
            return None
        here = self._advanced(run.replica, now)
        held_s, full_s = now - run.started_at, here.full_s - run.full_s
        mean_held = (here.occupancy - run.occupancy) / held_s if held_s > 0 else float(here.num_held)
        here.num_held -= run.num_slots
        here.is_full = here.num_held > 0 and here.num_held >= FULL_SHARE * in_force
        if not drained:
            return None
        self._left_at = now
        self._sizes.learn(run.work)
        if held_s > 0 and full_s > 0:
            here.work = FORGETTING * here.work + run.work * full_s / held_s
            here.slot_s = FORGETTING * here.slot_s + full_s * run.num_slots
            here.num_samples += 1
        return Stay(run.replica, run.work, run.num_slots, run.started_at, held_s, mean_held)

    def rate(self, in_force: Mapping[str, int], now: float) -> float | None:
        """Work per second of a full pool; None while nothing was measured. in_force: slots by replica, of
        those that are ready."""
        speed = self._speed(self._replicas.values())
        if speed is None or not in_force:
            return None
        rate = 0.0
        for replica, num_slots in in_force.items():
            here = self._replicas.get(replica)
            own = None if here is None else self._speed((here,))
            rate += num_slots * (speed if own is None else own)
        silent_s = now - max(self._left_at, self._full_since)
        service_s = self._sizes.mean * sum(in_force.values()) / rate
        if silent_s > SILENCE * service_s:
            rate *= SILENCE * service_s / silent_s
        return rate

    def wait_s(self, ahead: float, overtaken_by: Iterable[PriorityClass], rate: float, now: float) -> float:
        """Until somebody with so much work ahead would be dispatched, no slot being free."""
        left_over = rate - sum(self._arrivals[cls].at(now) for cls in overtaken_by)
        return (ahead + self._sizes.residual) / max(left_over, LEAST_SHARE * rate)

    def interval_s(self, rate: float) -> float:
        """Between two requests that leave."""
        return self._sizes.mean / rate

    def where(self, request_id: str) -> str | None:
        """The replica it runs on."""
        run = self._running.get(request_id)
        return None if run is None else run.replica

    @staticmethod
    def _speed(replicas: Iterable[_Replica]) -> float | None:
        """Work per second of a slot."""
        work = slot_s = 0.0
        num_samples = 0
        for each in replicas:
            work += each.work
            slot_s += each.slot_s
            num_samples += each.num_samples
        return work / slot_s if num_samples >= MIN_SAMPLES and slot_s > 0 else None

    def _advanced(self, replica: str, now: float) -> _Replica:
        here = self._replicas.get(replica)
        if here is None:
            here = self._replicas[replica] = _Replica(seen_at=now)
        here.advance(now)
        return here
