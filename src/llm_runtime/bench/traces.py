"""Recorded loads: the Azure LLM inference CSV and the Mooncake JSONL, as one kind of entry.

Reading and scaling only; prompts are made elsewhere. A file is told by its content, not its name.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from llm_runtime.bench.config import TraceFile
from llm_runtime.core.errors import ConfigError

MOONCAKE_BLOCK_TOKENS = 512
_TIMESTAMP = re.compile(r"([\d-]+[ T][\d:]+)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """at_s: since the trace's first request. block_ids: ids of the prompt's leading blocks, each of
    block_tokens; equal ids mean equal text. Empty where the trace says nothing about content."""

    at_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0


def load_trace(trace: TraceFile, seed: int) -> list[TraceEntry]:
    """Reads, cuts, thins and scales. Blocks the caller for the length of the read.

    Raises ConfigError for a file that cannot be read, is of neither format, or keeps no request.
    """
    try:
        text = Path(trace.path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the trace {trace.path} cannot be read: {error}") from error
    try:
        entries = parse_trace(text)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the trace {trace.path} is neither Azure CSV nor Mooncake JSONL: {error}"
        ) from error
    chosen = scale(entries, trace, seed)
    if not chosen:
        raise ConfigError(f"the trace {trace.path} has no request in the chosen window")
    return chosen


def parse_trace(text: str) -> list[TraceEntry]:
    """Entries by instant, the first at 0. Raises ValueError, KeyError or TypeError for other text."""
    lines = text.splitlines()
    if text.lstrip().startswith("{"):
        entries = [_mooncake(orjson.loads(line)) for line in lines if line.strip()]
    else:
        entries = list(_azure(lines))
    entries.sort(key=lambda entry: entry.at_s)
    return [replace(entry, at_s=entry.at_s - entries[0].at_s) for entry in entries]


def scale(entries: Iterable[TraceEntry], trace: TraceFile, seed: int) -> list[TraceEntry]:
    """The window, thinned, then scaled; instants count from the window's start."""
    source = random.Random(f"thinning:{seed}")
    end_s = float("inf") if trace.duration_s is None else trace.start_s + trace.duration_s
    chosen = []
    for entry in entries:
        kept = source.random() < trace.keep  # drawn for every entry: the window must not shift the choice
        if kept and trace.start_s <= entry.at_s < end_s:
            chosen.append(_scaled(entry, trace))
    return chosen


def _scaled(entry: TraceEntry, trace: TraceFile) -> TraceEntry:
    return TraceEntry(
        (entry.at_s - trace.start_s) * trace.time_scale,
        _length(entry.input_tokens, trace.length_scale, trace.max_input_tokens),
        _length(entry.output_tokens, trace.length_scale, trace.max_output_tokens),
        entry.block_ids,
        max(1, round(entry.block_tokens * trace.length_scale)) if entry.block_ids else 0,
    )


def _length(tokens: int, factor: float, limit: int | None) -> int:
    scaled = max(1, round(tokens * factor))
    return scaled if limit is None else min(scaled, limit)


def _mooncake(line: Any) -> TraceEntry:
    return TraceEntry(
        float(line["timestamp"]) / 1000,
        int(line["input_length"]),
        int(line["output_length"]),
        tuple(int(block) for block in line.get("hash_ids", ())),
        MOONCAKE_BLOCK_TOKENS,
    )


def _azure(lines: list[str]) -> Iterator[TraceEntry]:
    reader = csv.DictReader(lines)
    if missing := [column for column in AZURE_COLUMNS if column not in (reader.fieldnames or ())]:
        raise ValueError(f"no column {missing[0]}")
    origin: datetime | None = None
    for row in reader:
        moment, fraction_s = _moment(row["TIMESTAMP"])
        origin = origin or moment
        at_s = (moment - origin).total_seconds() + fraction_s
        yield TraceEntry(at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _moment(text: str) -> tuple[datetime, float]:
    """Whole seconds and their fraction, of which there may be more digits than `datetime` holds."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"no instant: {text!r}")
    whole, fraction, zone = match.groups()
    moment = datetime.fromisoformat(whole + (zone or "+00:00").replace("Z", "+00:00"))
    return moment, float(f"0.{fraction or 0}")
