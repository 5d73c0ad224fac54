"""An engine that runs one batch from start to end, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_runtime.bench.sim.config import StaticModel
from llm_runtime.bench.sim.job import Run
from llm_runtime.bench.sim.step_log import StepLog

ROUNDING_STEPS = 1e-6
"""Of a step: instants of a batch are sums of its start and whole steps, exact but for rounding."""


class StaticEngine:
    """One batch at a time; see `StaticModel`. Implements `Engine`."""

    def __init__(self, model: StaticModel, log: StepLog | None = None) -> None:
        self.next_at: float | None = None
        self.begun: list[Run] = []
        self.busy_s = 0.0
        self.slot_s = 0.0
        self.log = log
        self._model = model
        self._slowness = 1.0
        self._live: list[Run] = []  # by last step, the latest first
        self._left: list[Run] = []
        self._prefilled_at = 0.0
        self._since = 0.0
        self._step_s = 0.0
        self._step = 0
        self._first_step = 0

    def start(self, runs: Sequence[Run], now: float) -> None:
        assert not self._live, "a static engine runs one batch at a time"
        model = self._model
        longest = max(run.job.ask.prompt_tokens for run in runs)
        self._step_s = self._slowness * model.step_s(sum(run.num_slots for run in runs))
        prefill_s = self._slowness * (model.prefill_s + model.prefill_s_per_token * longest)
        self._prefilled_at = now + prefill_s
        self._since = now
        if self.log is not None:
            self.log.add(self._step, self._prefilled_at, self._step_s)
        for run in runs:
            run.started = True
            run.last_step = self._step + run.job.ask.output_tokens
        # They leave from the back: of those that end together the first started first, as engines tell it.
        self._live = sorted(runs, key=lambda run: run.last_step)[::-1]
        self._first_step = self._step
        self.next_at = self._prefilled_at + self._step_s

    def cancel(self, run: Run, now: float) -> None:
        """At once: there is no step to wait for."""
        run.cancelled = True
        if run in self._live:
            self._account(now)
            if run.job.first_token_at is not None:
                since_s = now - self._prefilled_at
                run.job.num_generated = int(since_s / self._step_s + ROUNDING_STEPS)
            self._live.remove(run)
            self._left.append(run)
            self.next_at = now

    def change(self, slowness: float, now: float) -> None:
        self._slowness = slowness

    def crash(self, now: float) -> list[Run]:
        lost, self._live = self._live + self._left, []
        self._left = []
        self.next_at = None
        return lost

    def advance(self, now: float) -> list[Run]:
        ended, self._left = self._left, []
        self.begun = []
        self._account(now)
        num_steps = math.floor((now - self._prefilled_at) / self._step_s + ROUNDING_STEPS)
        step = self._first_step + num_steps
        if num_steps >= 1:
            for run in self._live:
                if run.job.first_token_at is None:
                    run.job.first_token_at = self._prefilled_at + self._step_s
                    run.job.phases = (self._first_step + 1, run.last_step)
                    self.begun.append(run)
        while self._live and self._live[-1].last_step <= step:
            run = self._live.pop()
            run.job.last_token_at = now
            run.job.num_generated = run.job.ask.output_tokens
            ended.append(run)
        if self._live:
            coming = 1 if num_steps < 1 else self._live[-1].last_step - self._first_step
            self.next_at = self._prefilled_at + coming * self._step_s
        else:
            self._step = max(step, self._first_step)
            self.next_at = None
        return ended

    def _account(self, now: float) -> None:
        duration_s = now - self._since
        self._since = now
        if self._live:
            self.busy_s += duration_s
            self.slot_s += duration_s * sum(run.num_slots for run in self._live)
