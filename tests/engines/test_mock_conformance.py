"""The mock engine under the suite for all engines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from llm_runtime.core.clock import SystemClock
from llm_runtime.engines.base import Backend
from llm_runtime.engines.config import MockConfig
from llm_runtime.engines.mock import MockBackend
from tests.engines.conformance import BackendConformance, Engine


class TestMockConformance(BackendConformance):
    engine = Engine(model="mock-model")

    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        config = MockConfig(prefill_latency_ms=2.0, decode_latency_ms=0.5)
        backend = MockBackend(config, model="mock-model", num_slots=8, model_created=1, clock=SystemClock())
        await backend.start(lambda: None)
        yield backend
        await backend.aclose()
