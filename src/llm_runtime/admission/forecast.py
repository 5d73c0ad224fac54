"""How long a request would wait: what is queued before it, by how fast the pool drains.

The unit of work is the scheduler's, about a generated token. A replica's drain rate is

    slots in force * share of them that is held * work per second of a slot

where the last factor is measured: for every request that left a slot, the work it had been expected
to be when it was queued, by the time it held the slot, weighted with the part of that time in which the
replica was full. So predictions that are wrong by a factor are wrong in the rate by the same factor, and
the wait is right; an idle replica, which is faster, teaches nothing.

A replica that batches by itself is full when its slots are held, all but a tenth; they are then held all
the time, and the second factor is 1. One that runs a batch from start to end is as full as it can be while
somebody waits; slots whose member has ended stay empty until the batch is over, and that share is measured.

    wait = (work ahead + residual) / min(rate - rate at which better classes come, share of slots * rate)

residual: work left in a slot when one looks at a random instant, E[w^2] / 2 E[w]; the slot that the last
of those ahead does not take becomes free so much later (renewal theory).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from llm_runtime.core.quick import quick
from llm_runtime.core.request import EndpointKind, PriorityClass, RuntimeRequest, priority_class

FORGETTING: Final = 0.96
"""Weight of a sample when the next one comes: some 25 count."""
MIN_SAMPLES: Final = 3
FULL_SHARE: Final = 0.9
"""Of the slots in force; a request of several slots may leave some of them free."""
SILENCE: Final = 1.5
"""Mean service times without anybody coming to or leaving a full pool, after which it is taken to have become
slower. A static batch leaves all at once, and then nobody does for one service time."""
ARRIVAL_MEMORY_S: Final = 10.0
LEAST_SHARE: Final = 0.05
"""Of the rate that better classes leave to the others, whatever comes of them."""
WITHOUT_ANSWER: Final = frozenset({EndpointKind.EMBEDDINGS, EndpointKind.RERANK, EndpointKind.TOKENIZE})
"""Of which no token is generated when all has gone well."""


@quick
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


class Stay:
    """A request on a replica; the forecaster's until it has left. num_slots: its own. held_s: its time there.
    mean_held: slots that were held there meanwhile, its own included, on average over that time.

    occupancy, full_s: of the replica's integrals, when it came. generates: whether it is to have tokens.
    """

    __slots__ = (
        "full_s", "generates", "held_s", "mean_held", "num_slots", "occupancy", "replica", "started_at",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        replica: str,
        work: float,
        num_slots: int,
        started_at: float,
        held_s: float = 0.0,
        mean_held: float = 0.0,
        occupancy: float = 0.0,
        full_s: float = 0.0,
    ) -> None:
        self.replica: Final = replica
        self.work: Final = work
        self.num_slots: Final = num_slots
        self.started_at: Final = started_at
        self.held_s = held_s
        self.mean_held = mean_held
        self.occupancy: Final = occupancy
        self.full_s: Final = full_s
        self.generates = True


class _Replica:
    """Integrals over time of the slots held, and of the time in which it was full. work, slot_s: of past
    samples, forgotten by and by, as are filled_s and room_s: slot time that was held and that there was, of
    a static replica while it was full."""

    __slots__ = (
        "counted_full_s", "counted_occupancy", "filled_s", "full_occupancy", "full_s", "is_full", "is_static",
        "num_held", "num_samples", "occupancy", "room_s", "seen_at", "slot_s", "work",
    )  # fmt: skip

    def __init__(self, is_static: bool, seen_at: float) -> None:
        self.is_static: Final = is_static
        self.num_held = 0
        self.occupancy = 0.0
        self.full_s = 0.0
        self.full_occupancy = 0.0
        self.is_full = False
        self.seen_at = seen_at
        self.work = 0.0
        self.slot_s = 0.0
        self.num_samples = 0
        self.filled_s = 0.0
        self.room_s = 0.0
        self.counted_full_s = 0.0
        self.counted_occupancy = 0.0

    def moved(self, num_slots: int, in_force: int, somebody_waits: bool, now: float) -> None:
        """Time has passed, and then so many slots were taken (below 0: let go of)."""
        span_s = now - self.seen_at
        if span_s > 0:
            self.seen_at = now
            held_s = self.num_held * span_s
            self.occupancy += held_s
            if self.is_full:
                self.full_s += span_s
                self.full_occupancy += held_s
        self.num_held = num_held = self.num_held + num_slots
        least = 0.0 if self.is_static else FULL_SHARE * in_force
        self.is_full = num_held > 0 and num_held >= least and (somebody_waits or not self.is_static)

    def learn(self, stay: Stay, full_s: float, in_force: int) -> None:
        self.work = FORGETTING * self.work + stay.work * full_s / stay.held_s
        self.slot_s = FORGETTING * self.slot_s + full_s * stay.num_slots
        self.num_samples += 1
        if self.is_static:
            self.filled_s = FORGETTING * self.filled_s + self.full_occupancy - self.counted_occupancy
            self.room_s = FORGETTING * self.room_s + in_force * (self.full_s - self.counted_full_s)
            self.counted_occupancy, self.counted_full_s = self.full_occupancy, self.full_s


class _Arrivals:
    """Work per second, forgotten exponentially; what comes within a hundredth of the memory counts as at
    once."""

    __slots__ = ("rate", "seen_at")

    def __init__(self) -> None:
        self.rate = 0.0
        self.seen_at = -math.inf

    def add(self, work: float, now: float) -> None:
        if now - self.seen_at > ARRIVAL_MEMORY_S / 100:
            self.rate = self.at(now)
            self.seen_at = now
        self.rate += work / ARRIVAL_MEMORY_S

    def at(self, now: float) -> float:
        return self.rate * math.exp(-max(now - self.seen_at, 0.0) / ARRIVAL_MEMORY_S)


class Sizes:
    """Mean of what requests were expected to be, and of its square."""

    __slots__ = ("mean", "mean_square", "num_seen")

    def __init__(self) -> None:
        self.mean = 0.0
        self.mean_square = 0.0
        self.num_seen = 0

    def learn(self, work: float) -> None:
        self.num_seen += 1
        gain = 1 / self.num_seen
        gain = max(gain, 1 - FORGETTING)
        self.mean += gain * (work - self.mean)
        self.mean_square += gain * (work * work - self.mean_square)

    @property
    def residual(self) -> float:
        return self.mean_square / (2 * self.mean) if self.mean else 0.0


class Forecaster:
    """Of one pool; owned by its decision core, which tells it of every start and end. Each costs O(1).

    static: replicas that run a batch from start to end, whose slots are not held all the time.
    """

    def __init__(self, static: Collection[str] = ()) -> None:
        self._static = frozenset(static)
        self._replicas: dict[str, _Replica] = {}
        self._stays: dict[str, Stay] = {}
        self._arrivals = {cls: _Arrivals() for cls in PriorityClass}
        self._sizes = Sizes()
        self._moved_at = -math.inf
        self._waiting_since = math.inf

    def waits(self, anybody: bool, now: float) -> None:
        """Told whenever that may have changed: whether anybody waits."""
        if anybody is (self._waiting_since < math.inf):
            return
        self._waiting_since = now if anybody else math.inf
        for replica in self._static:
            self._replica(replica, now).moved(0, 0, anybody, now)

    def started(self, request: RuntimeRequest, replica: str, work: float, in_force: int, now: float) -> None:
        """in_force: slots of the replica that may be held."""
        self._moved_at = now
        self._arrivals[priority_class(request.priority)].add(work, now)
        num_slots = request.num_slots
        here = self._replica(replica, now)
        here.moved(num_slots, in_force, self._waiting_since < math.inf, now)
        stay = Stay(replica, work, num_slots, now, 0.0, 0.0, here.occupancy, here.full_s)
        if request.kind in WITHOUT_ANSWER:
            stay.generates = False
        self._stays[request.id] = stay

    def left(self, request_id: str, in_force: int, now: float, *, drained: bool = True) -> Stay | None:
        """drained: it had an answer and will not come back; only that teaches anything. None: it did not,
        or it was not running."""
        stay = self._stays.pop(request_id, None)
        if stay is None:
            return None
        here = self._replica(stay.replica, now)
        num_held = here.num_held
        here.moved(-stay.num_slots, in_force, self._waiting_since < math.inf, now)
        stay.held_s = held_s = now - stay.started_at
        stay.mean_held = (here.occupancy - stay.occupancy) / held_s if held_s > 0 else float(num_held)
        if not drained:
            return None
        self._moved_at = now
        self._sizes.learn(stay.work)
        full_s = here.full_s - stay.full_s
        if held_s > 0 and full_s > 0:
            here.learn(stay, full_s, in_force)
        return stay

    def rate(self, in_force: Mapping[str, int], now: float) -> float | None:
        """Work per second of a full pool; None while nothing was measured. in_force: slots by replica, of
        those that are ready."""
        if not in_force:
            return None
        everywhere = tuple(self._replicas.values())
        speed, filled = _speed(everywhere), _filled(everywhere)
        if speed is None:
            return None
        rate = 0.0
        for replica, num_slots in in_force.items():
            here = self._replicas.get(replica)
            own = None if here is None else _speed((here,))
            if here is None or own is None:
                rate += num_slots * filled * speed
            else:
                rate += num_slots * _filled((here,)) * own
        silent_s = now - max(self._moved_at, self._waiting_since)
        service_s = self._sizes.mean * sum(in_force.values()) / rate
        if silent_s > SILENCE * service_s:
            rate *= SILENCE * service_s / silent_s
        return rate

    def left_over(self, rate: float, better: Iterable[PriorityClass], slot_share: float, now: float) -> float:
        """Of the rate, for a class that may hold so much of the slots, while better ones go on coming."""
        taken = sum([self._arrivals[cls].at(now) for cls in better])
        return max(min(rate - taken, slot_share * rate), LEAST_SHARE * rate)

    def wait_s(self, ahead: float, rate: float) -> float:
        """Until somebody with so much work ahead would be dispatched, no slot being free."""
        return (ahead + self._sizes.residual) / rate

    def interval_s(self, rate: float) -> float:
        """Between two requests that leave."""
        return self._sizes.mean / rate

    @property
    def usual_work(self) -> float:
        """Of a request, on average over those that left last; 1 before the first."""
        return max(self._sizes.mean, 1.0)

    def running(self, request_id: str) -> Stay | None:
        """None: it is on no replica."""
        return self._stays.get(request_id)

    def _replica(self, replica: str, now: float) -> _Replica:
        here = self._replicas.get(replica)
        if here is None:
            here = self._replicas[replica] = _Replica(replica in self._static, now)
        return here


def _speed(replicas: Iterable[_Replica]) -> float | None:
    """Work per second of a slot that is held."""
    work = slot_s = 0.0
    num_samples = 0
    for each in replicas:
        work += each.work
        slot_s += each.slot_s
        num_samples += each.num_samples
    return work / slot_s if num_samples >= MIN_SAMPLES and slot_s > 0 else None


def _filled(replicas: Iterable[_Replica]) -> float:
    """Share of the slots that is held while somebody waits."""
    filled_s = room_s = 0.0
    for each in replicas:
        filled_s += each.filled_s
        room_s += each.room_s
    return filled_s / room_s if room_s > 0 else 1.0
