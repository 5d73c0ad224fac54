"""Looks at the server's own gauges while the load runs: queue, batch, KV cache, GPU.

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
_LINE = re.compile(rb"^(%b)(?:\{.*\})?[ \t]+(\S+)" % b"|".join(map(re.escape, _BY_NAME)), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """values: by column; at_s: since the load's start, when the page arrived."""

    at_s: float
    values: dict[str, float]


def read_gauges(page: bytes) -> dict[str, float]:
    """The known gauges of a Prometheus page, by column. The first name found wins a column."""
    series: defaultdict[bytes, list[float]] = defaultdict(list)
    for name, text in _LINE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if value - value == 0:  # neither NaN nor infinite
            series[name].append(value)
    columns: dict[str, float] = {}
    for name, gauge in _BY_NAME.items():
        if (found := series.get(name)) and gauge.column not in columns:
            total = sum(found) / (len(found) if gauge.merge == "mean" else 1)
            columns[gauge.column] = total * gauge.scale
    return columns


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
        try:
            async with LoadClient(target) as client:
                due = origin
                while (page := await client.fetch(path, ACCEPT)) is not None:
                    values = read_gauges(page)
                    if not values:
                        return
                    self.samples.append(Sample(now() - origin, values))
                    due = max(due + self._interval_s, now())
                    await asyncio.sleep(due - now())
        except BackendUnavailable:
            return
