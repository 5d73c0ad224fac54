"""Where the recorded loads lie that scenarios replay. They are not part of the project."""

from __future__ import annotations

from pathlib import Path

from llm_runtime import __file__ as package_file
from llm_runtime.bench.traces import TraceEntry, parse_trace
from llm_runtime.core.errors import ConfigError

FOLDER = Path("benchmarks") / "traces"
"""Seen from the checkout."""
ORIGINS = {
    "azure": "github.com/Azure/AzurePublicDataset, the 2023 traces of LLM inference (CC-BY-4.0)",
    "mooncake": "github.com/kvcache-ai/Mooncake, the traces of its FAST'25 release (Apache-2.0)",
}


def trace_path(file: str) -> Path:
    """Raises ConfigError, naming where to get it, for a trace that is not there."""
    path = Path(package_file).parents[2] / FOLDER / file
    if path.exists():
        return path
    origin = ORIGINS.get(file.partition("_")[0], "its publisher")
    raise ConfigError(f"the trace {file} is not there: put it into {FOLDER}/; it comes from {origin}")


def entries_of(file: str) -> list[TraceEntry]:
    """Raises ConfigError for a trace that is not there."""
    return parse_trace(trace_path(file).read_text(encoding="utf-8-sig"))
