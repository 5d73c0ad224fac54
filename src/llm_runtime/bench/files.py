"""Result files: a summary and, beside it, the records of its requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from llm_runtime.bench.records import RequestRecord, read_records, write_records
from llm_runtime.bench.run import RunResult
from llm_runtime.core.errors import ConfigError


def write_json(path: Path, value: Any) -> None:
    """Indented and strict: what JSON has no number for must not be in it any more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n")


def records_path(summary_path: Path) -> Path:
    return summary_path.with_suffix(".jsonl")


def write_result(path: Path, summary: dict[str, Any], result: RunResult) -> None:
    """The summary at `path`, the records beside it with the ending `.jsonl`. Raises OSError."""
    write_json(path, summary)
    write_records(records_path(path), sorted(result.records, key=lambda record: record.number))


def read_records_of(summary_path: Path) -> list[RequestRecord]:
    """Of a summary; empty where the records were not kept. Raises ConfigError for a damaged file."""
    path = records_path(summary_path)
    if not path.exists():
        return []
    try:
        return read_records(path)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
