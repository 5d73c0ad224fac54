"""What a request reserves of its tenant's tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from llm_runtime.admission.capacity_gate import CapacityGate
from llm_runtime.admission.config import TenantConfig, TenantLimits
from llm_runtime.admission.controller import AdmissionController
from llm_runtime.admission.policies import RateLimit
from llm_runtime.admission.tenant_gate import TenantGate, estimate
from llm_runtime.admission.tenant_limits import LocalLimits
from llm_runtime.admission.tenants import Tenants
from llm_runtime.core.clock import SystemClock
from llm_runtime.core.errors import ConfigError, QueueFull, RateLimited, RequestsLimited
from llm_runtime.core.outcome import Usage
from llm_runtime.core.request import EndpointKind
from tests.admission.builders import load, request


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [(EndpointKind.CHAT, 320), (EndpointKind.COMPLETIONS, 320), (EndpointKind.RESPONSES, 320),
     (EndpointKind.MESSAGES, 320), (EndpointKind.EMBEDDINGS, 20), (EndpointKind.RERANK, 20),
     (EndpointKind.TOKENIZE, 20)],
)  # fmt: skip
def test_the_estimate_is_the_prompt_and_the_cap_of_each_sequence(kind: EndpointKind, tokens: int) -> None:
    asked = replace(request(num_prompt_tokens=20, max_tokens=100, num_slots=3), kind=kind)
    assert estimate(asked) == tokens


def gates(limits: TenantLimits, *, rate: float = 1000.0, queue: int = 9) -> AdmissionController:
    tenants = Tenants([TenantConfig("a", limits=limits)])
    gate = TenantGate(tenants, LocalLimits(), SystemClock())
    return AdmissionController([RateLimit(rate, 3)], [CapacityGate(queue)], gate)


async def test_all_gates_reserve_or_none_does() -> None:
    controller = gates(TenantLimits(requests_per_minute=2), rate=0.001)
    asked = request(tenant="a")
    permit = await controller.admit(asked, 0.0)
    permit.rollback()
    for _ in range(2):
        (await controller.admit(asked, 0.0)).settle(None)
    for _ in range(5):  # the tenant's limit refuses, and takes nothing of everybody's
        with pytest.raises(RequestsLimited):
            await controller.admit(asked, 0.0)
    await controller.admit(request(tenant="b"), 0.0)
    with pytest.raises(RateLimited) as refused:
        await controller.admit(request(tenant="b"), 0.0)
    assert refused.value.standing is None


async def test_a_full_queue_gives_the_tenant_everything_back() -> None:
    controller = gates(TenantLimits(requests_per_minute=2, tokens_per_minute=100), queue=0)
    before = await controller.standing("a")
    asked = request(tenant="a", max_tokens=50)
    permit = await controller.admit(asked, 0.0)
    with pytest.raises(QueueFull):
        controller.admit_capacity(permit, asked, load(0, would_wait=True), 0.0)
    after = await controller.standing("a")
    assert before is not None
    assert after is not None
    assert (before.requests, before.tokens) == (after.requests, after.tokens)


async def test_the_truth_is_settled() -> None:
    controller = gates(TenantLimits(tokens_per_minute=100))
    permit = await controller.admit(request(tenant="a", max_tokens=80), 0.0)
    permit.settle(Usage(prompt_tokens=5, completion_tokens=5))
    standing = await controller.standing("a")
    assert standing is not None
    assert standing.tokens is not None
    assert standing.tokens.remaining in (90, 91)


def test_an_undeclared_tenant_is_let_in_without_a_word() -> None:
    controller = gates(TenantLimits(requests_per_minute=1))

    async def ask() -> None:
        for _ in range(3):
            permit = await controller.admit(request(tenant="b"), 0.0)
            assert permit.standing is None
        assert await controller.standing("b") is None

    asyncio.run(ask())


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "é", 'a"b'])
def test_a_name_that_no_label_could_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"admission\.tenants"):
        Tenants([TenantConfig(name)])


def test_a_name_that_is_declared_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="declared twice"):
        Tenants([TenantConfig("a"), TenantConfig("a")])
