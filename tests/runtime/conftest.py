"""Logs of these tests go nowhere: rendering tracebacks for nobody takes longer than the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import structlog


@pytest.fixture(autouse=True)
def logged() -> Iterator[Sequence[object]]:
    with structlog.testing.capture_logs() as entries:
        yield entries
