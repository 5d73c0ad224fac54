"""Settings of the two gates, and what can be declared of a tenant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen

from llm_runtime.core.request import PriorityClass

MIN_LEASE_S = 1.0


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Of one tenant; None: no such limit.

    requests_per_minute, tokens_per_minute: token buckets that hold a minute's worth and start full; a token
        is one of the prompt or of the answer.
    max_concurrent_requests: from the gate until the client has its end, in the queue or at an engine.
    """

    requests_per_minute: Annotated[int, Ge(1)] | None = None
    tokens_per_minute: Annotated[int, Ge(1)] | None = None
    max_concurrent_requests: Annotated[int, Ge(1)] | None = None

    @property
    def any(self) -> bool:
        return self != TenantLimits()


@dataclass(frozen=True, slots=True)
class TenantSlo:
    """Deadlines of each request of a tenant; None: none. They end what cannot make them.

    first_token_s: of a stream, from its arrival. total_s: from arrival to the last byte.
    """

    first_token_s: Annotated[float, Gt(0)] | None = None
    total_s: Annotated[float, Gt(0)] | None = None


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """keys: each as it is or as `sha256:` and 64 hexadecimal digits.

    ceiling: the best class the tenant's requests can have; what asks for better is lowered to it.
    weight: its share relative to other tenants', with `fair`.
    """

    name: str
    keys: tuple[Annotated[str, MinLen(1)], ...] = ()
    ceiling: PriorityClass = PriorityClass.INTERACTIVE
    weight: Annotated[float, Gt(0), Le(1e6)] = 1.0
    limits: TenantLimits = TenantLimits()
    slo: TenantSlo = TenantSlo()


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Where tenants' limits are kept when several servers share them; without a URL: in the process.

    timeout_ms: how long a request waits for Redis before it counts as gone.
    when_gone: `open`: each server goes on with limits of its own; `closed`: limited tenants get 503.
    lease_s: how long a place of `max_concurrent_requests` outlives a process that was killed.
    key_prefix: of every key; servers that share limits have the same.
    """

    url: str | None = None
    timeout_ms: Annotated[float, Gt(0)] = 100.0
    when_gone: Literal["open", "closed"] = "open"
    lease_s: Annotated[float, Ge(MIN_LEASE_S)] = 15.0
    key_prefix: Annotated[str, MinLen(1)] = "llm-runtime"


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Limits before anything is queued; None switches a limit off.

    max_queue_size: requests that may wait, per pool; more are refused with 503.
    max_predicted_wait_s: who would wait longer is refused with 503; beside each request's own limits,
        which are always looked at. retry_share: while there is a queue, retries that nobody asked for are
        let in up to this share of first tries.
    request_rate_limit_per_s, request_rate_limit_burst: token bucket over all requests (429).
        The burst defaults to one second's worth, at least 1.
    tenants: those with a name, limits or rights of their own.
    """

    max_queue_size: Annotated[int, Ge(0)] | None = None
    max_predicted_wait_s: Annotated[float, Gt(0)] | None = None
    retry_share: Annotated[float, Ge(0)] | None = 0.2
    request_rate_limit_per_s: Annotated[float, Gt(0)] | None = None
    request_rate_limit_burst: Annotated[int, Ge(1)] | None = None
    tenants: tuple[TenantConfig, ...] = ()
    redis: RedisConfig = field(default_factory=RedisConfig)
