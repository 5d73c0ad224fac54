"""A stream that counts writes, and logging set up to write to it."""

from __future__ import annotations

import io
import json
from typing import Any

from pydantic import BaseModel

from llm_runtime.telemetry.config import TelemetryConfig
from llm_runtime.telemetry.log_lines import LineLog
from llm_runtime.telemetry.logging import configure_logging
from tests.telemetry.builders import MARKER


class Stream(io.BytesIO):
    """An unbuffered stream that counts writes and may be a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.terminal = terminal
        self.num_writes = 0

    def isatty(self) -> bool:
        return self.terminal

    def write(self, data: Any) -> int:
        self.num_writes += 1
        return super().write(data)

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = self.getvalue().decode()
        assert not text or text.endswith("\n")
        lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        assert all(isinstance(line, dict) for line in lines)
        return lines


def configure(stream: Stream, level: Any = "info", fmt: Any = "json", **more: Any) -> LineLog:
    return configure_logging(TelemetryConfig(log_level=level, log_format=fmt), stream=stream, **more)


class Strict(BaseModel):
    number: int


def value_error() -> None:
    raise ValueError(f"cannot parse {MARKER}")
