"""Tenants' limits kept in the process."""

from __future__ import annotations

import pytest

from llm_runtime.admission.config import TenantLimits
from llm_runtime.admission.tenant_limits import LocalLimits, TenantLimiter
from tests.admission.limiter_conformance import LimiterConformance, take


@pytest.fixture
def limiter() -> TenantLimiter:
    return LocalLimits()


class TestLocalLimits(LimiterConformance):
    pass


def test_it_never_suspends(limiter: TenantLimiter) -> None:
    """Driven by hand: a coroutine that wanted to wait would yield."""
    asked = take(limiter, TenantLimits(requests_per_minute=1))
    with pytest.raises(StopIteration):
        asked.send(None)
