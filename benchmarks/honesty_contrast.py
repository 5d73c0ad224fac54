"""The stub of exactly known timing, measured by another tool and by ours: `vllm bench serve` for contrast.

    python benchmarks/honesty_contrast.py [--vllm .venv-vllm/bin/vllm] [--output FILE]

Both tools get the same loads, in turns, from processes of their own. The truth follows from the stub's
script and the schedule. `make vllm-env` makes the environment; the scenario `honesty` has our bars.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from llm_runtime.bench import clock, facts
from llm_runtime.bench.config import ClosedLoop, Limits, OpenLoop, Plan, Target, TrafficClass
from llm_runtime.bench.files import write_json
from llm_runtime.bench.lengths import Fixed
from llm_runtime.bench.run import run
from llm_runtime.bench.scenarios.honesty import SCRIPT, SERVICE_S, TOKENS, queue_waits
from llm_runtime.bench.stub_process import stub_process
from llm_runtime.bench.stub_script import MODEL
from llm_runtime.bench.summary import summarise

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = "llm-runtime-honesty-contrast/1"
FIGURES = ("mean_ttft_ms", "median_ttft_ms", "mean_itl_ms", "mean_e2el_ms", "median_e2el_ms", "completed",
           "failed", "request_throughput")  # fmt: skip
TRUE = ("mean_ttft_ms", "mean_itl_ms", "mean_e2el_ms")
CONSTANT = "1000000"
"""Shape of gamma gaps: so narrow that arrivals are evenly spaced."""
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """rate: per second, evenly spaced; None for a closed loop of `places` clients."""

    rate: float | None
    places: int | None
    requests: int

    @property
    def load(self) -> ClosedLoop | OpenLoop:
        if self.rate is None:
            return ClosedLoop(self.places or 1)
        return OpenLoop(self.rate, "constant", max_in_flight=self.places)

    def truth(self) -> dict[str, float]:
        """Means in ms, counted from the scheduled arrival."""
        wait_s = 0.0
        if self.rate is not None:
            due = [number / self.rate for number in range(self.requests)]
            wait_s = statistics.fmean(queue_waits(due, SERVICE_S, self.places))
        seconds = (wait_s + SCRIPT.first_at_s, SCRIPT.gap_s, wait_s + SERVICE_S)
        return {name: 1e3 * value for name, value in zip(TRUE, seconds, strict=True)}

    def options(self) -> list[str]:
        """As `vllm bench serve` takes them."""
        cap = ["--max-concurrency", str(self.places)] if self.places else []
        rate = "inf" if self.rate is None else f"{self.rate:g}"
        return ["--request-rate", rate, "--burstiness", CONSTANT, "--num-prompts", str(self.requests), *cap]


CASES: Mapping[str, Case] = {
    "closed_8": Case(None, 8, 400),
    "open_1000": Case(1000.0, None, 5000),
    "open_400_capped_100": Case(400.0, 100, 2000),
}
QUICK = {"closed_8": Case(None, 8, 64)}


async def ours(url: str, case: Case) -> dict[str, Any]:
    traffic = TrafficClass(input_tokens=Fixed(32), output_tokens=Fixed(TOKENS))
    return summarise(await run(Plan(Target(url), case.load, (traffic,), Limits(requests=case.requests))))


async def theirs(vllm: Sequence[str], url: str, case: Case, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The result file and the command. Raises CalledProcessError with the tool's last words."""
    prompts = folder / "prompts.jsonl"
    lines = (orjson.dumps({"prompt": f"request {number} of many"}) for number in range(case.requests))
    prompts.write_bytes(b"\n".join(lines) + b"\n")
    arguments = [
        "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url,
        "--model", MODEL, "--skip-tokenizer-init", "--dataset-name", "custom", "--dataset-path", str(prompts),
        "--disable-tqdm", "--save-result", "--result-dir", str(folder), "--result-filename", "r.json",
        "--percentile-metrics", "ttft,tpot,itl,e2el", *case.options(),
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *vllm, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, "vllm", output[-2000:])
    shown = [Path(word).name if word.startswith(str(folder)) else word for word in arguments]
    return orjson.loads((folder / "r.json").read_bytes()), ["vllm", *shown]


async def measure(vllm: Sequence[str], cases: Mapping[str, Case]) -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory(prefix="contrast-") as name:
        # vLLM's tool asks for one token where it has no tokenizer, so the stub counts for itself.
        async with stub_process(replace(SCRIPT, num_tokens=TOKENS)) as url:
            for case_name, case in cases.items():
                mine = await ours(url, case)
                other, command = await theirs(vllm, url, case, Path(name))
                truth = case.truth()
                found[case_name] = {
                    "case": asdict(case),
                    "truth": truth,
                    "llm-runtime": _figures(mine, truth) | {"verdict": mine["verdict"]["state"]},
                    "vllm bench serve": _figures(other, truth) | {"command": shlex.join(command)},
                }
    return found


def _figures(summary: Mapping[str, Any], truth: Mapping[str, float]) -> dict[str, Any]:
    errors = {name: summary[name] / value - 1 for name, value in truth.items()}
    return {**{name: summary.get(name) for name in FIGURES}, "errors": errors}


def version(vllm: Sequence[str]) -> str:
    done = subprocess.run([*vllm, "--version"], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip().splitlines()[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vllm", default=str(ROOT / ".venv-vllm" / "bin" / "vllm"), help="its command line")
    parser.add_argument("--quick", action="store_true", help="one small case")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/honesty-contrast.json")
    options = parser.parse_args(arguments)
    vllm = shlex.split(options.vllm)
    told = version(vllm)
    started = datetime.now(UTC)
    environment = facts.environment()
    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        cases = runner.run(measure(vllm, QUICK if options.quick else CASES))
    body = {
        "schema": SCHEMA,
        "command": f"python benchmarks/honesty_contrast.py{' --quick' if options.quick else ''}",
        "started": started.isoformat(timespec="seconds"),
        "script": asdict(SCRIPT),
        "output_tokens": TOKENS,
        "tools": {"llm-runtime": environment["llm_runtime"], "vllm bench serve": told},
        "environment": environment,
        "cases": cases,
    }
    write_json(options.output, body)
    for name, found in cases.items():
        for tool in ("llm-runtime", "vllm bench serve"):
            errors = ", ".join(f"{key} {value:+.1%}" for key, value in found[tool]["errors"].items())
            print(f"{name:<22}{tool:<18}{errors}")
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
