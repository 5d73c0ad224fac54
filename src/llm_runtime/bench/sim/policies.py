"""Which policies a simulation drives: factories, because every run starts with new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from llm_runtime.admission.capacity_gate import CapacityGate
from llm_runtime.admission.config import AdmissionConfig
from llm_runtime.admission.controller import AdmissionController, Permit
from llm_runtime.core.errors import LLMRuntimeError
from llm_runtime.core.request import RuntimeRequest
from llm_runtime.routing.base import RoutingPolicy
from llm_runtime.routing.policies.least_load import LeastLoad
from llm_runtime.routing.router import Router
from llm_runtime.runtime.decision import DecisionCore
from llm_runtime.scheduling.base import Scheduler
from llm_runtime.scheduling.config import SchedulingConfig
from llm_runtime.scheduling.presets import build_scheduler

Shed = Sequence[tuple[str, LLMRuntimeError]]


@dataclass(frozen=True, slots=True)
class Gates:
    """controller: None lets everybody in."""

    controller: AdmissionController | None = None

    def admit(self, request: RuntimeRequest, core: DecisionCore, now: float) -> tuple[Permit | None, Shed]:
        """The permit it then holds, and who had to make room. Raises what a gate says against it."""
        if self.controller is None:
            return None, ()
        permit = self.controller.admit_identity(request, now)
        room = self.controller.admit_capacity(permit, request, core.load(request, now), now)
        return permit, core.make_room(room, now)


def capacity_gate(config: AdmissionConfig) -> Gates:
    """The capacity gate as the server builds it."""
    gate = CapacityGate(
        config.max_queue_size,
        max_predicted_wait_s=config.max_predicted_wait_s,
        retry_share=config.retry_share,
    )
    return Gates(AdmissionController((), (gate,)))


@dataclass(frozen=True, slots=True)
class Policies:
    """adaptive_limit: whether the slots in force adapt."""

    scheduler: Callable[[], Scheduler]
    routing: Callable[[], RoutingPolicy] = LeastLoad
    gates: Callable[[], Gates] = Gates
    adaptive_limit: bool = False

    def router(self, source: Random) -> Router:
        return Router(self.routing(), source)


def scheduled(config: SchedulingConfig, admission: AdmissionConfig | None = None) -> Policies:
    """The named policy as the server builds it, least load. admission: None lets everybody in."""
    gates = Gates if admission is None else partial(capacity_gate, admission)
    return Policies(partial(build_scheduler, config), gates=gates, adaptive_limit=config.adaptive_limit)
