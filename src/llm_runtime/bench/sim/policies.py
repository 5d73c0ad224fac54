"""Which policies a simulation drives: factories, because every run starts with new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from llm_runtime.admission.controller import AdmissionController
from llm_runtime.admission.policies import QueueCap
from llm_runtime.bench.sim.job import Job
from llm_runtime.routing.base import RoutingPolicy
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.scheduling.base import Scheduler
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler


@dataclass(frozen=True, slots=True)
class Gates:
    """controller: None lets everybody in. settled: told of every end of a request that had passed both
    gates, with the number of requests that then wait, as the composition root tells its learners.
    """

    controller: AdmissionController | None = None
    settled: Callable[[Job, float, int], None] | None = None


def queue_cap(max_queue_size: int) -> Gates:
    """The queue cap as the server builds it."""
    cap = QueueCap(max_queue_size)

    def settled(job: Job, now: float, num_waiting: int) -> None:
        cap.observe_finished(job.request.model, now, num_waiting)

    return Gates(AdmissionController((), (cap,)), settled)


@dataclass(frozen=True, slots=True)
class Policies:
    scheduler: Callable[[], Scheduler]
    routing: Callable[[], RoutingPolicy] = LeastLoad
    gates: Callable[[], Gates] = Gates

    def router(self, source: Random) -> Router:
        return Router(self.routing(), source)


def scheduled(config: SchedulingConfig) -> Policies:
    """The named policy as the server builds it, least load, no limits."""
    return Policies(partial(build_scheduler, config))
