"""Tasks that serve one request after the other: each request as if it had one of its own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

from llm_runtime.web.cycle import Cycle
from llm_runtime.web.workers import MAX_IDLE, Workers
from tests.dataplane import path
from tests.dataplane.path import turns


class Wire(path.Wire):
    """Counts how often the application has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.num_left = 0

    def left(self, cycle: Cycle) -> None:
        self.num_left += 1


class Endpoint:
    """Answers after `first` has run."""

    def __init__(self, first: Callable[[], Awaitable[object]]) -> None:
        self.first = first
        self.served_by: list[asyncio.Task[Any] | None] = []

    async def serve(self, cycle: Cycle) -> None:
        self.served_by.append(asyncio.current_task())
        await self.first()
        cycle.reply(b"", b"ok")


async def no_asgi(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


def start(workers: Workers, endpoint: Endpoint) -> tuple[Wire, asyncio.Task[None]]:
    wire = Wire()
    cycle = Cycle(wire, wire.flow, {})
    cycle.endpoint = endpoint
    return wire, workers.serve(cycle, no_asgi, asyncio.get_running_loop())


async def at_once() -> None:
    """Nothing before the answer."""


async def test_one_task_serves_what_comes_one_after_the_other() -> None:
    workers, endpoint = Workers(), Endpoint(at_once)
    for _ in range(3):
        wire, task = start(workers, endpoint)
        await turns()
        assert wire.raw.endswith(b"ok")
        assert wire.num_left == 1
        assert endpoint.served_by[-1] is task
        assert not task.done()
    assert len(set(endpoint.served_by)) == 1


async def test_what_comes_at_once_is_served_at_once() -> None:
    workers, go_on = Workers(), asyncio.Event()
    endpoint = Endpoint(go_on.wait)
    wires = [start(workers, endpoint)[0] for _ in range(MAX_IDLE + 5)]
    await turns()
    assert len(set(endpoint.served_by)) == MAX_IDLE + 5
    assert not any(wire.raw for wire in wires)
    go_on.set()
    await turns()
    assert all(wire.raw.endswith(b"ok") for wire in wires)
    # No more are kept than are likely to be needed.
    assert sum(not task.done() for task in endpoint.served_by if task is not None) == MAX_IDLE


async def test_nothing_of_a_request_is_kept_by_the_task_that_served_it() -> None:
    def num_cycles() -> int:
        return sum(isinstance(thing, Cycle) for thing in gc.get_objects())

    workers, endpoint, before = Workers(), Endpoint(at_once), num_cycles()
    start(workers, endpoint)
    assert num_cycles() == before + 1
    await turns()
    assert num_cycles() == before


async def test_an_endpoint_that_fails_or_is_cancelled_spoils_nothing_for_the_next() -> None:
    workers = Workers()

    async def fail() -> None:
        raise ZeroDivisionError

    wire, _ = start(workers, Endpoint(fail))
    await turns()
    assert b" 500 " in wire.raw
    wire, task = start(workers, Endpoint(asyncio.Event().wait))
    await turns()
    task.cancel()
    await turns()
    assert wire.num_left == 1
    assert task.done()
    last = Endpoint(at_once)
    wire, other = start(workers, last)
    await turns()
    assert wire.raw.endswith(b"ok")
    assert other is not task
    assert other.cancelling() == 0


async def test_a_task_that_was_ended_while_it_had_nothing_to_do_is_not_used_again() -> None:
    """As those of a loop that was closed."""
    workers, endpoint = Workers(), Endpoint(at_once)
    _, task = start(workers, endpoint)
    await turns()
    task.cancel()
    await turns()
    assert task.done()
    wire, other = start(workers, endpoint)
    await turns()
    assert wire.raw.endswith(b"ok")
    assert other is not task
