"""The stub of exactly known timing, measured by another tool and by ours: `vllm bench serve` for contrast.

    python benchmarks/honesty_contrast.py [--python .venv-vllm/bin/python] [--output FILE]

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
BARE = replace(SCRIPT, role_at_s=None, ping_at_s=None)
RUNNER = """
import sys, vllm
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
if sys.argv[1:] == ["--version"]:
    sys.exit(print(vllm.__version__))
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` without vLLM's own command, which does not start under another package name."""


@dataclass(frozen=True, slots=True)
class Case:
    """rate: per second, evenly spaced; None for a closed loop of `places` clients. extras: the stub sends a
    chunk with only the role, and a comment as keep-alive, before the first token, as servers do."""

    rate: float | None
    places: int | None
    requests: int
    extras: bool = False

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
    "closed_8_extras": Case(None, 8, 400, extras=True),
    "closed_8": Case(None, 8, 400),
    "open_1000": Case(1000.0, None, 5000),
    "open_400_capped_100": Case(400.0, 100, 2000),
}
QUICK = {"closed_8": Case(None, 8, 64)}


@dataclass(frozen=True, slots=True)
class Tool:
    """words: its command line without options. tokenizer: a folder; it wants one for its own prompts."""

    words: tuple[str, ...]
    tokenizer: str


async def ours(url: str, case: Case) -> dict[str, Any]:
    traffic = TrafficClass(input_tokens=Fixed(32), output_tokens=Fixed(TOKENS))
    return summarise(await run(Plan(Target(url), case.load, (traffic,), Limits(requests=case.requests))))


async def theirs(tool: Tool, url: str, case: Case, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The result file and the command. Raises CalledProcessError with the tool's last words."""
    arguments = [
        "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url, "--model", MODEL,
        "--tokenizer", tool.tokenizer, "--dataset-name", "random", "--random-input-len", "32",
        "--random-output-len", str(TOKENS), "--disable-tqdm", "--save-result", "--result-dir", str(folder),
        "--result-filename", "r.json", "--percentile-metrics", "ttft,tpot,itl,e2el", *case.options(),
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *tool.words, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        print(output[-4000:].decode("utf-8", "replace"), file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, "vllm bench serve")
    private = {tool.tokenizer, str(folder)}
    shown = [Path(word).name if word in private else word for word in arguments]
    return orjson.loads((folder / "r.json").read_bytes()), ["vllm", "bench", "serve", *shown]


async def measure(tool: Tool, cases: Mapping[str, Case]) -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory(prefix="contrast-") as name:
        for case_name, case in cases.items():
            async with stub_process(SCRIPT if case.extras else BARE) as url:
                mine = await ours(url, case)
                other, command = await theirs(tool, url, case, Path(name))
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


def version(tool: Tool) -> str:
    done = subprocess.run(
        [*tool.words, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return done.stdout.strip().splitlines()[-1]


def converted(python: str) -> str:
    """The folder of the builtin model as vLLM reads it; made, if it is not there, by vLLM's Python."""
    command = [str(Path(sys.executable).with_name("llm-runtime")), "models", "convert", "--python", python]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return done.stdout.strip().splitlines()[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", default=str(ROOT / ".venv-vllm" / "bin" / "python"), help="that has vLLM")
    parser.add_argument("--vllm", help="command line of the tool instead, without its options")
    parser.add_argument("--tokenizer", help="folder for the tool's prompts; the builtin model's by default")
    parser.add_argument("--quick", action="store_true", help="one small case")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/honesty-contrast.json")
    options = parser.parse_args(arguments)
    words = shlex.split(options.vllm) if options.vllm else [options.python, "-W", "ignore", "-c", RUNNER]
    tool = Tool(tuple(words), options.tokenizer or converted(options.python))
    told = version(tool)
    started = datetime.now(UTC)
    environment = facts.environment()
    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        cases = runner.run(measure(tool, QUICK if options.quick else CASES))
    body = {
        "schema": SCHEMA,
        "command": f"python benchmarks/honesty_contrast.py{' --quick' if options.quick else ''}",
        "started": started.isoformat(timespec="seconds"),
        "script": asdict(SCRIPT),
        "script_without_extras": asdict(BARE),
        "output_tokens": TOKENS,
        "tools": {"llm-runtime": environment["llm_runtime"], "vllm bench serve": told},
        "environment": environment,
        "cases": cases,
    }
    write_json(options.output, body)
    for name, found in cases.items():
        for who in ("llm-runtime", "vllm bench serve"):
            errors = ", ".join(f"{key} {value:+.1%}" for key, value in found[who]["errors"].items())
            print(f"{name:<22}{who:<18}{errors}")
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
