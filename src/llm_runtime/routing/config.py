"""Settings of where requests run and what happens when a replica fails them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from llm_runtime.routing.breaker import BreakerRules


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """max_attempts: engines that may be given one request, all told; 1: nothing is tried again.

    retry_unanswered: also where an engine may have begun to compute (a connection lost, a 5xx). retry_share:
    further attempts per request, over all requests of a pool; beyond it failures are passed on.
    breaker_failures: in a row, until an upstream is left alone; None: never. breaker_open_s: for how long
    at first; doubles up to breaker_open_max_s. breaker_silence_s: a request that runs into a limit of time
    counts as the upstream's failure if nothing at all came from it for so long.
    """

    max_attempts: Annotated[int, Ge(1)] = 3
    retry_unanswered: bool = True
    retry_share: Annotated[float, Ge(0)] = 0.2
    breaker_failures: Annotated[int, Ge(1)] | None = 5
    breaker_open_s: Annotated[float, Gt(0)] = 2.0
    breaker_open_max_s: Annotated[float, Gt(0)] = 30.0
    breaker_silence_s: Annotated[float, Gt(0)] = 10.0

    @property
    def breaker(self) -> BreakerRules | None:
        """None: there is none."""
        if self.breaker_failures is None:
            return None
        return BreakerRules(self.breaker_failures, self.breaker_open_s, self.breaker_open_max_s)
