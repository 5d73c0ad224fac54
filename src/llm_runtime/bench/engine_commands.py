"""Command lines of the embedded engine alone, for scenarios that compare against it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from llm_runtime.engines.assets import ModelStore
from llm_runtime.engines.config import BUILTIN_MODEL
from llm_runtime.engines.llama_cpp.command import LaunchParameters

MODEL = "smollm2-135m"
PORT = 54321  # a word for the launcher to replace


def llama_cpp_command(*, num_threads: int, num_slots: int, context_tokens: int, num_batch: int) -> str:
    """llama.cpp's own HTTP server with the builtin model, as a template for `launch.launched`."""
    parameters = LaunchParameters(
        model_path=Path(ModelStore(os.environ).ensure(BUILTIN_MODEL)),
        alias=MODEL,
        num_slots=num_slots,
        context_tokens=context_tokens,
        num_threads=num_threads,
        num_batch=num_batch,
        port=PORT,
    )
    return shlex.join(parameters.command()).replace(str(PORT), "{port}")
