"""Short loads against a stub in the test's own loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target, TrafficClass
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.records import RequestRecord
from llm_runtime.bench.run import RunResult, run
from llm_runtime.bench.stub import Seen, serve
from llm_runtime.bench.stub_script import Script
from llm_runtime.bench.summary import summarise

QUICK = Script(first_at_s=0.004, gap_s=0.001)
SMALL = TrafficClass(input_tokens=Fixed(8), output_tokens=Fixed(5))


@dataclass(frozen=True)
class Measured:
    result: RunResult
    summary: dict[str, Any]
    seen: list[Seen]
    """What the stub received, warm-up included."""

    @property
    def records(self) -> list[RequestRecord]:
        return sorted(self.result.records, key=lambda record: record.number)


async def measure(
    script: Script = QUICK,
    requests: int = 4,
    warmup: int = 0,
    target: dict[str, Any] | None = None,
    **plan: Any,
) -> Measured:
    """target, plan: members of the plan's target, and of the plan."""
    seen: list[Seen] = []
    async with serve(script, seen.append) as stub:
        whole = Plan(
            Target(f"http://127.0.0.1:{stub.port}", **(target or {})),
            **{
                "load": ClosedLoop(2), "traffic": (SMALL,), "salt": "s",
                "limits": Limits(requests=requests, warmup_requests=warmup), **plan,
            },
        )  # fmt: skip
        result = await run(whole)
    return Measured(result, summarise(result), seen)


def counting(number: int, then: Callable[[], None]) -> Callable[[Seen], None]:
    """Calls `then` when the stub has received so many requests."""
    left = [number]

    def on_request(_: Seen) -> None:
        left[0] -= 1
        if left[0] == 0:
            then()

    return on_request


def with_members(script: Script, **members: Any) -> Script:
    return replace(script, **members)
