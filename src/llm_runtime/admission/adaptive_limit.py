"""How many slots of a replica are worth using: found by trying, from the time a token takes.

More sequences at once give more tokens per second up to some number; beyond it they only make each other
slower, or even all of them together. The signal is the time from dispatch to the end by the work that was
done (prompt tokens that were not cached count by the time they take), at the mean number of sequences that
were held meanwhile. It holds no queue of ours, and no length of answers. With

    throughput x(n) = n / time per unit of work at n

a limit is held until enough requests have lived under it, then another is tried for as long. What counts is
the gain by effort, d ln x / d ln n: 1 while a step takes no longer for more sequences, 0 where twice as many
take twice as long, below 0 where the engine thrashes. More is kept if the gain exceeds `WORTH`, less if
it does not. Both samples are neighbours in time, so an engine that becomes slower as a whole moves nothing.

The limit starts low and doubles while that is worth it, as TCP does. It moves only while more requests
want to run than may: what runs below the limit says nothing about it.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from enum import IntEnum

from llm_runtime.admission.forecast import Stay
from llm_runtime.core.outcome import Usage

START = 8
WORTH = 0.10
DOUBLE = 2.0
STEP = 1.25
FILLED = 0.75
"""Share of the limit that was held on average, from which on a request tells something about it."""
LEAST_SAMPLES, MOST_SAMPLES = 12, 32
DOUBT = 0.5
"""Standard errors."""
MOST_PATIENCE = 16
"""Held so many times as long as tried, once nothing better was found on either side."""
LOOK_AGAIN = 4
CHANGED = 0.25
"""|ln| of the time per work from one stretch at a limit to the next, from which on the neighbours are tried
again soon."""
NO_DEMAND_S = 1.0


class Move(IntEnum):
    DOWN = -1
    NONE = 0
    UP = 1


@dataclass(slots=True)
class _Stretch:
    """Requests that lived wholly under one limit. since: its start."""

    since: float
    samples: list[tuple[Stay, Usage]] = field(default_factory=list)

    def seen(self, prompt_weight: float) -> _Seen:
        held = [math.log(stay.mean_held) for stay, _ in self.samples]
        time = [
            math.log(stay.held_s * stay.num_slots / _work(usage, prompt_weight))
            for stay, usage in self.samples
        ]
        gains = [h - t for h, t in zip(held, time, strict=True)]
        variance = statistics.variance(gains) / len(gains) if len(gains) > 1 else math.inf
        return _Seen(statistics.fmean(held), statistics.fmean(time), variance)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Means of logarithms: slots held, time per work; variance: of the mean of ln x."""

    held: float
    time: float
    variance: float


def _work(usage: Usage, prompt_weight: float) -> float:
    computed = max(0, usage.prompt_tokens - usage.cached_tokens)
    return prompt_weight * computed + usage.completion_tokens


@dataclass(slots=True)
class AdaptiveLimit:
    """Of one continuous replica; owned by its pool's decision core. in_force: never above `num_slots`."""

    num_slots: int
    in_force: int = 0
    num_moves: int = 0
    _held: int = 0  # the limit that is not merely tried
    _move: Move = Move.NONE  # what is being tried
    _next: Move = Move.UP
    _step: float = DOUBLE
    _patience: int = 1
    _fruitless: int = 0
    _stretch: _Stretch = field(default_factory=lambda: _Stretch(-math.inf))
    _reference: _Stretch | None = None  # of the held limit, from before the trial
    _num_steady: int = 0  # trials since the limit last moved
    _prompt_weight: float = 0.0
    _demand: bool = False
    _demand_ended_at: float = -math.inf

    def __post_init__(self) -> None:
        self._held = self.in_force = min(self.num_slots, self.in_force or START)

    def demand(self, exceeds: bool, now: float) -> None:
        """Whether, from now on, more wants to run than may."""
        if self._demand and not exceeds:
            self._demand_ended_at = now
        if exceeds and not self._demand and now - self._demand_ended_at > NO_DEMAND_S:
            self._hold(now)
        self._demand = exceeds

    def observe(self, stay: Stay, usage: Usage, prompt_weight: float, now: float) -> None:
        """A request has left. prompt_weight: of a computed prompt token, by a generated one. Both samples of
        a trial are weighed alike, by the latest: a weight that moves must not look like a gain."""
        if stay.started_at < self._stretch.since or stay.held_s <= 0 or usage.completion_tokens < 1:
            return
        if stay.mean_held < FILLED * self.in_force:
            return
        self._stretch.samples.append((stay, usage))
        self._prompt_weight = prompt_weight
        wanted = min(max(self.in_force, LEAST_SAMPLES), MOST_SAMPLES)
        if self._move is Move.NONE:
            wanted *= self._patience
        if len(self._stretch.samples) >= wanted and (
            self._demand or now - self._demand_ended_at < NO_DEMAND_S
        ):
            if self._move is Move.NONE:
                self._try_another(now)
            else:
                self._judge(now)

    def _try_another(self, now: float) -> None:
        before, here = self._reference, self._stretch
        if before is not None and before.samples and self._num_steady:
            weight = self._prompt_weight
            if abs(before.seen(weight).time - here.seen(weight).time) > CHANGED:
                self._patience = min(self._patience, LOOK_AGAIN)
        self._reference = here
        wanted = self._stepped(self._next)
        if wanted == self._held:
            self._next = Move.DOWN if self._next is Move.UP else Move.UP
            wanted = self._stepped(self._next)
        if wanted == self._held:  # a single slot
            self._stretch = _Stretch(now)
            return
        self._move = self._next
        self.in_force = wanted
        self._stretch = _Stretch(now)

    def _stepped(self, move: Move) -> int:
        if move is Move.UP:
            return min(self.num_slots, max(self._held + 1, round(self._held * self._step)))
        return max(1, min(self._held - 1, round(self._held / STEP)))

    def _judge(self, now: float) -> None:
        assert self._reference is not None
        tried = self._stretch.seen(self._prompt_weight)
        reference = self._reference.seen(self._prompt_weight)
        effort = tried.held - reference.held
        gain = effort - (tried.time - reference.time)
        better = effort * self._move > 0 and gain > WORTH * effort + self._doubt(tried, reference)
        if better:
            self._held = self.in_force
            self.num_moves += 1
            self._patience, self._fruitless = 1, 0
            self._num_steady = 0
            self._next, self._move = self._move, Move.NONE
            self._try_another(now)
            return
        self._step = STEP
        self._num_steady += 1
        self._fruitless += 1
        if self._fruitless >= 2:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._next = Move.DOWN if self._move is Move.UP else Move.UP
        self._hold(now)

    def _doubt(self, tried: _Seen, reference: _Seen) -> float:
        """More has to be worth it beyond doubt, since it makes all that run slower."""
        if self._move is Move.DOWN:
            return 0.0
        return DOUBT * math.sqrt(tried.variance + reference.variance)

    def _hold(self, now: float) -> None:
        self._move = Move.NONE
        self.in_force = self._held
        self._stretch = _Stretch(now)
