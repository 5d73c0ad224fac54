"""Limits of time and attempts for one request: the server's, tightened by its tenant's SLO and by what its
client says."""

from __future__ import annotations

import math
from dataclasses import replace

from llm_runtime.admission.config import TenantSlo
from llm_runtime.core.errors import InvalidRequest
from llm_runtime.core.request import TimeLimits
from llm_runtime.runtime.config import LimitsConfig

MAX_DIGITS = 6


class RequestLimits:
    """Made once from the configuration; shared by all requests of an endpoint."""

    def __init__(self, config: LimitsConfig) -> None:
        self._plain = TimeLimits(queue_s=config.queue_timeout_s, request_s=config.request_timeout_s)
        self._stream = TimeLimits(
            queue_s=config.queue_timeout_s,
            request_s=config.request_timeout_s,
            idle_s=config.stream_idle_timeout_s,
            total_s=config.stream_max_s,
        )
        self._keep_alive_s = config.keep_alive_interval_s

    def of(self, read_timeout: bytes | None, slo: TenantSlo | None = None, *, stream: bool) -> TimeLimits:
        """read_timeout: `x-stainless-read-timeout`, how long the client waits for the next bytes. An
        answer that nobody reads any more is not worth computing. What is no positive number of seconds
        is no hint, and no fault either: the header is the SDK's, not its user's.

        Plain reply: its total. Stream: until the first byte; without meaning where comments come sooner.
        """
        limits = self._stream if stream else self._plain
        if slo is not None:
            limits = _with_slo(limits, slo, stream=stream)
        timeout_s = _positive(read_timeout)
        if timeout_s is None:
            return limits
        if stream:
            first_byte_s = min(self._keep_alive_s or math.inf, limits.request_s or math.inf)
            return limits if timeout_s >= first_byte_s else replace(limits, first_byte_s=timeout_s)
        return replace(limits, request_s=_tighter(limits.request_s, timeout_s))


def declared_slo(
    slo: TenantSlo | None, first_token_ms: bytes | None, total_ms: bytes | None
) -> TenantSlo | None:
    """The tenant's deadlines and those a client declares for one request, the tighter of each.

    `x-slo-ttft-ms`: a stream's first token, from arrival. `x-slo-total-ms`: the whole answer. Raises
    InvalidRequest for what is no positive number: whoever sends them means them.
    """
    if first_token_ms is None and total_ms is None:
        return slo
    mine = slo or TenantSlo()
    return TenantSlo(
        first_token_s=_tighter(mine.first_token_s, _declared_s("x-slo-ttft-ms", first_token_ms)),
        total_s=_tighter(mine.total_s, _declared_s("x-slo-total-ms", total_ms)),
    )


def _declared_s(name: str, text: bytes | None) -> float | None:
    if text is None:
        return None
    milliseconds = _positive(text)
    if milliseconds is None:
        raise InvalidRequest(f"{name} must be a number of milliseconds above 0.", param=name)
    return milliseconds / 1000


def _with_slo(limits: TimeLimits, slo: TenantSlo, *, stream: bool) -> TimeLimits:
    if not stream:
        return replace(limits, request_s=_tighter(limits.request_s, slo.total_s))
    return replace(
        limits,
        request_s=_tighter(limits.request_s, slo.first_token_s),
        total_s=_tighter(limits.total_s, slo.total_s),
    )


def _tighter(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def max_attempts_of(text: bytes | None) -> int | None:
    """`x-max-attempts`: engines that may be given the request; 1 switches trying again off. Above the
    server's own limit it changes nothing. Raises InvalidRequest for what is no number from 1 to 99."""
    if text is None:
        return None
    if text.isdigit() and len(text) <= 2 and int(text):
        return int(text)
    raise InvalidRequest("x-max-attempts must be a whole number from 1 to 99.", param="x-max-attempts")


def num_retries(text: bytes | None) -> int | None:
    """Of `x-stainless-retry-count`: how often the client has sent this before. None where it does not say."""
    return int(text) if text is not None and text.isdigit() and len(text) <= MAX_DIGITS else None


def _positive(text: bytes | None) -> float | None:
    """A positive number; None for anything else."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None
