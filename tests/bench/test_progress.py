"""The line that tells how a run goes."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console

from llm_runtime.bench.config import ClosedLoop, Limits, Plan, Target
from llm_runtime.bench.progress import ProgressLine
from llm_runtime.bench.run import run
from llm_runtime.bench.stub import serve
from tests.bench.loads import QUICK, SMALL

LINE = r"first: \d s, 6 requests \| (\d) done \| 0 failed \| (\d) in flight \| (\d+) tok/s"


async def test_a_line_tells_counts_while_the_load_lasts_and_is_gone_afterwards() -> None:
    """Answers of a good half second, so that the line is drawn while some are done and some in flight."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=150)
    async with serve(replace(QUICK, first_at_s=0.1, gap_s=0.1)) as stub:
        plan = Plan(
            Target(f"http://127.0.0.1:{stub.port}"), ClosedLoop(2), (SMALL,),
            Limits(requests=6, warmup_requests=0),
        )  # fmt: skip
        result = await run(plan, ProgressLine(console, "first: "))
    assert len(result.records) == 6
    text = shown.getvalue()
    lines = re.findall(LINE, text)
    assert lines
    assert {in_flight for _, in_flight, _ in lines} <= {"1", "2"}
    assert any(int(rate) > 0 for _, _, rate in lines)
    done = [int(number) for number, _, _ in lines]
    assert done == sorted(done)
    assert text.rstrip("\n").endswith("\x1b[2K")  # the line is taken away


async def test_what_fails_is_told_as_it_happens() -> None:
    shown = io.StringIO()
    async with serve(replace(QUICK, first_at_s=0.4, status=503)) as stub:
        plan = Plan(
            Target(f"http://127.0.0.1:{stub.port}"), ClosedLoop(1), (SMALL,),
            Limits(requests=4, warmup_requests=0),
        )  # fmt: skip
        await run(plan, ProgressLine(Console(file=shown, force_terminal=True, width=150)))
    assert re.search(r"[1-4] failed .* last failure: http_503", shown.getvalue())
