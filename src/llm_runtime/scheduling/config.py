"""Settings of the scheduler and of batch formation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

Preset = Literal["fifo", "priority", "fair", "deadline", "shortest"]
Preemptible = Literal["never", "prompts", "batch"]


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """policy: a preset of `scheduling.presets`.

    priority_aging_boost_interval_s: waiting this long raises a request by one priority level; None:
        better levels (with `priority`) or classes (with the others) strictly first. Not with `fifo`.
    fair_credit_tokens: with `fair`, how much of the service it did not want a tenant keeps for later, as
        weighted tokens (prompt 1, generated 2); a few seconds of what the pool serves.
    fair_reserve_slots: with `fair`, slots of a pool that are kept free for tenants below their share while
        there are such; 0 keeps every slot busy.
    fair_prompts: with `fair`, requests at their prompt at once on each engine, above which only tenants
        below their share start another, while there are such; None: any number.
    shortest_patience: with `shortest`, for how many times its own predicted service a request can be
        overtaken by shorter ones that come later.
    shortest_reserve_slots: with `shortest`, slots of a pool that requests predicted longer than the mean
        may not take; 0 keeps every slot busy.
    batch_slot_share: of the slots in force that the batch class may hold; None: all of them.
    batch_prompts: batch requests that may be at their prompt at once, on each replica; None: any number.
    batch_prompt_time_share: of the time that batch prompts may take while better classes are active;
        None: all of it. None of these three with `fifo`.
    preempt: who gives way when somebody of a better class waits and no slot is free. `prompts`: requests
        of worse classes without a token yet, back to their place in the queue; `batch`: running requests
        of the batch class too, whose streams end with an error. Not with `fifo`; not on engines that run
        one batch from start to end.
    enable_batching, max_batch_size, batch_timeout_ms: micro-batching for engines that do not batch
        themselves; without it they get one request at a time. Ignored by native-batching engines.
    adaptive_limit: uses as many slots of each continuous engine as are worth it, found while requests
        wait; off: all of them.
    max_skip_s: how long a head that fits on no free replica lets later requests pass it.
    """

    policy: Preset = "fifo"
    priority_aging_boost_interval_s: Annotated[float, Gt(0)] | None = None
    fair_credit_tokens: Annotated[float, Ge(0)] = 4096.0
    fair_reserve_slots: Annotated[int, Ge(0)] = 0
    fair_prompts: Annotated[int, Ge(1)] | None = None
    shortest_patience: Annotated[float, Ge(0)] = 8.0
    shortest_reserve_slots: Annotated[int, Ge(0)] = 0
    batch_slot_share: Annotated[float, Gt(0), Le(1)] | None = None
    batch_prompts: Annotated[int, Ge(1)] | None = None
    batch_prompt_time_share: Annotated[float, Gt(0), Le(1)] | None = None
    preempt: Preemptible = "never"
    enable_batching: bool = True
    max_batch_size: Annotated[int, Ge(1)] = 8
    batch_timeout_ms: Annotated[float, Ge(0)] = 10.0
    max_skip_s: Annotated[float, Ge(0)] = 1.0
    adaptive_limit: bool = False
