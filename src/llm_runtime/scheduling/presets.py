"""The named policies: what `policy: fifo` and the like are made of.

`priority` has a band for every level; the others but `fifo` have one for every class, served strictly one
after the other or with ageing between their heads, and share or order requests inside a class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llm_runtime.core.errors import ConfigError
from llm_runtime.core.request import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    PriorityClass,
    RuntimeRequest,
    priority_class,
)
from llm_runtime.scheduling.bands import Bands, HeadRank, ageing, strict
from llm_runtime.scheduling.base import Scheduler
from llm_runtime.scheduling.batching import BatchFormer
from llm_runtime.scheduling.caps import ClassCap, ClassCaps
from llm_runtime.scheduling.config import Preset, SchedulingConfig
from llm_runtime.scheduling.fair import FairFlows, WeightOf, equal_weights
from llm_runtime.scheduling.flows import Flows, SingleFlow
from llm_runtime.scheduling.history import History, PredictTokens
from llm_runtime.scheduling.order import Shortest, deadline, fifo
from llm_runtime.scheduling.pool import PoolScheduler
from llm_runtime.scheduling.preemption import Preemption
from llm_runtime.scheduling.reserve import Reserve

LEVELS = tuple(range(HIGHEST_PRIORITY, LOWEST_PRIORITY + 1))
CLASS_LEVELS: Mapping[PriorityClass, int] = {
    cls: next(level for level in LEVELS if priority_class(level) is cls) for cls in PriorityClass
}
"""The best level of each class, best class first."""
_BAND_OF_CLASS = {cls: band for band, cls in enumerate(CLASS_LEVELS)}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a preset may use. weight_of: of tenants, for `fair`."""

    config: SchedulingConfig
    history: History
    weight_of: WeightOf = equal_weights

    @property
    def between_bands(self) -> HeadRank:
        interval_s = self.config.priority_aging_boost_interval_s
        return strict if interval_s is None else ageing(interval_s)


def _only_band(request: RuntimeRequest) -> int:
    return 0


def _level_band(request: RuntimeRequest) -> int:
    return min(max(request.priority, HIGHEST_PRIORITY), LOWEST_PRIORITY)


def _class_band(request: RuntimeRequest) -> int:
    return _BAND_OF_CLASS[priority_class(request.priority)]


def _by_class(parts: Parts, flows: Callable[[], Flows]) -> Bands:
    return Bands(
        [flows() for _ in CLASS_LEVELS], _class_band, parts.between_bands, tuple(CLASS_LEVELS.values())
    )


def _fifo(parts: Parts) -> Bands:
    return Bands([SingleFlow(fifo)], _only_band, strict)


def _priority(parts: Parts) -> Bands:
    return Bands([SingleFlow(fifo) for _ in LEVELS], _level_band, parts.between_bands, LEVELS)


def _fair(parts: Parts) -> Bands:
    credit_tokens = parts.config.fair_credit_tokens

    def flows() -> FairFlows:
        return FairFlows(fifo, parts.history.predict, parts.weight_of, credit_tokens=credit_tokens)

    return _by_class(parts, flows)


def _deadline(parts: Parts) -> Bands:
    return _by_class(parts, lambda: SingleFlow(deadline))


def _shortest(parts: Parts) -> Bands:
    order = Shortest(parts.history, parts.config.shortest_patience)
    return _by_class(parts, lambda: SingleFlow(order, order.came))


PRESETS: Mapping[Preset, Callable[[Parts], Bands]] = {
    "fifo": _fifo,
    "priority": _priority,
    "fair": _fair,
    "deadline": _deadline,
    "shortest": _shortest,
}


def build_scheduler(
    config: SchedulingConfig,
    *,
    weight_of: WeightOf = equal_weights,
    predict: PredictTokens | None = None,
) -> Scheduler:
    """A scheduler for one pool. Raises ConfigError for an unknown policy.

    weight_of: of tenants, for `fair`. predict: lengths of answers, instead of learning them.
    """
    make_bands = PRESETS.get(config.policy)
    if make_bands is None:
        known = ", ".join(PRESETS)
        raise ConfigError(f"scheduling.policy is '{config.policy}'; known policies: {known}.")
    history = History(predict)
    batching = BatchFormer(
        enabled=config.enable_batching,
        max_slots=config.max_batch_size,
        window_s=config.batch_timeout_ms / 1000.0,
    )
    return PoolScheduler(
        make_bands(Parts(config, history, weight_of)),
        batching,
        max_skip_s=config.max_skip_s,
        history=history,
        caps=_caps(config),
        evict_hopeless=config.policy == "deadline",
        preemption=_preemption(config),
        reserve=_reserve(config),
    )


def _caps(config: SchedulingConfig) -> ClassCaps | None:
    cap = ClassCap(config.batch_slot_share, config.batch_prompts, config.batch_prompt_time_share)
    if config.policy == "fifo" or cap == ClassCap():
        return None
    return ClassCaps({PriorityClass.BATCH: cap})


def _preemption(config: SchedulingConfig) -> Preemption | None:
    if config.policy == "fifo" or config.preempt == "never":
        return None
    return Preemption(running_too=config.preempt == "batch")


def _reserve(config: SchedulingConfig) -> Reserve | None:
    if config.policy == "fair" and (config.fair_reserve_slots or config.fair_prompts is not None):
        return Reserve(config.fair_reserve_slots, config.fair_prompts)
    if config.policy == "shortest" and config.shortest_reserve_slots:
        return Reserve(config.shortest_reserve_slots)
    return None
