"""The records of a run as they come in, and the counts a display shows meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from llm_runtime.bench import errors
from llm_runtime.bench.exchange import LoadExchange
from llm_runtime.bench.records import RequestRecord, Status


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a load that is measured: requests due in [from_s, to_s), since its start."""

    from_s: float = 0.0
    to_s: float = float("inf")

    def __contains__(self, due_s: object) -> bool:
        return isinstance(due_s, float) and self.from_s <= due_s < self.to_s


class Ledger:
    """Owned by one driver, written only from its loop. Counts cover warm-up and cool-down as well."""

    def __init__(self, window: Window, *, allow_estimates: bool) -> None:
        self.records: list[RequestRecord] = []
        self.num_issued = 0
        self.num_completed = 0
        self.num_failed = 0
        self.num_tokens = 0
        self.num_without_usage = 0
        """Completed answers whose tokens the server did not tell."""
        self.last_error: str | None = None
        self.window = window
        self._allow_estimates = allow_estimates

    @property
    def num_in_flight(self) -> int:
        return self.num_issued - len(self.records)

    def issue(self) -> int:
        """The number of a new request."""
        self.num_issued += 1
        return self.num_issued - 1

    def close(self, record: RequestRecord) -> None:
        """Takes a finished record in."""
        self.records.append(record)
        self.num_tokens += record.completion_tokens or 0
        if record.status is Status.COMPLETED:
            self.num_completed += 1
            self.num_without_usage += record.completion_tokens is None or record.tokens_estimated
        elif record.status is Status.FAILED:
            self.num_failed += 1
            self.last_error = f"{record.error}: {record.message}" if record.message else record.error

    def filled(
        self, blank: RequestRecord, started_at: float, exchange: LoadExchange, origin: float
    ) -> RequestRecord:
        """The blank record of a request with all that its exchange tells; origin: the load's start."""
        answer, problem = exchange.answer, exchange.problem
        reads = answer.token_read_at if answer is not None else ()
        usage = answer.usage if answer is not None else None
        estimated = usage is None and problem is None and blank.stream and self._allow_estimates
        num_events = answer.num_token_events if answer is not None else 0
        completion = usage.completion_tokens if usage is not None else num_events if estimated else None
        return replace(
            blank,
            started_at=since(origin, started_at),
            sent_at=_since(origin, exchange.sent_at),
            first_byte_at=_since(origin, exchange.first_byte_at),
            first_token_at=since(origin, reads[0]) if reads else None,
            last_token_at=since(origin, reads[-1]) if reads else None,
            finished_at=_since(origin, exchange.finished_at),
            status=_status(problem),
            http_status=exchange.status or None,
            error=problem.error if problem else None,
            code=problem.code if problem else None,
            message=problem.message or None if problem else None,
            retry_after_s=_retry_after(exchange.headers),
            finish_reason=answer.finish_reason if answer is not None else None,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            completion_tokens=completion,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            tokens_estimated=estimated,
            num_token_events=num_events,
            itls_s=tuple(later - earlier for earlier, later in pairwise(reads)),
            request_id=_header(exchange.headers, b"x-request-id"),
            server_timing=_header(exchange.headers, b"server-timing"),
        )


def unsent(blank: RequestRecord, reason: str, finished_at: float) -> RequestRecord:
    """The record of a request that was still waiting under the client's cap when the run ended."""
    status = Status.INTERRUPTED if reason == errors.INTERRUPTED else Status.FAILED
    return replace(blank, status=status, error=reason, finished_at=finished_at)


def _status(problem: errors.Problem | None) -> Status:
    if problem is None:
        return Status.COMPLETED
    return Status.INTERRUPTED if problem.error == errors.INTERRUPTED else Status.FAILED


def since(origin: float, at: float) -> float:
    """Rounded to the nanosecond, so that an instant that was computed is the one that was meant."""
    return round(at - origin, 9)


def _since(origin: float, at: float | None) -> float | None:
    return None if at is None else since(origin, at)


def _header(headers: dict[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")[: errors.MAX_MESSAGE]


def _retry_after(headers: dict[bytes, bytes]) -> float | None:
    """Seconds the server asks to wait, the exact header first; None for a date or nonsense."""
    for name, scale in ((b"retry-after-ms", 1e-3), (b"retry-after", 1.0)):
        try:
            return float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
    return None
