"""Native concurrency on vLLM's engine in our process: eight requests in it, against one."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from llm_runtime.bench import in_flight
from llm_runtime.bench.in_flight import CLIENTS, IN_FLIGHT, INPUT_TOKENS, OUTPUT_TOKENS, Size
from llm_runtime.bench.launch import launched
from llm_runtime.bench.scenario import Bar, Result, Scenario
from llm_runtime.core.errors import ConfigError
from llm_runtime.engines.config import VllmConfig
from llm_runtime.engines.vllm.command import find_python

CONTEXT_TOKENS = 512
FULL = Size(3, 70)
QUICK = Size(1, 8)


async def measure(quick: bool) -> Result:
    few, many = IN_FLIGHT
    async with (
        launched(_command(few), {}, "/health/ready") as one,
        launched(_command(many), {}, "/health/ready") as eight,
    ):
        return await in_flight.measure({few: one, many: eight}, QUICK if quick else FULL)


def _command(count: int) -> str:
    python = find_python(VllmConfig(), os.environ)
    program = None if python is None else Path(python).with_name("llm-runtime")
    if program is None or not program.exists():
        raise ConfigError("this scenario needs vLLM: run `make vllm-env`, which makes .venv-vllm")
    options = {
        "backend": "vllm-inprocess",
        "native_backend_concurrency": count,
        "vllm_max_model_len": CONTEXT_TOKENS,
        "engines.vllm.extra_arguments": "--enforce-eager",
    }
    settings = " ".join(shlex.join(("-o", f"{name}={value}")) for name, value in options.items())
    return f"env VLLM_CPU_KVCACHE_SPACE=1 {shlex.quote(str(program))} serve --port {{port}} {settings}"


SCENARIO = Scenario(
    name="vllm-native-concurrency",
    question="What do eight requests in flight give over one on vLLM's engine in process, for eight clients?",
    workload={
        "in_flight": IN_FLIGHT, "clients": CLIENTS, "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS, "context_tokens": CONTEXT_TOKENS, "full": FULL, "quick": QUICK,
    },
    bars=(Bar("failed", "<=", 0.0), Bar("throughput_gain", ">=", 1.5, quick=False)),
    run=measure,
)  # fmt: skip
