"""Replicas come and go; seats, streams and the books follow."""

from __future__ import annotations

import asyncio

import pytest

from llm_runtime.core.errors import BackendCrashed, BackendUnavailable, InvalidRequest
from llm_runtime.engines.base import BackendState, EngineStream
from llm_runtime.engines.ray.base import Member, Membership
from llm_runtime.engines.ray.fleet import Fleet
from tests.engines.driving import freed, make_request, open_batch, read
from tests.engines.ray.loopback import MODEL, loopback
from tests.engines.ray.test_conformance import fleet_of

WITHIN_S = 5.0


async def _pull(stream: EngineStream) -> object:
    return await stream.__anext__()


def states(fleet: Fleet) -> list[str]:
    return [seat.status.state.value for seat in fleet.seats]


async def test_a_seat_is_ready_while_a_replica_sits_in_it() -> None:
    async with loopback("a", "b") as link:
        fleet = fleet_of(link, 3)
        changes: list[int] = []
        for position, seat in enumerate(fleet.seats):
            await seat.start(lambda position=position: changes.append(position))  # type: ignore[misc]
        assert states(fleet) == ["absent"] * 3
        fleet.update(link.membership())
        assert states(fleet) == ["ready", "ready", "absent"]
        assert changes == [0, 1]
        fleet.update(link.membership())
        assert changes == [0, 1], "nothing new, nothing told"
        link.services.pop("a")
        fleet.update(link.membership())
        assert states(fleet) == ["absent", "ready", "absent"]


async def test_a_replica_that_leaves_finishes_its_streams_and_keeps_its_seat_until_then() -> None:
    async with loopback("a", decode_ms=2.0) as link:
        fleet = fleet_of(link, 1)
        (seat,) = fleet.seats
        await seat.start(lambda: None)
        fleet.update(link.membership())
        (opened,) = open_batch(seat, [make_request(MODEL, stream=True, max_tokens=30, ignore_eos=True)])
        await opened.stream.__anext__()
        newcomer = Member("b", "n1", {})
        fleet.update(Membership([newcomer]))
        assert seat.status.state is BackendState.DRAINING
        assert [one.member and one.member.id for one in fleet.seats] == ["a"]
        answer = await read(opened, WITHIN_S)
        assert answer.finished.usage.completion_tokens == 30
        await freed(opened, WITHIN_S)
        assert [one.member for one in fleet.seats] == [newcomer], "who waited for a seat has it now"
        assert states(fleet) == ["ready"]


async def test_lost_before_the_first_byte_is_for_another_replica() -> None:
    async with loopback("a", "b", prefill_ms=60_000.0) as link:
        fleet = fleet_of(link, 2)
        for seat in fleet.seats:
            await seat.start(lambda: None)
        fleet.update(link.membership())
        (opened,) = open_batch(fleet.seats[0], [make_request(MODEL, stream=True)])
        pull = asyncio.ensure_future(_pull(opened.stream))
        await asyncio.sleep(0)
        link.lose("a")
        with pytest.raises(BackendUnavailable) as caught:
            await asyncio.wait_for(pull, WITHIN_S)
        assert caught.value.reason == "replica_lost"
        await freed(opened, WITHIN_S)
        assert states(fleet) == ["absent", "ready"], "nobody else is sent there"
        stale = Membership([Member("a", "n0", {}), *link.membership().members])
        fleet.update(stale)
        assert states(fleet) == ["absent", "ready"], "a dead replica is not believed to be back"


async def test_a_replica_that_does_not_answer_for_a_moment_is_not_given_up() -> None:
    async with loopback("a", prefill_ms=60_000.0) as link:
        fleet = fleet_of(link, 1)
        (seat,) = fleet.seats
        ready = asyncio.Event()
        await seat.start(lambda: ready.set() if seat.status.state is BackendState.READY else ready.clear())
        fleet.update(link.membership())
        (opened,) = open_batch(seat, [make_request(MODEL, stream=True)])
        pull = asyncio.ensure_future(_pull(opened.stream))
        await asyncio.sleep(0)
        known = link.membership()
        link.lose("a", dead=False)
        with pytest.raises(BackendUnavailable):
            await asyncio.wait_for(pull, WITHIN_S)
        await freed(opened, WITHIN_S)
        assert not ready.is_set()
        fleet.update(known)
        await asyncio.wait_for(ready.wait(), WITHIN_S)
        assert states(fleet) == ["ready"]
        await seat.aclose()


async def test_lost_after_the_first_byte_is_an_error_for_the_client() -> None:
    async with loopback("a", decode_ms=5.0) as link:
        fleet = fleet_of(link, 1)
        (seat,) = fleet.seats
        await seat.start(lambda: None)
        fleet.update(link.membership())
        (opened,) = open_batch(seat, [make_request(MODEL, stream=True, max_tokens=5000, ignore_eos=True)])
        assert await opened.stream.__anext__()
        link.lose("a")
        with pytest.raises(BackendCrashed):
            await read(opened, WITHIN_S)
        await freed(opened, WITHIN_S)
        assert opened.stream.spent().completion_tokens >= 1


async def test_an_engine_that_is_down_gives_its_seat_a_rest() -> None:
    async with loopback("a") as link:
        fleet = fleet_of(link, 1)
        (seat,) = fleet.seats
        ready = asyncio.Event()
        await seat.start(lambda: ready.set() if seat.status.state is BackendState.READY else ready.clear())
        fleet.update(link.membership())
        await link.services["a"].aclose()
        (opened,) = open_batch(seat, [make_request(MODEL)])
        with pytest.raises(BackendUnavailable):
            await read(opened, WITHIN_S)
        await freed(opened, WITHIN_S)
        assert seat.status.state is BackendState.STARTING
        await asyncio.wait_for(ready.wait(), WITHIN_S)
        await seat.aclose()


async def test_requests_are_checked_by_the_rules_of_the_engine_once_it_is_known() -> None:
    async with loopback("a") as link:
        fleet = fleet_of(link, 2)
        request = make_request(MODEL, tools=[{"type": "function"}])
        fleet.seats[0].check(request)
        fleet.update(link.membership())
        with pytest.raises(InvalidRequest):
            fleet.seats[0].check(request)
        fleet.seats[1].check(request)
        assert fleet.info.context_tokens == 8192


async def test_a_reader_that_stands_still_stops_the_reading() -> None:
    async with loopback("a", decode_ms=0.0) as link:
        fleet = fleet_of(link, 1)
        (seat,) = fleet.seats
        await seat.start(lambda: None)
        fleet.update(link.membership())
        (opened,) = open_batch(seat, [make_request(MODEL, stream=True, max_tokens=8000, ignore_eos=True)])
        first = await opened.stream.__anext__()
        assert isinstance(first, bytes)
        await link.answers[0].task
        assert opened.stream.finished is None
        answer = await read(opened, WITHIN_S)
        assert answer.finished.usage.completion_tokens == 8000
        await freed(opened, WITHIN_S)
