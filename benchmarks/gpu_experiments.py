"""The experiments on vLLM, one after the other, unattended, on a host with a GPU:

    python benchmarks/gpu_experiments.py --model FOLDER-OR-NAME [--python PROGRAM]

Transformers against vLLM, `max_num_seqs`, the share of the GPU's memory, precisions. Results go to
benchmarks/results/gpu-NAME.json. What a host cannot run is told in its result and does not stop the rest.
scripts/gpu_benchmark.sh --all also makes what this needs. Ends with 1 when one missed a bar or could not be
run.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from llm_runtime.bench.present import checked_lines
from llm_runtime.bench.run import Interrupted
from llm_runtime.bench.scenario import check, measure, result_path
from llm_runtime.bench.scenarios import engines, vllm_max_num_seqs, vllm_memory_share, vllm_precision
from llm_runtime.bench.vllm_host import Host
from llm_runtime.commands.bench_shell import in_loop
from llm_runtime.core.errors import LLMRuntimeError

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS: Mapping[str, ModuleType] = {
    "engines": engines,
    "max-num-seqs": vllm_max_num_seqs,
    "memory-share": vllm_memory_share,
    "precision": vllm_precision,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model", required=True, help="a folder, hf:ORG/NAME (pulled before) or a name of the hub"
    )
    parser.add_argument("--python", help="of the environment with vLLM")
    parser.add_argument("--awq-model", help="the same weights as a checkpoint of AWQ; else made by rounding")
    parser.add_argument("--dummy-weights", action="store_true", help="the model's shape without weights")
    parser.add_argument("--cpu", action="store_true", help="a trial without a GPU, with the CPU's sizes")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS), metavar="NAME")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="for one experiment")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--dry-run", action="store_true", help="say what would be started")
    options = parser.parse_args(arguments)
    host = Host(not options.cpu, options.python, options.model, options.awq_model, options.dummy_weights)
    try:
        if options.dry_run:
            for name in options.only:
                print(f"== {EXPERIMENTS[name].on(host).name}", *EXPERIMENTS[name].commands(host), sep="\n")
            return 0
        host.interpreter()
    except LLMRuntimeError as error:
        parser.error(str(error))
    command = shlex.join([Path(__file__).name, *_shown(arguments or sys.argv[1:])])
    try:
        done = [_run(EXPERIMENTS[name], host, options, command) for name in options.only]
    except Interrupted as error:
        print(error, file=sys.stderr)
        return 130
    return 0 if all(done) else 1


def _run(experiment: ModuleType, host: Host, options: argparse.Namespace, command: str) -> bool:
    """Whether it was run and met its bars. Raises Interrupted."""
    scenario = experiment.on(host)
    print(f"\n== {scenario.name}: {scenario.question}", flush=True)

    async def limited() -> bool:
        async with asyncio.timeout(options.limit_s):
            result = await measure(scenario, quick=options.quick, folder=options.results, command=command)
        checked = check(scenario, result, quick=options.quick)
        print(f"written: {result_path(scenario, options.results, quick=options.quick)}")
        for line in checked_lines(result, checked):
            print(line)
        for what, reason in result.details["not_run"].items():
            print(f"not run: {what}: {reason}")
        return all(bar.met for bar in checked)

    try:
        return in_loop(lambda _: limited(), keeps=False)
    except Interrupted:
        raise
    except TimeoutError:
        print(f"{scenario.name} is not done after {options.limit_s:g} s", file=sys.stderr)
    except LLMRuntimeError as error:
        print(f"{scenario.name}: {error}", file=sys.stderr)
    return False


def _shown(words: Sequence[str]) -> list[str]:
    """Without folders: results are meant to be published."""
    return [Path(word).name if word.startswith("/") else word for word in words]


if __name__ == "__main__":
    sys.exit(main())
