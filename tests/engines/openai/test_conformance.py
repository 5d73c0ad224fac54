"""The shared suite, on a whole server of ours with the mock engine: a gateway behind a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from llm_runtime.engines.base import Backend
from tests.engines.conformance import BackendConformance, Engine
from tests.engines.openai.test_health import backend_of
from tests.support.server import MOCK, serve


class TestOpenAI(BackendConformance):
    engine = Engine(model="mock", plain_first_token=False)

    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with serve(MOCK, scheduling__max_batch_size="8", scheduling__batch_timeout_ms="1") as served:
            backend = backend_of(served.base_url, health_interval_s=5.0)
            await backend.start(lambda: None)
            yield backend
            await backend.aclose()
            await served.at_rest()
