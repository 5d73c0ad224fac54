"""A hub that has a model, and an empty store for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.hub.store import HubStore
from tests.engines.hub.fake_hub import FakeHub, serving
from tests.engines.hub.pulling import LARGE, NEEDED, NOT_NEEDED


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({**NEEDED, **NOT_NEEDED}, LARGE)) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> HubStore:
    return ModelStore({"LLM_RUNTIME_CACHE": str(tmp_path)}).hub
