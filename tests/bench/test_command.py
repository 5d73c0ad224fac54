"""`llm-runtime bench` as people type it: exit codes, files, Ctrl-C, and nothing secret in the files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from llm_runtime.bench import clock
from llm_runtime.bench import scenario as framework
from llm_runtime.bench.records import read_records
from llm_runtime.bench.stub import Seen, Stub, serve
from llm_runtime.bench.stub_script import Script
from llm_runtime.cli import app
from llm_runtime.commands.bench_shell import public_command
from tests.bench.loads import QUICK, with_members

FAST = ["-n", "4", "--output-tokens", "3", "--input-tokens", "8", "--warmup-requests", "1", "--allow-void"]


@contextmanager
def served(script: Script = QUICK, on_request: Callable[[Seen], None] | None = None) -> Iterator[str]:
    """A stub in a thread of its own, because the command has a loop of its own."""
    import asyncio

    found: list[str] = []
    ready, loops = threading.Event(), []
    stopped: list[asyncio.Event] = []

    async def main() -> None:
        stopped.append(asyncio.Event())
        loops.append(asyncio.get_running_loop())
        async with serve(script, on_request) as stub:
            found.append(url_of(stub))
            ready.set()
            await stopped[0].wait()

    def work() -> None:
        with asyncio.Runner(loop_factory=clock.new_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        loops[0].call_soon_threadsafe(stopped[0].set)
        thread.join(20)


def url_of(stub: Stub) -> str:
    return f"http://127.0.0.1:{stub.port}"


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def read(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(path.read_bytes())
    return body


def test_a_run_prints_its_figures_and_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with served() as url:
        result = bench("run", url, *FAST, "-c", "2", "-o", str(path), "--slo-ttft-ms", "9000")
    assert result.exit_code == 0, result.output
    assert "4 completed, 0 failed of 4" in result.output
    assert "100.0% of all requests good" in result.output
    assert read(path)["total_output_tokens"] == 12
    assert len(read_records(path.with_suffix(".jsonl"))) == 4


@pytest.mark.parametrize(
    ("options", "load_kind"),
    [
        (["--rate", "500", "--arrivals", "constant"], "OpenLoop"),
        (["--rate", "inf", "--max-in-flight", "2"], "OpenLoop"),
        (["--profile", "1@100-200"], "OpenLoop"),
        (["--endpoint", "completions", "--no-stream"], "ClosedLoop"),
        (["--traffic", "name=a,priority=1", "--traffic", "name=b,share=2,output=2,tenant=t"], "ClosedLoop"),
    ],
)
def test_loads_and_mixes_reach_the_server(tmp_path: Path, options: list[str], load_kind: str) -> None:
    with served() as url:
        result = bench("run", url, *FAST, *options, "-o", str(tmp_path / "r.json"))
    assert result.exit_code == 0, result.output
    assert read(tmp_path / "r.json")["settings"]["load_kind"] == load_kind


def test_a_replay_takes_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 20, "output_length": 4, "hash_ids": [1]}\n' * 3)
    with served() as url:
        scaled = ["--length-scale", "0.5", "--allow-void", "-o", str(tmp_path / "r.json")]
        result = bench("replay", str(trace), url, *scaled)
    assert result.exit_code == 0, result.output
    assert read(tmp_path / "r.json")["total_output_tokens"] == 6


def test_failures_end_with_one_and_are_written(tmp_path: Path) -> None:
    with served(with_members(QUICK, status=503)) as url:
        result = bench("run", url, *FAST, "--warmup-requests", "0", "-o", str(tmp_path / "r.json"))
    assert result.exit_code == 1
    assert "http_503 4" in result.output
    assert "FAILED: no measured request was completed" in result.output
    assert read(tmp_path / "r.json")["failed"] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "http://127.0.0.1:1"], 1, "no server answers"),
        (["run", "ftp://x"], 2, "no address"),
        (["run", "http://x", "--rate", "1", "-c", "2"], 2, "give one of them"),
        (["run", "http://x", "--rate", "0"], 2, "rate must be above 0"),
        (["run", "http://x", "--arrivals", "odd", "--rate", "1"], 2, "poisson"),
        (["run", "http://x", "--endpoint", "odd"], 2, "completions"),
        (["run", "http://x", "--body", "{"], 2, "no JSON"),
        (["run", "http://x", "--input-tokens", "many"], 2, "no length"),
        (["replay", "/nowhere.csv", "http://127.0.0.1:1"], 2, "cannot be read"),
        (["sweep", "http://x"], 2, "give one"),
        (["report", "/nowhere.json"], 2, "cannot be read"),
        (["scenario", "run", "nothing"], 2, "no scenario"),
    ],
)
def test_mistakes_are_told_plainly(arguments: list[str], code: int, says: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == code, result.output
    assert says in result.output


def test_a_comparison_a_sweep_and_a_page_of_them(tmp_path: Path) -> None:
    compared, swept, page = tmp_path / "c.json", tmp_path / "s.json", tmp_path / "p.html"
    with served() as url:
        first = bench("compare", url, url, "--rounds", "1", *FAST, "-o", str(compared))
        second = bench(
            "sweep", url, "--concurrencies", "1,2", "--per-level", "2", *FAST[2:], "-o", str(swept)
        )
    assert first.exit_code == 0, first.output
    assert second.exit_code == 0, second.output
    assert [point["summary"]["num_prompts"] for point in read(swept)["points"]] == [2, 4]
    third = bench("report", str(compared), str(swept), "-o", str(page))
    assert third.exit_code == 0, third.output
    assert "Sweep s" in page.read_text()


def test_a_sweep_starts_a_server_for_every_setting(tmp_path: Path) -> None:
    script = "'{{\"num_tokens\": {tokens}}}'"
    server = f"{sys.executable} -m llm_runtime.bench.stub --port {{port}} --script {script}"
    result = bench(
        "sweep", "--server", server, "--vary", "tokens=1,2", "--concurrencies", "2", "--per-level", "1",
        "--allow-void", "-o", str(tmp_path / "s.json"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    points = read(tmp_path / "s.json")["points"]
    assert [(point["server"]["tokens"], point["summary"]["total_output_tokens"]) for point in points] == [
        ("1", 2), ("2", 4),
    ]  # fmt: skip


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    server = f"{sys.executable} -c 'raise SystemExit(\"no such model\")'"
    result = bench("sweep", "--server", server, "--concurrencies", "1", "-o", str(tmp_path / "s.json"))
    assert result.exit_code == 1
    assert "no such model" in result.output


@pytest.mark.parametrize(("bar", "check", "code"), [(2.0, True, 0), (3.0, True, 1), (3.0, False, 0)])
def test_a_scenario_ends_with_one_when_it_is_checked_and_misses_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bar: float, check: bool, code: int
) -> None:
    async def measured(quick: bool) -> framework.Result:
        return framework.Result({"speed": 2.0, "beside": 7.0})

    example = framework.Scenario("example", "Is it?", {}, (framework.Bar("speed", ">=", bar),), measured)
    monkeypatch.setattr(framework, "all_scenarios", lambda: {"example": example})
    asked = ["--check"] if check else []
    result = bench("scenario", "run", "example", "--quick", *asked, "--results", str(tmp_path))
    assert result.exit_code == code
    last = result.output.splitlines()[-1].split()
    assert (last[0], last[-1]) == ("speed", "ok" if bar == 2.0 else "MISSED")
    assert json.loads((tmp_path / "example-quick.json").read_bytes())["figures"]["speed"] == 2.0


def test_scenarios_are_listed_with_their_questions() -> None:
    result = bench("scenario", "list")
    assert result.exit_code == 0
    assert "honesty" in result.output


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    path, seen = tmp_path / "r.json", threading.Semaphore(0)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LLM_RUNTIME_")}
    with served(QUICK, lambda _: seen.release()) as url:
        command = [
            sys.executable, "-c", "from llm_runtime.cli import app; app()",
            "bench", "run", url, "-n", "100000", "-c", "2", "--output-tokens", "3", "-o", str(path),
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            for _ in range(30):
                assert seen.acquire(timeout=30)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "INTERRUPTED: stopped by the user" in output
    summary = read(path)
    assert summary["verdict"]["interrupted"]
    assert summary["completed"] >= 20
    assert summary["failed"] == 0
    assert len(read_records(path.with_suffix(".jsonl"))) >= summary["completed"]


def test_the_noted_command_holds_no_key_and_no_folder() -> None:
    arguments = [
        "bench", "run", "http://me:pw@host/v1", "--api-key", "sesame", "--api-key=sesame",
        "--header", "a: sesame", "--traffic", "name=a,key=sesame,share=2", "-o", "/home/me/r.json",
    ]  # fmt: skip
    noted = public_command(arguments)
    assert "sesame" not in noted
    assert "pw" not in noted
    assert "/home" not in noted
    assert noted.startswith("llm-runtime bench run http://host/v1 --api-key ... --api-key=...")
    assert "name=a,key=...,share=2" in noted
