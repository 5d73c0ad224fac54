"""Dynamic batch formation for engines that run one batch from start to end.

When such an engine is idle and requests wait, the question is whether to start with those or to wait
a little for more. The answer is never to wait when the batch is full, nor when waiting cannot pay.

**When it pays.** A batch takes a service time S that hardly depends on its size. With w requests
waiting, let p be the probability that another joins before the window ends and E the expected wait
until it does or the window is over. Starting now serves w requests per S; waiting serves w + p per
S + E. Waiting is better when (w + p) / (S + E) > w / S, that is when

    p * S  >  w * E,    E = p * g + (1 - p) * r

(g: mean gap between joiners, r: what is left of the window). Read as delay it says the same: a joiner
is spared up to one batch, and the price is E for each of the w. S, p and g are measured:

- p depends on how many have joined already: the share of windows with at least k + 1 joiners among
  those with at least k, as moving averages. Joiners are counted over the whole window whether or not
  it was waited out, so what is learnt does not depend on what was decided. Counting stops at the first
  end of a request of that batch: whoever comes after it (a closed loop's next request) is an effect
  of having started, and would not have come had we waited.
- S is the time from the first dispatch to an engine until it is empty again.

A second, faster rule stops the waiting when everybody is there: when waiting and running together
reach the most requests seen in the system at once in the last two rounds (a round lies between two
openings of a window), there is nobody left to wait for. It also makes the cold start free, since
nothing is known then, and lets a fall in load cost two windows, not a dozen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

_WEIGHT: Final = 0.2  # of the newest sample: half of what is known stems from the last three rounds
_NUM_ROUNDS: Final = 2


class Queue(NamedTuple):
    """What waits for an idle engine. limit: slots of the largest batch it would take now.

    deadline_at: the nearest instant at which a waiting request would be evicted.
    """

    num_waiting: int
    num_slots: int
    limit: int
    deadline_at: float | None


@dataclass(slots=True)
class _Window:
    """From the moment an engine was idle and a request waited. observing: joiners still count.

    released: a batch was started. worth: the verdict, None when something has changed since.
    """

    opened_at: float
    ends_at: float
    last_joined_at: float
    num_joined: int = 0
    observing: bool = True
    released: bool = False
    worth: bool | None = None


class _EngineBatch:
    """disturbed: a member came back unserved, so its duration says nothing."""

    __slots__ = ("disturbed", "replica", "request_ids", "started_at")

    def __init__(self, replica: str, started_at: float) -> None:
        self.replica: Final = replica
        self.started_at: Final = started_at
        self.request_ids: set[str] = set()
        self.disturbed = False


class _Average:
    """Exponentially weighted; the first sample counts in full."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def learn(self, sample: float) -> None:
        self.value = sample if self.value is None else self.value + _WEIGHT * (sample - self.value)


class _Joiners:
    """How many requests usually join within a window. `reached[k]`: share of windows with more than k."""

    def __init__(self, most: int) -> None:
        self.reached = [0.0] * most
        self.gap_s = _Average()

    def learn(self, num_joined: int) -> None:
        reached = self.reached
        for k, share in enumerate(reached):
            reached[k] = share + _WEIGHT * ((num_joined > k) - share)

    def chance(self, num_joined: int) -> float:
        """Probability of one more, given that so many have joined."""
        if num_joined >= len(self.reached):
            return 0.0
        given = 1.0 if num_joined == 0 else self.reached[num_joined - 1]
        return self.reached[num_joined] / given if given > 0.0 else 0.0


class BatchFormer:
    """Decides when a static engine's batch starts and how much of the queue it may take.

    Owned by one pool's scheduler, which alone calls it. window_s: the longest wait; 0 never waits.
    enabled: without it engines get one request at a time and nothing waits.
    """

    def __init__(self, *, enabled: bool, max_slots: int, window_s: float) -> None:
        self._enabled = enabled
        self._max_slots = max_slots
        self._window_s = window_s if enabled else 0.0
        self._window: _Window | None = None
        self._joiners = _Joiners(max_slots)
        self._service_s = _Average()
        self._batches: dict[str, _EngineBatch] = {}
        self._batch_of: dict[str, _EngineBatch] = {}
        self._peaks: deque[int] = deque(maxlen=_NUM_ROUNDS)
        self._round_peak = 0

    @property
    def service_s(self) -> float | None:
        """Average time an engine needs for a batch; None before the first has ended."""
        return self._service_s.value

    @property
    def join_chance(self) -> float:
        """Learnt probability that a request which finds an engine idle gets company in the window."""
        return self._joiners.chance(0)

    # ---- what happens

    def arrived(self, num_waiting: int, now: float) -> None:
        """A request was queued; `num_waiting` counts it."""
        num_present = num_waiting + len(self._batch_of)
        self._round_peak = max(self._round_peak, num_present)
        window = self._window
        if window is None:
            return
        if window.observing and now < window.ends_at:
            window.num_joined += 1
            self._joiners.gap_s.learn(now - window.last_joined_at)
            window.last_joined_at = now
        window.worth = None
        if num_waiting == 1 and not window.released:
            self._stop_observing()  # those it was opened for have all left
            self._window = None

    def started(self, request_id: str, replica: str, now: float) -> None:
        """A request came while nobody waited, and was dispatched at once."""
        if self._window is not None:
            self.arrived(1, now)
        elif len(self._batch_of) >= self._round_peak:
            self._round_peak = 1 + len(self._batch_of)
        self.dispatched(request_id, replica, now)

    def dispatched(self, request_id: str, replica: str, now: float) -> None:
        batch = self._batches.get(replica)
        if batch is None:
            batch = self._batches[replica] = _EngineBatch(replica, now)
        batch.request_ids.add(request_id)
        self._batch_of[request_id] = batch

    def finished(self, request_id: str, now: float, *, served: bool = True) -> None:
        """It left the engine. served=False: it was given back, so the batch's duration is no sample."""
        batch = self._batch_of.pop(request_id, None)
        if batch is None:
            return
        window = self._window
        if window is not None:
            window.worth = None
            if batch.started_at >= window.opened_at:
                self._stop_observing()
        batch.request_ids.discard(request_id)
        if not served:
            batch.disturbed = True
        if not batch.request_ids:
            del self._batches[batch.replica]
            if not batch.disturbed:
                self._service_s.learn(now - batch.started_at)

    def released(self) -> None:
        """The waiting requests were dispatched, as far as they fit."""
        if self._window is not None:
            self._window.released = True

    def held_until(self, now: float) -> float | None:
        """Until when what waits is being held for company; None: it is not."""
        window = self._window
        if window is None or window.released or not window.worth or now >= window.ends_at:
            return None
        return window.ends_at

    # ---- what to do

    def hold_until(self, queue: Queue, now: float) -> float | None:
        """Until when the batch should be held back; None: start it now.

        Called whenever an engine is idle and requests wait. The answer changes only with an event.
        """
        if self._window_s <= 0.0:
            return None
        window = self._window
        if window is None or window.released:
            window = self._open(queue.num_waiting, now)
        if queue.num_slots >= min(queue.limit, self._max_slots) or now >= window.ends_at:
            return None
        if queue.deadline_at is not None and queue.deadline_at <= window.ends_at:
            return None  # waiting for company must not cost anybody its place
        if window.worth is None:
            window.worth = self._worth_waiting(window, queue.num_waiting, now)
        return window.ends_at if window.worth else None

    def may_add(self, num_placed: int, num_placed_slots: int, num_slots: int, limit: int) -> bool:
        """Whether a decision that has placed so much may place `num_slots` more.

        Engines bound their batches by their own slots; this bounds them where ours are fewer.
        """
        if num_placed == 0:
            return True
        if not self._enabled:
            return False
        return limit <= self._max_slots or num_placed_slots + num_slots <= self._max_slots

    def _open(self, num_waiting: int, now: float) -> _Window:
        self._stop_observing()
        self._peaks.append(self._round_peak)
        self._round_peak = num_waiting + len(self._batch_of)
        self._window = _Window(now, now + self._window_s, now)
        return self._window

    def _stop_observing(self) -> None:
        window = self._window
        if window is not None and window.observing:
            window.observing = False
            self._joiners.learn(window.num_joined)

    def _worth_waiting(self, window: _Window, num_waiting: int, now: float) -> bool:
        if num_waiting + len(self._batch_of) >= max(self._peaks, default=0):
            return False
        service_s, gap_s = self._service_s.value, self._joiners.gap_s.value
        if service_s is None or gap_s is None:
            return False
        chance = self._joiners.chance(window.num_joined)
        left_s = window.ends_at - now
        wait_s = chance * min(gap_s, left_s) + (1.0 - chance) * left_s
        return chance * service_s > num_waiting * wait_s
