"""What is kept of one request, and its JSON line. Instants are monotonic seconds since the load began.

The record holds instants, not latencies: every latency is defined in `metrics` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson


class Status(StrEnum):
    """interrupted: given up by us when the user stopped the run; neither completed nor failed."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, whatever became of it.

    scheduled_at: when it was due. released_at: when the client came to it; later than scheduled
    only if the client was late. started_at: when a place under the client's own cap was free.
    sent_at: when the request was written, so that connecting lies between. All latencies count from
    scheduled_at. An instant is None when it never came.

    measured: False for warm-up and cool-down within the load, which no figure counts.
    error: class of the failure (`errors.py`), code: what the server called it.
    itls_s: gaps between reads that brought tokens. num_token_events: SSE events that carried any.
    completion_tokens: from the server's usage; from events if tokens_estimated; None if unknown.
    intended_tokens: prompt length aimed at, chat template not included; None where unknown.
    """

    number: int
    session: int
    turn: int
    traffic: str
    scheduled_at: float
    released_at: float | None = None
    started_at: float | None = None
    sent_at: float | None = None
    first_byte_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    finished_at: float | None = None
    measured: bool = True
    status: Status = Status.COMPLETED
    http_status: int | None = None
    error: str | None = None
    code: str | None = None
    message: str | None = None
    retry_after_s: float | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    tokens_estimated: bool = False
    num_token_events: int = 0
    itls_s: tuple[float, ...] = ()
    stream: bool = True
    priority: int | None = None
    tenant: str | None = None
    max_tokens: int | None = None
    intended_tokens: int | None = None
    request_id: str | None = None
    server_timing: str | None = None

    @property
    def num_token_reads(self) -> int:
        return 0 if self.first_token_at is None else len(self.itls_s) + 1


_NAMES = frozenset(field.name for field in fields(RequestRecord))


def encode(record: RequestRecord) -> bytes:
    """One JSON line, to the microsecond. Whatever is not finite becomes null."""
    members = {name: _rounded(value) for name, value in asdict(record).items()}
    return orjson.dumps(members) + b"\n"


def decode(line: bytes) -> RequestRecord:
    """Raises ValueError for a line that is not a record; members of later versions are ignored."""
    try:
        members: dict[str, Any] = {k: v for k, v in orjson.loads(line).items() if k in _NAMES}
        members["status"] = Status(members["status"])
        members["itls_s"] = tuple(members.get("itls_s", ()))
        return RequestRecord(**members)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a request record: {error}") from error


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    with path.open("wb") as file:
        file.writelines(encode(record) for record in records)


def read_records(path: Path) -> list[RequestRecord]:
    """Raises OSError, and ValueError naming the line that is no record."""
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            records.append(decode(line))
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from error
    return records


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, tuple):
        return [round(item, 6) for item in value]
    return value
