"""One life of a llama.cpp engine: how it becomes ready, and by which tag its slots are told apart."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping
from typing import Any

import orjson

from llm_runtime.core.clock import Clock
from llm_runtime.engines.base import Work
from llm_runtime.engines.http_life import HttpLife
from llm_runtime.engines.http_stream import EngineCall
from llm_runtime.engines.llama_cpp.calls import engine_call
from llm_runtime.engines.llama_cpp.fields import TemplateAbilities
from llm_runtime.engines.llama_cpp.slots import TAGS, SlotWatch
from llm_runtime.engines.process import EngineProcess
from llm_runtime.engines.upstream.client import Upstream

PROBE_INTERVAL_S = 0.05

_DECODES = re.compile(rb"^llamacpp:n_decode_total ([0-9.e+]+)$", re.MULTILINE)


class EngineLife(HttpLife[int]):
    """See `HttpLife`. abilities: of the model's chat template, known when the engine is ready."""

    def __init__(self, process: EngineProcess, upstream: Upstream, clock: Clock) -> None:
        super().__init__(process, upstream, clock, SlotWatch(upstream))
        self._next_tag = itertools.cycle(TAGS)
        self.abilities = TemplateAbilities()

    async def become_ready(self, timeout_s: float) -> None:
        """Raises what `EngineProcess.wait_ready` raises; the process is not stopped."""
        props = await self.process.wait_ready(self._probe, timeout_s)
        self.abilities = TemplateAbilities.of_props(props)

    async def _probe(self) -> Mapping[str, Any]:
        # Only starting up is polled: an external server has no event that says it is ready.
        while await self.get("/health") is None:  # noqa: ASYNC110
            await asyncio.sleep(PROBE_INTERVAL_S)
        props: Any = orjson.loads(await self.get("/props") or b"{}")
        return props if isinstance(props, dict) else {}

    async def work_done(self) -> float | None:
        """Calls of its decoder so far: each moves some prompt or some answers on."""
        match = _DECODES.search(await self.get("/metrics") or b"")
        return float(match[1]) if match is not None else None

    def prepare(self, work: Work) -> tuple[EngineCall, int]:
        tag = next(self._next_tag)
        return engine_call(work.request, tag), tag
