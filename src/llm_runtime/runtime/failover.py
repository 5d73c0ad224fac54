"""What an engine's failure means: for the replica, and for the request, which may be tried again.

Each attempt is judged once, told to its replica's health and to whoever measures. Nothing is tried again
after the first byte of an answer was forwarded, nor more often than is allowed for all layers together.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from llm_runtime.core.clock import Clock
from llm_runtime.core.errors import BackendError, DeadlineExceeded, LLMRuntimeError
from llm_runtime.core.events import Events
from llm_runtime.core.lease import Lease
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.config import RoutingConfig
from llm_runtime.routing.retry_budget import RetryBudget
from llm_runtime.routing.verdict import Verdict, may_try_elsewhere, may_try_here, verdict_of
from llm_runtime.runtime.replica import Replica

_ANSWERED: Final = Verdict.ANSWERED
_ANSWERED_WORD: Final = Verdict.ANSWERED.value


class Attempts:
    """One request's, owned by its handle. number: how often an engine was given it, in all; failed_on:
    replicas that are not asked again while there is another."""

    __slots__ = ("failed_on", "judged", "number")

    def __init__(self) -> None:
        self.number = 0
        self.failed_on: Collection[str] = ()
        self.judged = True

    def taken_back(self) -> None:
        """The attempt under way ends by our own will, and counts for nothing."""
        self.number -= 1
        self.judged = True


class Failover:
    """Owned by one dispatcher, used on the loop's thread only."""

    def __init__(
        self, replicas: dict[str, Replica], config: RoutingConfig, *, events: Events, clock: Clock
    ) -> None:
        self._replicas: Final = replicas
        self._config = config
        self._max_attempts: Final = config.max_attempts
        self._events = events
        self._now: Final = clock.now
        self._budget = RetryBudget(config.retry_share, clock.now())

    def granted(self, attempts: Attempts) -> None:
        if attempts.number == 0:
            self._budget.request()
        attempts.number += 1
        attempts.judged = False

    def is_last(self, request: RuntimeRequest, attempts: Attempts) -> bool:
        """Whether the attempt that is about to be granted is the last that is allowed."""
        allowed = self._max_attempts if request.max_attempts is None else self._allowed(request)
        return attempts.number + 1 >= allowed

    def _allowed(self, request: RuntimeRequest) -> int:
        configured = self._max_attempts
        return configured if request.max_attempts is None else min(configured, request.max_attempts)

    def answering(self, lease: Lease) -> None:
        self._replicas[lease.replica].health.answering(lease)

    def failed(
        self,
        request: RuntimeRequest,
        lease: Lease,
        error: LLMRuntimeError,
        attempts: Attempts,
        *,
        begun: bool,
    ) -> bool:
        """Judges the attempt that ended with `error`; whether the request is to be queued once more.
        begun: something of the answer was forwarded."""
        if isinstance(error, BackendError):
            attempts.number += error.num_sends - 1
        again = not begun and self._may_try_again(request, lease, error, attempts)
        self._judge(request, lease, verdict_of(error), attempts, error=error, retried=again)
        return again

    def ended(
        self, request: RuntimeRequest, lease: Lease, attempts: Attempts, error: LLMRuntimeError | None
    ) -> None:
        """Of an attempt that did not fail by itself. error: None for a whole answer."""
        if attempts.judged:
            return
        if error is None:  # as nearly always
            attempts.judged = True
            replica = lease.replica
            self._events.attempt(request, replica, _ANSWERED_WORD, retried=False)
            self._replicas[replica].health.judged(_ANSWERED, lease, self._now())
            return
        verdict = Verdict.LEFT
        if isinstance(error, DeadlineExceeded) and self._was_silent(lease):
            verdict = Verdict.FAILED
        self._judge(request, lease, verdict, attempts, error=error, retried=False)

    def _judge(
        self,
        request: RuntimeRequest,
        lease: Lease,
        verdict: Verdict,
        attempts: Attempts,
        *,
        error: LLMRuntimeError | None,
        retried: bool,
    ) -> None:
        attempts.judged = True
        self._events.attempt(request, lease.replica, verdict.value, retried=retried)
        retry_after_s = error.retry_after_s if error is not None else None
        self._replicas[lease.replica].health.judged(verdict, lease, self._now(), retry_after_s)

    def _may_try_again(
        self, request: RuntimeRequest, lease: Lease, error: LLMRuntimeError, attempts: Attempts
    ) -> bool:
        if attempts.number >= self._allowed(request):
            return False
        attempts.failed_on = {*attempts.failed_on, lease.replica}
        elsewhere = may_try_elsewhere(error, unanswered=self._config.retry_unanswered)
        if not (elsewhere and self._has_other(request, attempts)) and not may_try_here(error):
            return False
        return self._budget.take(self._now())

    def _has_other(self, request: RuntimeRequest, attempts: Attempts) -> bool:
        """Whether a replica that has not failed the request yet takes some, now or when it has room."""
        for replica in self._replicas.values():
            view = replica.view(0)
            if (
                view.ready
                and not view.draining
                and not view.resting
                and view.num_slots >= request.num_slots
                and view.serves(request.model)
                and replica.id not in attempts.failed_on
            ):
                return True
        return False

    def _was_silent(self, lease: Lease) -> bool:
        """Whether the engine did nothing visible, for anybody, while the request waited for it."""
        seen_at = self._replicas[lease.replica].backend.signs_of_life() or 0.0
        silent_s = self._now() - max(seen_at, lease.granted_at)
        return silent_s >= self._config.breaker_silence_s
