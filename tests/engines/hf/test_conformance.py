"""The shared suite on the real engine. One process serves all tests but those that close it: importing
torch takes most of a start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from llm_runtime.engines.base import Backend
from tests.engines.conformance import BackendConformance, Engine
from tests.engines.hf.conftest import MODEL, running_backend

pytestmark = [pytest.mark.hf, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    async with running_backend(weights, tmp_path_factory.mktemp("hf")) as backend:
        yield backend


class TestHf(BackendConformance):
    engine = Engine(
        model=MODEL,
        prompt_keeping_busy="Tell me everything about rivers. " * 40,
        cancel_within_s=10.0,
        answer_within_s=60.0,
    )

    @pytest_asyncio.fixture(loop_scope="module")
    async def backend(
        self, request: pytest.FixtureRequest, shared: Backend, weights: Path, tmp_path: Path
    ) -> AsyncIterator[Backend]:
        if "closing" not in request.node.name:
            yield shared
        else:
            async with running_backend(weights, tmp_path) as backend:
                yield backend
