"""One life of a llama.cpp engine: how it becomes ready, and by which tag its slots are told apart."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping
from typing import Any

import orjson

from llm_runtime.core.clock import Clock
from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.base import Work
from llm_runtime.engines.http_life import Failing, HttpLife
from llm_runtime.engines.http_stream import EngineCall
from llm_runtime.engines.llama_cpp.calls import engine_call
from llm_runtime.engines.llama_cpp.fields import TemplateAbilities
from llm_runtime.engines.llama_cpp.lora import LoraAdapter, lora_field
from llm_runtime.engines.llama_cpp.slots import TAGS, SlotWatch
from llm_runtime.engines.llama_cpp.step_stream import StepStream
from llm_runtime.engines.llama_cpp.steps import steps_for
from llm_runtime.engines.process import EngineProcess
from llm_runtime.engines.stream_run import OpenStream
from llm_runtime.engines.upstream.client import Upstream

PROBE_INTERVAL_S = 0.05

IN_STEPS = frozenset({EndpointKind.EMBEDDINGS, EndpointKind.TOKENIZE})

_DECODES = re.compile(rb"^llamacpp:n_decode_total ([0-9.e+]+)$", re.MULTILINE)


class EngineLife(HttpLife[int]):
    """See `HttpLife`. abilities: of the model's chat template, known when the engine is ready."""

    def __init__(
        self,
        process: EngineProcess,
        upstream: Upstream,
        clock: Clock,
        context_tokens: int,
        lora: tuple[LoraAdapter, ...] = (),
    ) -> None:
        super().__init__(process, upstream, clock, SlotWatch(upstream))
        self._context_tokens = context_tokens
        self._lora = lora
        self._stepping: set[StepStream] = set()
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

    def open(self, work: Work) -> OpenStream:
        if work.request.kind not in IN_STEPS:
            return super().open(work)
        self._stepping = {stream for stream in self._stepping if stream.lease.held}
        steps = steps_for(work.request, self._context_tokens)
        stream = StepStream(self.upstream, steps, work.lease, self)
        self._stepping.add(stream)
        self.ledger.opened(work.lease, work.request.num_prompt_tokens, self.now())
        return stream

    def open_streams(self) -> tuple[Failing, ...]:
        return (*super().open_streams(), *self._stepping)

    def gone(self) -> None:
        super().gone()
        for stream in self._stepping:
            stream.lease.free()

    def prepare(self, work: Work) -> tuple[EngineCall, int]:
        tag = next(self._next_tag)
        return engine_call(work.request, tag, lora_field(self._lora, work.request.model)), tag
