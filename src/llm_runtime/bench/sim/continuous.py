"""An engine that batches continuously, in virtual time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

from llm_runtime.bench.sim.config import ContinuousModel
from llm_runtime.bench.sim.engine import ROUNDING_STEPS
from llm_runtime.bench.sim.job import Run
from llm_runtime.bench.sim.prefix_cache import PrefixCache
from llm_runtime.bench.sim.step_log import StepLog


class ContinuousEngine:
    """Steps shared by all its sequences; see `ContinuousModel`. Implements `Engine`."""

    def __init__(self, model: ContinuousModel, log: StepLog | None = None) -> None:
        self.next_at: float | None = None
        self.begun: list[Run] = []
        self.busy_s = 0.0
        self.slot_s = 0.0
        self.log = log
        self._model = model
        self._step_s_by_size = model.step_s.table(max(model.num_slots, 1))
        self._cache = PrefixCache(model.cache_tokens) if model.cache_tokens else None
        self._slowness = 1.0
        self._coming: list[Run] = []
        self._prefilling: deque[Run] = deque()
        self._decoding: list[tuple[int, int, Run]] = []  # heap by last step
        self._num_decoding = 0
        self._num_taken = 0
        self._num_cancelling = 0
        self._step = 0
        self._serial = 0
        self._begun_at = 0.0
        self._step_s = 0.0
        self._num_steps = 0
        self._share = 0  # prompt tokens of each step, all of the first prompt's
        self._shares: list[tuple[Run, int]] = []  # of a single step that ends at least one prompt

    def start(self, runs: Sequence[Run], now: float) -> None:
        self._coming.extend(runs)
        self._stop_at_next_step(now)

    def cancel(self, run: Run, now: float) -> None:
        run.cancelled = True
        self._num_cancelling += 1
        self._stop_at_next_step(now)

    def change(self, slowness: float, now: float) -> None:
        self._slowness = slowness
        if self.next_at is not None:
            self._stop_at_next_step(now)

    def crash(self, now: float) -> list[Run]:
        lost = [*self._coming, *self._prefilling, *(run for _, _, run in sorted(self._decoding))]
        self._coming.clear()
        self._prefilling.clear()
        self._decoding.clear()
        self._num_decoding = self._num_taken = self._num_cancelling = self._num_steps = 0
        self._shares = []
        self.next_at = None
        if self._cache is not None:
            self._cache = PrefixCache(self._model.cache_tokens)
        return lost

    def advance(self, now: float) -> list[Run]:
        ended: list[Run] = []
        if self.begun:
            self.begun = []
        if self._num_steps:
            self._complete_steps(now, ended)
        if self._num_cancelling:
            self._drop_cancelled(ended)
        num_taken_in = 0
        for run in self._coming:
            if self._num_taken + run.num_slots > self._model.num_slots:
                break  # the engine's own queue: nobody passes its head
            self._take_in(run)
            num_taken_in += 1
        del self._coming[:num_taken_in]
        self._plan(now)
        return ended

    # ---- steps

    def _stop_at_next_step(self, now: float) -> None:
        """Ends the stretch of equal steps at the first step that is over at `now` or later."""
        if self.next_at is None:
            self.next_at = now
        elif self._num_steps:
            num_steps = max(0, math.ceil((now - self._begun_at) / self._step_s - ROUNDING_STEPS))
            if num_steps < self._num_steps:
                self._num_steps = num_steps
                self.next_at = self._begun_at + num_steps * self._step_s

    def _complete_steps(self, now: float, ended: list[Run]) -> None:
        num_steps = self._num_steps
        self._step += num_steps
        duration_s = num_steps * self._step_s
        self.busy_s += duration_s
        self.slot_s += duration_s * self._num_taken
        decoding = self._decoding
        while decoding and decoding[0][0] <= self._step:
            run = heapq.heappop(decoding)[2]
            self._num_decoding -= run.num_slots
            self._finish(run, now, ended)
        if self._share:
            self._prefilling[0].to_compute -= num_steps * self._share
        for run, num_tokens in self._shares:
            run.to_compute -= num_tokens
            if run.to_compute == 0:
                self._prefilling.popleft()
                self._begin_decoding(run, now, ended)

    def _begin_decoding(self, run: Run, now: float, ended: list[Run]) -> None:
        job, ask = run.job, run.job.ask
        if self._cache is not None:
            self._cache.add(ask.block_ids, ask.block_tokens)
        if run.cancelled:
            self._leave(run, 1, ended)
            return
        job.first_token_at = now
        self.begun.append(run)
        run.last_step = self._step + ask.output_tokens - 1
        job.phases = (self._step, run.last_step)
        if ask.output_tokens == 1:
            self._finish(run, now, ended)
            return
        self._serial += 1
        heapq.heappush(self._decoding, (run.last_step, self._serial, run))
        self._num_decoding += run.num_slots

    def _finish(self, run: Run, now: float, ended: list[Run]) -> None:
        if not run.cancelled:
            run.job.last_token_at = now
        self._leave(run, run.job.ask.output_tokens, ended)

    def _leave(self, run: Run, num_generated: int, ended: list[Run]) -> None:
        """What was given back belongs to its job's next run, so nothing is written to the job."""
        self._num_taken -= run.num_slots
        self._num_cancelling -= run.cancelled
        if not run.given_back:
            run.job.num_generated = num_generated
        ended.append(run)

    def _drop_cancelled(self, ended: list[Run]) -> None:
        for run in self._coming:
            if run.cancelled:
                self._num_taken += run.num_slots  # those that wait are not counted yet
                self._leave(run, 0, ended)
        self._coming = [run for run in self._coming if not run.cancelled]
        for run in self._prefilling:
            if run.cancelled:
                self._leave(run, 0, ended)
        self._prefilling = deque(run for run in self._prefilling if not run.cancelled)
        for last_step, _, run in self._decoding:
            if run.cancelled:
                self._num_decoding -= run.num_slots
                self._leave(run, run.job.ask.output_tokens - (last_step - self._step), ended)
        self._decoding = [entry for entry in self._decoding if not entry[2].cancelled]
        heapq.heapify(self._decoding)

    def _take_in(self, run: Run) -> None:
        ask = run.job.ask
        cached = 0
        if self._cache is not None:
            cached = self._cache.match(ask.block_ids, ask.block_tokens, ask.prompt_tokens)
        run.job.cached_tokens = cached
        run.to_compute = max(1, ask.prompt_tokens - cached)
        run.started = True
        self._prefilling.append(run)
        self._num_taken += run.num_slots

    def _plan(self, now: float) -> None:
        """What every step does from now on, and for how many steps."""
        model, size = self._model, self._num_decoding
        num_steps = self._decoding[0][0] - self._step if self._decoding else 0
        self._share, self._shares = 0, []
        prompt_tokens = 0
        if self._prefilling:
            budget = max(1, model.batch_tokens - size)
            to_compute = self._prefilling[0].to_compute
            if to_compute > budget:
                prompt_tokens = self._share = budget
                full = (to_compute - 1) // budget
                num_steps = min(num_steps, full) if num_steps else full
            else:
                self._shares = self._divided(budget)
                prompt_tokens = sum(num for _, num in self._shares)
                num_steps = 1
        self._num_steps = num_steps
        if not num_steps:
            self.next_at = None
            return
        modelled_s = self._step_s_by_size[size] + model.prefill_s_per_token * prompt_tokens
        self._step_s = modelled_s * self._slowness
        self._begun_at = now
        self.next_at = now + num_steps * self._step_s
        if self.log is not None:
            self.log.add(self._step, now, self._step_s)

    def _divided(self, budget: int) -> list[tuple[Run, int]]:
        shares = []
        for run in self._prefilling:
            num_tokens = min(run.to_compute, budget)
            shares.append((run, num_tokens))
            budget -= num_tokens
            if not budget:
                break
        return shares
