"""Whether a replica may be given requests, as its own answers show: breaker, rest and trial requests.

The rules are pure and in `routing`; here are the instants at which they change by time alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from llm_runtime.core.lease import Lease
from llm_runtime.routing.breaker import CLOSED, BreakerRules, BreakerState
from llm_runtime.routing.verdict import Verdict

MAX_REST_S: Final = 60.0
"""Whatever a busy replica asks for: it may be idle again long before."""

_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN
_ANSWERED: Final = Verdict.ANSWERED
_FAILED: Final = Verdict.FAILED
_BUSY: Final = Verdict.BUSY


class ReplicaHealth:
    """One replica's. Owned by its dispatcher, used on the loop's thread only.

    rules: None for replicas that are watched and restarted by us: they have no breaker. on_change: told
    whenever what may run here changes, by an answer or by time. accepts: on trial only if no request is
    trying it, or that one takes long. rest_until: None: it does not rest.
    """

    def __init__(self, rules: BreakerRules | None) -> None:
        self.breaker = CLOSED
        self.on_change: Callable[[], None] | None = None
        self._rules = rules
        self.rest_until: float | None = None
        self._trials: set[Lease] = set()
        self.accepts = True
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def is_open(self) -> bool:
        return self.breaker.state is _OPEN

    @property
    def resting(self) -> bool:
        return self.rest_until is not None

    def closed_in_s(self, now: float) -> float | None:
        """Until an open breaker lets a request through again; None if it is not open."""
        return max(self.breaker.open_until - now, 0.0) if self.is_open else None

    @property
    def on_trial(self) -> bool:
        """One request at a time tries it."""
        return self.breaker.state is _HALF_OPEN

    def granted(self, lease: Lease) -> None:
        if self._rules is not None and self.breaker.state is _HALF_OPEN:
            self._trials.add(lease)
            self.accepts = False
            self._after("trial", self._rules.open_s, self._trial_is_long)

    def answering(self, lease: Lease) -> None:
        """The first of an answer has come: enough of a trial."""
        if self._trials and lease in self._trials:
            self._become(_ANSWERED, lease, 0.0)

    def judged(self, verdict: Verdict, lease: Lease, now: float, retry_after_s: float | None = None) -> None:
        """An attempt has ended. now: monotonic. retry_after_s: what a busy replica asked for."""
        if verdict is _ANSWERED and self.breaker is CLOSED and not self._trials:
            return  # as nearly always: nothing can follow from it
        if verdict is _BUSY:
            self._rest(now, retry_after_s or 0.0)
        self._become(verdict, lease, now)

    def close(self) -> None:
        """No timer is left."""
        for name in tuple(self._timers):
            self._drop(name)

    # ---- parts

    def _become(self, verdict: Verdict, lease: Lease, now: float) -> None:
        rules, before = self._rules, self.breaker
        if rules is None:
            return
        is_trial = lease in self._trials
        if is_trial:
            self._trials.discard(lease)
            self.accepts = True
            self._drop("trial")
        if before.state is _HALF_OPEN and not is_trial:
            return  # begun before it was opened: old news
        if verdict is _FAILED:
            self.breaker = before.failed(now, rules)
        elif verdict is _ANSWERED:
            self.breaker = before.answered()
        if self.breaker.state is not _HALF_OPEN:
            self._trials.clear()
        if self.breaker.state is _OPEN and before.state is not _OPEN:
            self._after("open", self.breaker.open_until - now, self._time_is_over)
        if is_trial or self.breaker.state is not before.state:
            self._changed()

    def _rest(self, now: float, wait_s: float) -> None:
        wait_s = min(wait_s, MAX_REST_S)
        if wait_s > 0 and now + wait_s > (self.rest_until or 0.0):
            self.rest_until = now + wait_s
            self._after("rest", wait_s, self._rested)

    def _rested(self) -> None:
        self.rest_until = None
        self._changed()

    def _trial_is_long(self) -> None:
        self.accepts = True
        self._changed()

    def _time_is_over(self) -> None:
        self.breaker = self.breaker.at(self.breaker.open_until)
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _after(self, name: str, wait_s: float, then: Callable[[], None]) -> None:
        self._drop(name)
        self._timers[name] = asyncio.get_running_loop().call_later(max(wait_s, 0.0), self._fire, name, then)

    def _fire(self, name: str, then: Callable[[], None]) -> None:
        self._timers.pop(name, None)
        then()

    def _drop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
