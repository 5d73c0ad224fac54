"""When a crashed engine is started again, and when no more: events in, next state and pause out.

Pure: time and chance are arguments. `supervisor.py` acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from llm_runtime.engines.base import BackendState
from llm_runtime.engines.config import SupervisionConfig


@dataclass(frozen=True, slots=True)
class Supervision:
    """crashes: instants of the ends that still count towards a crash loop, oldest first.

    num_restarts: starts after a crash, over the whole life.
    """

    state: BackendState = BackendState.STOPPED
    reason: str | None = None
    crashes: tuple[float, ...] = ()
    num_restarts: int = 0


@dataclass(frozen=True, slots=True)
class StartAsked:
    """By the owner at first, by the pause's end after a crash, by somebody after a failure."""


@dataclass(frozen=True, slots=True)
class BecameReady:
    pass


@dataclass(frozen=True, slots=True)
class DrainAsked:
    pass


@dataclass(frozen=True, slots=True)
class StopAsked:
    pass


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine ended, or did not start. permanent: starting again cannot help."""

    reason: str
    permanent: bool = False


Event = StartAsked | BecameReady | DrainAsked | StopAsked | Ended

RUNNING: Final = (BackendState.STARTING, BackendState.READY)


def step(current: Supervision, event: Event, now: float, config: SupervisionConfig) -> Supervision:
    """The state after the event. Events that make no sense in a state change nothing."""
    match event:
        case StartAsked() if current.state is BackendState.CRASHED:
            return replace(current, state=BackendState.STARTING, num_restarts=current.num_restarts + 1)
        case StartAsked() if current.state in (BackendState.STOPPED, BackendState.FAILED):
            return replace(current, state=BackendState.STARTING, reason=None, crashes=())
        case BecameReady() if current.state is BackendState.STARTING:
            return replace(current, state=BackendState.READY, reason=None)
        case DrainAsked() if current.state is BackendState.READY:
            return replace(current, state=BackendState.DRAINING, reason="draining")
        case StopAsked():
            return replace(current, state=BackendState.STOPPED, reason="stopped")
        case Ended(reason=reason) if current.state is BackendState.DRAINING:
            return replace(current, state=BackendState.STOPPED, reason=reason)
        case Ended() if current.state in RUNNING:
            return _after_end(current, event, now, config)
    return current


def backoff_s(current: Supervision, chance: float, config: SupervisionConfig) -> float:
    """Seconds to wait in CRASHED: exponential with full jitter. chance: uniform in [0, 1)."""
    exponent = min(max(len(current.crashes) - 1, 0), 63)
    return chance * min(config.restart_backoff_max_s, config.restart_backoff_s * 2.0**exponent)


def _after_end(current: Supervision, end: Ended, now: float, config: SupervisionConfig) -> Supervision:
    crashes = current.crashes
    if current.state is BackendState.READY:
        # Only an engine that got ready outlives its history: starts that fail slowly are a loop too.
        crashes = tuple(at for at in crashes if now - at < config.restart_window_s)
    crashes = (*crashes, now)
    if end.permanent:
        return replace(current, state=BackendState.FAILED, reason=end.reason, crashes=crashes)
    if len(crashes) > config.max_restarts:
        reason = f"{end.reason}; given up after {len(crashes)} attempts" if len(crashes) > 1 else end.reason
        return replace(current, state=BackendState.FAILED, reason=reason, crashes=crashes)
    return replace(current, state=BackendState.CRASHED, reason=end.reason, crashes=crashes)
