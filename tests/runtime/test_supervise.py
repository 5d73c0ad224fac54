"""Supervised tasks: restarted, or fatal; cancelled only from outside."""

from __future__ import annotations

import asyncio

import pytest

from llm_runtime.runtime.supervise import RESTART_PAUSE_S, TaskSupervisor
from tests.runtime.rig import virtual


def nothing(reason: str) -> None:
    raise AssertionError(reason)


async def forever() -> None:
    await asyncio.Event().wait()


@virtual
async def test_a_restart_task_comes_back_after_a_pause() -> None:
    loop = asyncio.get_running_loop()
    starts: list[float] = []

    async def flaky() -> None:
        starts.append(loop.time())
        if len(starts) == 1:
            raise ZeroDivisionError
        if len(starts) == 2:
            return
        await forever()

    supervisor = TaskSupervisor(nothing)
    supervisor.spawn("flaky", flaky, "restart")
    await asyncio.sleep(10)
    await supervisor.aclose()
    assert [at - starts[0] for at in starts] == [0, RESTART_PAUSE_S, 2 * RESTART_PAUSE_S]


@virtual
async def test_the_end_of_a_fatal_task_is_told_in_whatever_way_it_comes() -> None:
    async def ends() -> None:
        return

    async def fails() -> None:
        raise ZeroDivisionError

    async def leaks_a_cancellation() -> None:
        other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    reasons: list[str] = []
    supervisor = TaskSupervisor(reasons.append)
    for work in (ends, fails, leaks_a_cancellation):
        supervisor.spawn(work.__name__, work, "fatal")
    await asyncio.sleep(1)
    await supervisor.aclose()
    assert reasons == [
        "ends ended",
        "fails failed (ZeroDivisionError)",
        "leaks_a_cancellation was cancelled",
    ]


@virtual
async def test_closing_is_not_fatal_and_leaves_no_task() -> None:
    supervisor = TaskSupervisor(nothing)
    supervisor.spawn("a", forever, "fatal")
    supervisor.spawn("b", forever, "restart")
    await asyncio.sleep(1)
    await supervisor.aclose()
    await supervisor.aclose()
    assert len(asyncio.all_tasks()) == 1


@virtual
async def test_a_task_that_is_cancelled_from_outside_ends() -> None:
    """As the loop itself does at its end; a task that came back then would hang the process."""
    supervisor = TaskSupervisor(nothing)
    supervisor.spawn("a", forever, "restart")
    await asyncio.sleep(1)
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await supervisor.aclose()


@virtual
async def test_a_name_is_used_once() -> None:
    supervisor = TaskSupervisor(nothing)
    supervisor.spawn("a", forever, "restart")
    with pytest.raises(ValueError, match="already supervised"):
        supervisor.spawn("a", forever, "restart")
    await supervisor.aclose()
