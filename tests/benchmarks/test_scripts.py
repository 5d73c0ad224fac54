"""The scripts people know, each as they type it, at sizes of seconds: files, tables, exit statuses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import generate_report, gpu_experiments, run_all, run_engine_comparison, run_scenarios
from llm_runtime.bench.launch import launched
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.bench.serve_command import serve_command
from llm_runtime.core.errors import BackendError

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG"
MOCK = ("--prefill-latency-ms", "2", "--decode-latency-ms", "1")


def script(name: str, *arguments: str | Path, code: int = 0) -> str:
    """What it printed. A run that is void is no failure here: the machine of a test may be busy."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == code or (done.returncode, code, "VOID" in printed) == (1, 0, True), printed
    return printed


def read(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(path.read_bytes())
    return body


async def test_a_load_test_measures_any_server(tmp_path: Path) -> None:
    async with launched(serve_command("mock", {"prefill_latency_ms": 1, "decode_latency_ms": 1}), {}) as url:
        arguments = ("--base-url", f"{url}/v1", "--concurrency", "2", "--requests", "6", "--max-tokens", "3",
                     "--output", tmp_path / "r.json", "--", "--ignore-eos", "--allow-void")  # fmt: skip
        printed = await asyncio.to_thread(script, "run_load_test.py", *arguments)
    body = read(tmp_path / "r.json")
    assert (body["completed"], body["total_output_tokens"], body["max_concurrency"]) == (6, 18, 2)
    assert body["command"].startswith("llm-runtime bench run http://127.0.0.1")
    assert "6 completed, 0 failed" in printed


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    script("run_local_comparison.py", "--mode", "both", "--levels", "1", "4", "--requests", "8", *MOCK,
           "--max-batch-size", "4", "--batch-timeout-ms", "2", "--output-dir", folder)  # fmt: skip
    return folder


def test_a_comparison_starts_a_server_for_each_mode(compared: Path) -> None:
    body = read(compared / "local-comparison.json")
    met = [(point["server"]["batching"], point["level"]) for point in body["points"]]
    assert met == [("false", 1), ("false", 4), ("true", 1), ("true", 4)]
    assert all(point["summary"]["completed"] == 8 for point in body["points"])
    sizes = [point["summary"]["server_means"]["batch_size"] for point in body["points"]]
    assert sizes[:2] == [1.0, 1.0]
    assert sizes[3] > 1.5
    assert "max_batch_size=4" in body["command"]


def test_its_analysis_shows_gains_and_draws_the_curve(compared: Path, tmp_path: Path) -> None:
    printed = script("analyze_results.py", compared / "local-comparison.json", "--output-dir", tmp_path)
    rows = [line.split() for line in printed.splitlines()]
    plain = [row for row in rows if row[-3:-1] == ["batching", "="] and "against" not in row]
    by_mode = {(row[0], row[-1]): float(row[1].replace(",", "")) for row in plain}
    assert set(by_mode) == {("1", "false"), ("4", "false"), ("1", "true"), ("4", "true")}
    assert by_mode["4", "true"] > by_mode["4", "false"]
    assert "against batching = false" in printed
    # Eight requests support no p95.
    assert (tmp_path / "throughput-vs-median.png").read_bytes().startswith(PNG)


def test_a_batch_sweep_tries_every_pair_and_names_the_best(tmp_path: Path) -> None:
    script("run_batch_sweep.py", "--batch-sizes", "1", "4", "--timeouts", "1", "--concurrency", "4",
           "--requests", "8", *MOCK, "--output-dir", tmp_path)  # fmt: skip
    path = tmp_path / "batch-sweep.json"
    assert [point["server"] for point in read(path)["points"]] == [
        {"size": "1", "timeout_ms": "1"}, {"size": "4", "timeout_ms": "1"},
    ]  # fmt: skip
    best = script("analyze_batch_sweep.py", path).splitlines()[2]
    assert best.endswith("size = 4, timeout_ms = 1")
    assert "no setting" in script("analyze_batch_sweep.py", path, "--max-p95-ms", "1000", code=1)


def test_the_priority_benchmark_counts_starvation_by_any_budget(tmp_path: Path) -> None:
    printed = script("run_priority_scheduler_benchmark.py", "--quick", "--ttft-budget-ms", "300",
                     "--output-dir", tmp_path)  # fmt: skip
    fifo = read(tmp_path / "priority-quick.json")["details"]["low_ttfts_ms"]["fifo"][0]
    row = next(line.split() for line in printed.splitlines() if line.startswith("fifo "))
    assert row[-1] == f"{sum(ttft > 300 for ttft in fifo) / len(fifo):.1%}"


def test_engines_are_compared_in_a_table_and_a_curve() -> None:
    figures = {
        "hf_tokens_per_s_at_1": 10.0, "hf_median_ttft_ms_at_1": 100.0, "hf_median_e2el_ms_at_1": 900.0,
        "hf_p95_e2el_ms_at_1": 1200.0, "llama.cpp_tokens_per_s_at_16": 40.0,
        "llama.cpp_median_ttft_ms_at_16": 50.0,
        "llama.cpp_median_e2el_ms_at_16": 300.0, "llama.cpp_p95_e2el_ms_at_16": 400.0, "failed": 0,
        "llama.cpp_over_hf_at_16": None, "same_greedy_text_hf_llama.cpp": 0.25,
    }  # fmt: skip
    found = run_engine_comparison.by_engine(figures)
    assert found["llama.cpp"] == {16: {"tokens_per_s": 40.0, "median_ttft_ms": 50.0, "median_e2el_ms": 300.0,
                                       "p95_e2el_ms": 400.0}}  # fmt: skip
    rows = [line.split() for line in run_engine_comparison.lines(found)[1:]]
    assert [(row[0], row[1], row[-1]) for row in rows] == [("1", "10.0", "hf"), ("16", "40.0", "llama.cpp")]
    picture, quantile = run_engine_comparison.curve(found)
    assert (picture[:4], quantile) == (PNG, "p95")
    short = run_engine_comparison.by_engine({**figures, "hf_p95_e2el_ms_at_1": None})
    assert run_engine_comparison.curve(short)[1] == "median"


def test_a_report_takes_every_result_and_nothing_else(compared: Path, tmp_path: Path) -> None:
    (compared / "other.json").write_text('{"schema": "another"}')
    (compared / "broken.json").write_text("{")
    page = tmp_path / "page.html"
    script("generate_report.py", "--results-dir", compared, "--output", page)
    assert "Sweep local-comparison" in page.read_text()
    assert not generate_report.is_result(compared / "other.json")
    assert not generate_report.is_result(compared / "broken.json")
    script("generate_report.py", "--results-dir", tmp_path, code=2)


@pytest.mark.parametrize("quick", [True, False])
def test_the_set_runs_every_script_with_options_it_has(quick: bool, tmp_path: Path) -> None:
    steps = list(run_all.steps(tmp_path, quick=quick))
    known = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    assert {step.script for step in steps} <= known
    assert len({step.script for step in steps}) == 8
    for step in steps:
        told = script(step.script, "--help")
        assert all(word in told for word in step.arguments if word.startswith("--") and word not in (
            "--", "--ignore-eos"))  # fmt: skip


async def test_a_step_that_fails_or_hangs_is_told_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = [
        run_all.Step("analyze_results.py", (str(tmp_path / "nothing.json"),), 60),
        run_all.Step("generate_report.py", ("--help",), 0.0),
        run_all.Step("generate_report.py", ("--help",), 60),
    ]
    monkeypatch.setattr(run_all, "steps", lambda folder, *, quick: iter(steps))
    assert await run_all.run(tmp_path, quick=True) == ["analyze_results.py", "generate_report.py"]
    assert "not done after 0 s" in capfd.readouterr().err


def test_an_experiment_that_fails_or_hangs_is_told_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def fails(quick: bool) -> Result:
        raise BackendError("it ended with 1")

    async def hangs(quick: bool) -> Result:
        await asyncio.Event().wait()
        raise AssertionError

    async def runs(quick: bool) -> Result:
        return Result({"failed": 0.0}, {"not_run": {"fp8": "no kernel"}})

    def experiment(name: str, run: Callable[[bool], Awaitable[Result]]) -> Any:
        bars = (Bar("failed", "<=", 0.0),)
        return SimpleNamespace(on=lambda host: Scenario(f"{host.mark}{name}", "Does it?", {}, bars, run))

    found = {one.__name__: experiment(one.__name__, one) for one in (fails, hangs, runs)}
    monkeypatch.setattr(gpu_experiments, "EXPERIMENTS", found)
    options = [
        "--model",
        "/models/m",
        "--python",
        sys.executable,
        "--results",
        str(tmp_path),
        "--limit-s",
        "0.1",
    ]
    assert gpu_experiments.main(options) == 1
    told = capfd.readouterr()
    assert "gpu-fails: it ended with 1" in told.err
    assert "gpu-hangs is not done after 0.1 s" in told.err
    assert "not run: fp8: no kernel" in told.out
    assert [path.name for path in tmp_path.iterdir()] == ["gpu-runs.json"]
    assert str(Path(sys.executable).parent) not in read(tmp_path / "gpu-runs.json")["command"]
    assert gpu_experiments.main([*options, "--only", "runs"]) == 0


def test_a_scenario_that_cannot_be_run_is_told_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_scenarios.main(["--quick", "--results", str(tmp_path), "nothing"]) == 1
    assert "could not be run: nothing" in capfd.readouterr().err
