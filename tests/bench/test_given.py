"""Sessions sent one by one at their instants, and the command lines of servers of ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_runtime.bench import metrics
from llm_runtime.bench.config import Target, TrafficClass
from llm_runtime.bench.given import GivenSessions, given_plan, lag_s, play, play_on_time
from llm_runtime.bench.launch import filled
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.serve_command import serve_command
from llm_runtime.bench.stub import Seen, serve
from llm_runtime.bench.workload import Session, Turn
from llm_runtime.core.errors import BackendError
from tests.bench.builders import whole
from tests.bench.loads import QUICK

LOW = TrafficClass("low", output_tokens=Fixed(3), priority=8)
HIGH = TrafficClass("high", output_tokens=Fixed(3), priority=2, tenant="t")


def sessions() -> list[Session]:
    due = [(LOW, 0.0), (LOW, 0.0), (HIGH, 0.05), (LOW, 0.1)]
    return [Session(number, each, (Turn(4, 3),), at_s) for number, (each, at_s) in enumerate(due)]


async def test_each_is_sent_at_its_instant_as_its_class_says() -> None:
    seen: list[Seen] = []
    async with serve(QUICK, seen.append) as stub:
        given = sessions()
        records = await play(given_plan(Target(f"http://127.0.0.1:{stub.port}"), given), given)
    assert [record.number for record in records] == [0, 1, 2, 3]
    assert [record.scheduled_at for record in records] == pytest.approx([0.0, 0.0, 0.05, 0.1])
    assert [record.traffic for record in records] == ["low", "low", "high", "low"]
    assert [record.priority for record in records] == [8, 8, 2, 8]
    assert len(metrics.completed(records)) == 4
    assert len(seen) == 4  # no warm-up


def test_sessions_must_be_numbered_and_due() -> None:
    with pytest.raises(ValueError, match="session 0"):
        GivenSessions(sessions()[1:])
    with pytest.raises(ValueError, match="an instant"):
        GivenSessions([replace(sessions()[0], due_s=None)])
    source = GivenSessions(sessions())
    assert source.session(3) == sessions()[3]
    assert source.session(4) is None


def test_lateness_is_a_p99_where_there_are_enough_and_else_a_median() -> None:
    def late(by_s: float) -> float:
        return 1.0 + by_s

    few = [whole(released_at=late(0.001))] * 3 + [whole(released_at=late(0.5))]
    assert lag_s(few) == pytest.approx(0.001)
    many = [whole(released_at=late(0.001))] * 980 + [whole(released_at=late(0.5))] * 20
    assert lag_s(many) == pytest.approx(0.5)
    assert lag_s([]) == 0.0


async def test_a_client_that_is_always_late_gives_no_result() -> None:
    async with serve(QUICK, lambda _: None) as stub:
        given = sessions()[:2]
        plan = given_plan(Target(f"http://127.0.0.1:{stub.port}"), given)
        with pytest.raises(BackendError, match="2 times in a row"):
            await play_on_time(plan, given, tries=2, limit_s=-1.0)


def test_a_server_of_ours_is_started_with_its_settings() -> None:
    words = filled(serve_command("mock", {"enable_batching": False, "max_batch_size": 8}), {"port": 5})
    assert words[1:] == [
        "serve", "--port", "5", "-o", "backend=mock", "-o", "enable_batching=false", "-o", "max_batch_size=8",
    ]  # fmt: skip
