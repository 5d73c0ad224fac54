"""Looks at the server's own figures while the load runs: queue, batch, KV cache, GPU.

Reads the Prometheus pages of vLLM, llama.cpp, DCGM and this runtime, only the names it knows, in one
scan: the full parse of such a page would hold the client up for milliseconds.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from llm_runtime.bench.client import LoadClient
from llm_runtime.bench.clock import now
from llm_runtime.bench.config import Target
from llm_runtime.core.errors import BackendUnavailable

ACCEPT = "text/plain; version=0.0.4"
MIB = 1024.0 * 1024.0


@dataclass(frozen=True, slots=True)
class Gauge:
    """column: ours. merge: how the series of one name become one number."""

    name: str
    column: str
    merge: Literal["sum", "mean"] = "sum"
    scale: float = 1.0


GAUGES = (
    Gauge("vllm:num_requests_running", "running"),
    Gauge("llamacpp:requests_processing", "running"),
    Gauge("llm_runtime_requests_running", "running"),
    Gauge("vllm:num_requests_waiting", "waiting"),
    Gauge("llamacpp:requests_deferred", "waiting"),
    Gauge("llm_runtime_requests_waiting", "waiting"),
    Gauge("vllm:kv_cache_usage_perc", "kv_usage", "mean"),
    Gauge("vllm:gpu_cache_usage_perc", "kv_usage", "mean"),
    Gauge("llamacpp:kv_cache_usage_ratio", "kv_usage", "mean"),
    Gauge("llm_runtime_gpu_utilization_ratio", "gpu_utilization", "mean"),
    Gauge("DCGM_FI_DEV_GPU_UTIL", "gpu_utilization", "mean", 0.01),
    Gauge("llm_runtime_gpu_memory_used_bytes", "gpu_memory_bytes"),
    Gauge("DCGM_FI_DEV_FB_USED", "gpu_memory_bytes", "sum", MIB),
)
_BY_NAME = {gauge.name.encode(): gauge for gauge in GAUGES}


@dataclass(frozen=True, slots=True)
class Mean:
    """column: the mean of what happened between two samples, by two counters that only grow."""

    total: str
    number: str
    column: str


MEANS = (
    Mean("llm_runtime_queue_wait_seconds_sum", "llm_runtime_queue_wait_seconds_count", "queue_wait_s"),
    Mean("vllm:request_queue_time_seconds_sum", "vllm:request_queue_time_seconds_count", "engine_wait_s"),
    Mean("llm_runtime_batch_size_requests_sum", "llm_runtime_batch_size_requests_count", "batch_size"),
    Mean("vllm:iteration_tokens_total_sum", "vllm:iteration_tokens_total_count", "batch_tokens"),
)
_COUNTERS = {name.encode() for mean in MEANS for name in (mean.total, mean.number)}
_LINE = re.compile(
    rb"^(%b)(?:\{.*\})?[ \t]+(\S+)" % b"|".join(map(re.escape, (*_BY_NAME, *_COUNTERS))), re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Sample:
    """values: by column; at_s: since the load's start, when the page arrived."""

    at_s: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Page:
    """The known figures of a Prometheus page. gauges: by column. counters: by name."""

    gauges: dict[str, float]
    counters: dict[str, float]

    def since(self, earlier: Page | None) -> dict[str, float]:
        """The gauges, and the means of what was counted since then. A server that was started anew
        meanwhile has counted less than before: nothing is known of such a stretch."""
        columns = dict(self.gauges)
        for mean in MEANS if earlier is not None else ():
            assert earlier is not None
            total = self.counters.get(mean.total, 0.0) - earlier.counters.get(mean.total, 0.0)
            number = self.counters.get(mean.number, 0.0) - earlier.counters.get(mean.number, 0.0)
            if number > 0 and total >= 0:
                columns[mean.column] = total / number
        return columns


def read_page(page: bytes) -> Page:
    """The first name found wins a column."""
    series: defaultdict[bytes, list[float]] = defaultdict(list)
    for name, text in _LINE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if value - value == 0:  # neither NaN nor infinite
            series[name].append(value)
    gauges: dict[str, float] = {}
    for name, gauge in _BY_NAME.items():
        if (found := series.get(name)) and gauge.column not in gauges:
            total = sum(found) / (len(found) if gauge.merge == "mean" else 1)
            gauges[gauge.column] = total * gauge.scale
    return Page(gauges, {name.decode(): sum(series[name]) for name in _COUNTERS if name in series})


def means_between(before: Page | None, after: Page | None) -> dict[str, float]:
    """Of a whole load, from the pages before and after it; empty where there are none."""
    if before is None or after is None:
        return {}
    return Page({}, after.counters).since(before)


async def fetch_page(client: LoadClient, path: str = "/metrics") -> Page | None:
    """None where the server has no such page, or nothing on it that is known."""
    body = await client.fetch(path, ACCEPT)
    page = None if body is None else read_page(body)
    return page if page is not None and (page.gauges or page.counters) else None


def summarised(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Of each column: mean, highest value and number of samples."""
    columns: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for column, value in sample.values.items():
            columns[column].append(value)
    return {
        column: {"mean": sum(values) / len(values), "max": max(values), "num_samples": len(values)}
        for column, values in columns.items()
    }


class Sampler:
    """Owned by one run, in a task of its own, with connections of its own: it must not wait for others."""

    def __init__(self, target: Target, more_urls: Sequence[str], interval_s: float) -> None:
        """more_urls: of whole pages, such as http://host:9400/metrics."""
        self.samples: list[Sample] = []
        self._interval_s = interval_s
        self._pages = [(target, "/metrics")]
        for url in more_urls:
            parts = urlsplit(url)
            self._pages.append((Target(f"{parts.scheme}://{parts.netloc}"), parts.path or "/metrics"))

    async def run(self, origin: float) -> None:
        """Until cancelled. A page that has nothing to say at first is not asked again."""
        async with asyncio.TaskGroup() as group:
            for target, path in self._pages:
                group.create_task(self._sample(target, path, origin))

    async def _sample(self, target: Target, path: str, origin: float) -> None:
        earlier: Page | None = None
        try:
            async with LoadClient(target) as client:
                due = origin
                while (page := await fetch_page(client, path)) is not None:
                    self.samples.append(Sample(now() - origin, page.since(earlier)))
                    earlier = page
                    due = max(due + self._interval_s, now())
                    await asyncio.sleep(due - now())
        except BackendUnavailable:
            return
