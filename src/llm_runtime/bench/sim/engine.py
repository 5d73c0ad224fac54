"""Engines in virtual time. An event per change, not per token: between two changes all steps are alike,
so their ends and their tokens follow from arithmetic, exactly.

An engine says when something happens next (`next_at`) and is then advanced to that instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llm_runtime.bench.sim.job import Run
from llm_runtime.bench.sim.step_log import StepLog

ROUNDING_STEPS = 1e-9
"""Of a step: an instant that close to a step's end is that end."""


class Engine(Protocol):
    """next_at: when to call `advance`; None: nothing will happen by itself. begun: whose first token the
    last `advance` brought. busy_s: time spent working; slot_s: slots in use, integrated over time. log:
    None unless the gaps between tokens are wanted."""

    next_at: float | None
    begun: list[Run]
    busy_s: float
    slot_s: float
    log: StepLog | None

    def start(self, runs: Sequence[Run], now: float) -> None:
        """Takes work. A static engine takes none while its batch runs."""
        ...

    def cancel(self, run: Run, now: float) -> None:
        """It leaves at the engine's next opportunity, and is then among those that have ended."""
        ...

    def change(self, slowness: float, now: float) -> None:
        """How many times longer than modelled everything takes, from the next step or batch on."""
        ...

    def crash(self, now: float) -> list[Run]:
        """All it worked on is lost, its prefix cache too."""
        ...

    def advance(self, now: float) -> list[Run]:
        """At `next_at` only: the runs that have ended, their slots with them."""
        ...
