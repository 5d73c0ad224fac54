"""A pool in virtual time: clients, gates, queue, router and engines, one event after the other.

What the asynchronous shell does with tasks and timers is done here with an `Agenda`; what is decided is
decided by the same `DecisionCore`, fed with the same events in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from llm_runtime.bench.clock import quiet_collector
from llm_runtime.bench.sim.agenda import Agenda
from llm_runtime.bench.sim.config import SimConfig, Trouble
from llm_runtime.bench.sim.feed import Feed
from llm_runtime.bench.sim.job import Ask, Job, Run, request_of
from llm_runtime.bench.sim.policies import Policies
from llm_runtime.bench.sim.replica import SimReplica
from llm_runtime.bench.sim.result import SimResult
from llm_runtime.core.errors import (
    BackendCrashed,
    BackendUnavailable,
    ClientGone,
    DeadlineExceeded,
    LLMRuntimeError,
)
from llm_runtime.runtime.decision import DecisionCore, may_retry, preempted_error
from llm_runtime.runtime.endings import overdue
from llm_runtime.runtime.pace import Due

Watch = Callable[[DecisionCore, float], None]
"""Told after every decision; may look at the core, and must not touch it."""


class Simulation:
    """One run; `run` may be called once. seed: of the router's ties, the only chance in here."""

    def __init__(
        self, config: SimConfig, feed: Feed, policies: Policies, seed: int = 0, watch: Watch | None = None
    ) -> None:
        self._config = config
        self._watch = watch
        self._feed = feed
        self._replicas = {
            f"r{number}": SimReplica(f"r{number}", replica, keep_log=config.keep_itls)
            for number, replica in enumerate(config.replicas)
        }
        self._core = DecisionCore(
            tuple(self._replicas.values()), policies.scheduler(), policies.router(Random(f"router:{seed}")),
            adaptive_limit=policies.adaptive_limit,
        )  # fmt: skip
        self._gates = policies.gates()
        self._agenda = Agenda()
        self._wake = -1
        self._waiting: dict[str, Job] = {}
        self._running: dict[str, Job] = {}
        self._jobs: list[Job] = []

    def run(self) -> SimResult:
        self._schedule_changes()
        horizon_s = self._config.horizon_s
        now = self._agenda.play(
            self._feed.arrivals(), self._arrive, delay_s=self._config.network_s, horizon_s=horizon_s
        )
        self._cut_off(horizon_s if horizon_s < float("inf") else now)
        return SimResult(self._config, self._jobs, tuple(self._replicas.values()), now)

    # ---- instants

    def _schedule_changes(self) -> None:
        for replica, config in zip(self._replicas.values(), self._config.replicas, strict=True):
            for change in config.changes:
                self._agenda.at(change.at_s, self._change, (replica, change.slowness))
            for trouble in config.troubles:
                self._agenda.at(trouble.from_s, self._trouble, (replica, trouble, True))
                self._agenda.at(trouble.to_s, self._trouble, (replica, trouble, False))

    def _follow(self, replica: SimReplica) -> None:
        """Keeps exactly one event for the engine's next instant."""
        at = replica.engine.next_at
        if at != replica.event_at:
            replica.event_at = at
            if at is not None:
                self._agenda.at(at, self._engine_event, replica)

    # ---- requests

    def _arrive(self, ask: Ask, now: float) -> None:
        request = request_of(ask, now)
        job = Job(ask, request)
        self._jobs.append(job)
        try:
            job.permit, shed = self._gates.admit(request, self._core, now)
        except LLMRuntimeError as refusal:
            self._end(job, now, refusal)
            return
        for request_id, error in shed:
            self._end(self._waiting.pop(request_id), now, error)
        job.queued_at = now
        self._core.add(request, now)
        self._waiting[request.id] = job
        if ask.patience_s is not None:
            self._agenda.at(ask.at_s + ask.patience_s, self._lose_patience, job)
        if request.limits.request_s is not None:
            self._agenda.at(now + request.limits.request_s, self._run_out_of_time, job)
        self._decide(now)

    def _lose_patience(self, job: Job, now: float) -> None:
        if job.finished_at is None and job.first_token_at is None:
            self._abandon(job, now)
            self._end(job, now, ClientGone("The client waits no longer."))
            self._decide(now)

    def _run_out_of_time(self, job: Job, now: float) -> None:
        """Of a stream, before its first token; of a plain reply, before its end."""
        if job.finished_at is None and (job.first_token_at is None or not job.ask.stream):
            waited = self._abandon(job, now)
            self._decide(now)
            return_s = self._core.return_s(job.request, now) if waited else None
            self._end(job, now, overdue(Due.REQUEST, return_s))

    def _abandon(self, job: Job, now: float) -> bool:
        """Leaves queue and engine, whichever has it; whether it was the queue."""
        request_id = job.request.id
        if self._waiting.pop(request_id, None) is not None:
            return self._core.withdraw(request_id, now)
        if job.run is not None:
            self._cancel(job.run, now)
        return False

    def _end(self, job: Job, now: float, error: LLMRuntimeError | None = None) -> None:
        """The client has its end. The engine may still hold its slots."""
        job.error = error
        job.finished_at = now
        job.run = None
        permit = job.permit
        if permit is not None:
            permit.settle(job.usage() if error is None or job.num_generated else None)
        follower = self._feed.ended(job, now + self._config.network_s)
        if follower is not None:
            self._agenda.at(follower.at_s + self._config.network_s, self._arrive, follower)

    def _cut_off(self, at: float) -> None:
        for job in self._jobs:
            if job.finished_at is None:
                job.finished_at = at
                job.error = DeadlineExceeded("The simulation ended before it.", reason="horizon")

    # ---- deciding

    def _decide(self, now: float) -> None:
        self._wake = -1
        effects = self._core.decide(now)
        for request_id, error in effects.evict:
            self._end(self._waiting.pop(request_id), now, error)
        for request_id in effects.preempt:
            self._preempt(request_id, now)
        for request_id in effects.shed:
            self._shed(request_id, now)
        for batch in effects.start:
            self._start(self._replicas[batch.replica], batch.request_ids, now)
        if effects.wake_at is not None:
            self._wake = self._agenda.timer(max(effects.wake_at, now), self._woken)
        if self._watch is not None:
            self._watch(self._core, now)

    def _woken(self, number: int | None, now: float) -> None:
        """number: of the timer, which counts only if it is still the latest; None: in any case."""
        if number is None or number == self._wake:
            self._decide(now)

    def _start(self, replica: SimReplica, request_ids: Sequence[str], now: float) -> None:
        runs = []
        for request_id in request_ids:
            job = self._waiting.pop(request_id)
            run = Run(job)
            job.run = run
            job.num_attempts += 1
            job.dispatched_at = now
            job.replica = replica.id
            self._running[request_id] = job
            runs.append(run)
        replica.hold(runs)
        if replica.refuses:
            for run in runs:
                replica.refusing.add(run)
                self._agenda.at(now + replica.refusal_delay_s, self._refused, (replica, run))
        else:
            replica.engine.start(runs, now)
            self._follow(replica)

    def _preempt(self, request_id: str, now: float) -> None:
        """Back to the queue, unless tokens have come: its slots are needed more elsewhere."""
        job = self._running.get(request_id)
        if job is None or job.first_token_at is not None or job.run is None:
            return
        run = job.run
        run.given_back = True
        self._cancel(run, now)
        job.num_attempts -= 1
        self._requeue(job, now)
        self._agenda.at(now, self._woken, None)

    def _shed(self, request_id: str, now: float) -> None:
        """As `_preempt`, but what has tokens ends."""
        job = self._running.get(request_id)
        if job is None or job.run is None:
            return
        if job.first_token_at is None:
            self._preempt(request_id, now)
        else:
            self._cancel(job.run, now)
            self._end(job, now, preempted_error())

    def _requeue(self, job: Job, now: float) -> None:
        assert job.queued_at is not None
        job.run = job.dispatched_at = None
        del self._running[job.request.id]
        self._waiting[job.request.id] = job
        self._core.requeue(job.request, job.queued_at, now)

    def _cancel(self, run: Run, now: float) -> None:
        assert run.job.replica is not None
        replica = self._replicas[run.job.replica]
        if run not in replica.refusing:
            replica.engine.cancel(run, now)
            self._follow(replica)

    # ---- engines

    def _engine_event(self, replica: SimReplica, now: float) -> None:
        if replica.event_at is None or replica.event_at > now:
            return  # what it was for has moved
        replica.event_at = None
        ended = replica.engine.advance(now)
        self._follow(replica)
        begun = replica.engine.begun
        for run in begun:
            self._core.first_token(run.job.request.id, now)
        for run in ended:
            self._free(replica, run, now)
        if ended or begun:
            self._decide(now)
            for run in ended:
                if run.job.run is run:
                    self._end(run.job, now)

    def _free(self, replica: SimReplica, run: Run, now: float) -> None:
        """The engine holds nothing of it any more."""
        replica.release(run)
        if not run.given_back:
            job = run.job
            self._running.pop(job.request.id, None)
            self._core.finished(job.request.id, job.usage(), now)

    def _change(self, change: tuple[SimReplica, float], now: float) -> None:
        replica, slowness = change
        replica.engine.change(slowness, now)
        self._follow(replica)

    def _trouble(self, trouble: tuple[SimReplica, Trouble, bool], now: float) -> None:
        replica, what, begins = trouble
        if what.kind == "refuse":
            replica.refuses = begins
            replica.refusal_delay_s = what.delay_s
            return
        replica.get_ready(not begins)
        if begins:
            self._fail(replica, replica.engine.crash(now), now)
            self._follow(replica)
        self._decide(now)

    def _refused(self, refusal: tuple[SimReplica, Run], now: float) -> None:
        replica, run = refusal
        replica.refusing.discard(run)
        self._free(replica, run, now)
        job = run.job
        if job.run is run:
            error = BackendUnavailable("The engine refuses.")
            if may_retry(error, begun=False, num_attempts=job.num_attempts):
                self._running[job.request.id] = job
                self._requeue(job, now)
            else:
                self._end(job, now, error)
        self._decide(now)

    def _fail(self, replica: SimReplica, lost: Iterable[Run], now: float) -> None:
        for run in lost:
            self._free(replica, run, now)
            if run.job.run is run:
                self._end(run.job, now, BackendCrashed("The engine crashed."))


def simulate(
    config: SimConfig, feed: Feed, policies: Policies, seed: int = 0, watch: Watch | None = None
) -> SimResult:
    """Runs it once. Nothing in it is cyclic garbage, so the collector only costs and keeps quiet."""
    with quiet_collector():
        return Simulation(config, feed, policies, seed, watch).run()
