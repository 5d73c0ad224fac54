"""A seat with a replica in it under the suite for all engines; Ray's part is played in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from llm_runtime.core.request import EndpointKind
from llm_runtime.engines.base import Backend, BackendInfo, Batching
from llm_runtime.engines.ray.fleet import Fleet
from tests.engines.conformance import BackendConformance, Engine
from tests.engines.ray.loopback import CLOCK, MODEL, Loopback, loopback

INFO = BackendInfo(
    name="ray",
    model=MODEL,
    batching=Batching.CONTINUOUS,
    num_slots=8,
    context_tokens=None,
    endpoints=frozenset({EndpointKind.CHAT, EndpointKind.COMPLETIONS}),
)


def fleet_of(link: Loopback, num_seats: int) -> Fleet:
    return Fleet(INFO, link, CLOCK, num_seats=num_seats)


class TestSeatConformance(BackendConformance):
    engine = Engine(model=MODEL)

    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with loopback("a") as link:
            fleet = fleet_of(link, 1)
            (seat,) = fleet.seats
            await seat.start(lambda: None)
            fleet.update(link.membership())
            yield seat
            await seat.aclose()
