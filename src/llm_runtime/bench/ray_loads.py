"""What the Ray scenarios share: the mock engine's settings, and what became of the requests of a load."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llm_runtime.bench import errors
from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.config import Target
from llm_runtime.bench.records import RequestRecord, Status
from llm_runtime.core.errors import BackendError

READY_TIMEOUT_S = 180.0
LOOK_EVERY_S = 0.1


def mock_settings(
    *, num_slots: int, prefill_ms: float, decode_ms: float, max_queue_size: int | None = None
) -> dict[str, str]:
    """For `ray_bed`: an engine that costs next to nothing."""
    settings = {
        "engines.backend": "mock",
        "engines.native_backend_concurrency": str(num_slots),
        "engines.mock.prefill_latency_ms": f"{prefill_ms:g}",
        "engines.mock.decode_latency_ms": f"{decode_ms:g}",
        "ray.health_check_period_s": "1",
        "telemetry.gpu_poll_interval_s": "0",
    }
    if max_queue_size is not None:
        settings["admission.max_queue_size"] = str(max_queue_size)
    return settings


def is_refusal(record: RequestRecord) -> bool:
    """An error of ours before any work: 503 or 429, with a time to come back."""
    return record.http_status in (429, 503) and record.code is not None and record.retry_after_s is not None


def is_told(record: RequestRecord) -> bool:
    """The client has a whole answer, a refusal, or an error in the answer's own language."""
    if record.status is Status.COMPLETED or is_refusal(record):
        return True
    return record.error == errors.ERROR_EVENT or (record.code is not None and record.http_status is not None)


def ends(records: Iterable[RequestRecord]) -> dict[str, int]:
    """How requests ended, in words, and how many each."""
    found: Counter[str] = Counter()
    for record in records:
        if record.status is Status.COMPLETED:
            found["completed"] += 1
        else:
            found[f"{record.error}: {record.code}"] += 1
    return dict(found)


async def pools(url: str) -> Sequence[Mapping[str, Any]]:
    """Of `/load`. Raises BackendError where the ingress does not answer."""
    async with LoadClient(Target(url)) as client:
        load = await client.fetch_json("/load")
    if load is None:
        raise BackendError("the ingress does not say what it holds")
    found: Sequence[Mapping[str, Any]] = load["pools"]
    return found


async def num_ready(url: str) -> int:
    """0 where the ingress does not answer."""
    try:
        (pool,) = await pools(url)
    except BackendError:
        return 0
    return sum(replica["state"] == "ready" for replica in pool["replicas"].values())


async def until_ready(url: str, count: int) -> None:
    """Another process has no event for us, so it is asked. Raises TimeoutError."""
    async with asyncio.timeout(READY_TIMEOUT_S):
        while await num_ready(url) != count:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
