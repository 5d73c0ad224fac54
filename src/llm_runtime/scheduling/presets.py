"""The named policies: what `policy: fifo` and the like are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llm_runtime.core.errors import ConfigError
from llm_runtime.core.request import HIGHEST_PRIORITY, LOWEST_PRIORITY, RuntimeRequest
from llm_runtime.scheduling.bands import Bands, ageing, strict
from llm_runtime.scheduling.base import Scheduler
from llm_runtime.scheduling.batching import BatchFormer
from llm_runtime.scheduling.config import Preset, SchedulingConfig
from llm_runtime.scheduling.flows import SingleFlow
from llm_runtime.scheduling.order import fifo
from llm_runtime.scheduling.pool import PoolScheduler


def _only_band(request: RuntimeRequest) -> int:
    return 0


def _priority_band(request: RuntimeRequest) -> int:
    return min(max(request.priority, HIGHEST_PRIORITY), LOWEST_PRIORITY)


def _fifo(config: SchedulingConfig) -> Bands:
    return Bands([SingleFlow(fifo)], _only_band, strict)


def _priority(config: SchedulingConfig) -> Bands:
    interval_s = config.priority_aging_boost_interval_s
    flows = [SingleFlow(fifo) for _ in range(HIGHEST_PRIORITY, LOWEST_PRIORITY + 1)]
    return Bands(flows, _priority_band, strict if interval_s is None else ageing(interval_s))


PRESETS: Mapping[Preset, Callable[[SchedulingConfig], Bands]] = {"fifo": _fifo, "priority": _priority}


def build_scheduler(config: SchedulingConfig) -> Scheduler:
    """A scheduler for one pool. Raises ConfigError for an unknown policy."""
    make_bands = PRESETS.get(config.policy)
    if make_bands is None:
        known = ", ".join(PRESETS)
        raise ConfigError(f"scheduling.policy is '{config.policy}'; known policies: {known}.")
    batching = BatchFormer(
        enabled=config.enable_batching,
        max_slots=config.max_batch_size,
        window_s=config.batch_timeout_ms / 1000.0,
    )
    return PoolScheduler(make_bands(config), batching, max_skip_s=config.max_skip_s)
